"""HTTP connections of uvicorn: requests have to arrive in time, and a stop loses none."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

LINGER = 0.5  # seconds that a kept connection has for a request that is on its way when the server stops
TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


@dataclass
class Arrivals:
    """Connections whose request has not arrived, the longest wait first, and what ends their wait.

    Attributes:
        most: connections that may wait; beyond that, the one that has waited longest is closed. So idle
            connections keep neither uploads nor the health check out.
        seconds: time until a connection is closed whose request has not arrived.
    """

    most: int
    seconds: float
    waiting: dict["TimedProtocol", asyncio.TimerHandle] = field(default_factory=dict)


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for requests to arrive."""

    def __init__(self, arrivals: Arrivals, **others: Any) -> None:
        super().__init__(**others)
        self.arrivals, self.stopping = arrivals, False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.arrivals.waiting) > self.arrivals.most:
            next(iter(self.arrivals.waiting))._give_up()

    def handle_events(self) -> None:
        super().handle_events()
        if self.stopping:
            self._answer_last()
        self._watch()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._watch()

    def shutdown(self) -> None:
        """Close the connection after the request under way, or after one that was sent already."""
        self.stopping = True
        self._answer_last()
        self.loop.call_later(LINGER, self._close_if_idle)

    def _answer_last(self) -> None:
        """Say in the answer under way that the connection ends with it, so that no other request is sent."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False
            scope = self.cycle.scope
            scope["headers"] = [*scope["headers"], CLOSE_HEADER]  # uvicorn repeats it in the answer

    def _close_if_idle(self) -> None:
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            super().shutdown()

    def _watch(self) -> None:
        waiting = self.arrivals.waiting
        arriving = self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing()
        if arriving and self not in waiting:
            waiting[self] = self.loop.call_later(self.arrivals.seconds, self._give_up)
        elif not arriving and self in waiting:
            waiting.pop(self).cancel()

    def _give_up(self) -> None:
        if self.conn.our_state is h11.SEND_RESPONSE:  # there is a request, without an answer so far
            self.transport.write(TIMEOUT)
        self.transport.close()
        self._watch()
