"""Serve: one process, or several that share a socket."""

import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield_deploy.serving.application import create_app
from vqshield_deploy.serving.clients import read_keys
from vqshield_deploy.serving.deployment import Deployment
from vqshield_deploy.serving.guard import LOG, Guard
from vqshield_deploy.serving.limits import Limits
from vqshield_deploy.serving.metrics import SHARED
from vqshield_deploy.serving.predictor import Predictor
from vqshield_deploy.serving.protocol import Arrivals, TimedProtocol

HEADERS = 16 << 10  # bytes of a request's line and headers
BACKLOG = 512  # connections that the system keeps until a worker takes them
STOP_S = 30  # seconds that requests under way have when the server stops


def serve(
    deployment: Deployment,
    limits: Limits | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    threads: int | None = None,
    api_keys: Path | None = None,
    proxy: str | None = None,
    access_log: bool = True,
    started: Callable[[str, int], None] = lambda host, port: None,
) -> None:
    """Serve a classifier over HTTP until SIGTERM or Ctrl-C. Requests that have arrived are answered first.

    Args:
        deployment: what is served.
        limits: what is taken (default: `Limits()`).
        host: address to listen on; 0.0.0.0 listens to other machines.
        port: port to listen on; 0 takes a free one.
        workers: processes that share the port; each holds the model and counts limits for itself.
        threads: torch threads per worker (default: all cores, shared by the workers).
        api_keys: file with the API keys of clients, one per line (default: the environment variable
            VQSHIELD_API_KEYS, else none are needed).
        proxy: believe the X-Forwarded-For header of this reverse proxy, an address or network.
        access_log: write a line of JSON per request to stdout, without image content.
        started: called with host and port when the port is open.

    Raises:
        InvalidInputError: settings or a classifier that cannot work, a port that cannot be opened, or workers
            that do not start.
    """
    limits, workers = limits or Limits(), checks.whole("workers", workers, least=1)
    threads = max(1, (os.cpu_count() or 1) // workers) if threads is None else threads
    checks.whole("threads", threads, least=1)
    keys = read_keys(api_keys)
    built = deployment.build()  # also where workers build their own: an error ends the command
    app = partial(_application, built if workers == 1 else deployment, limits, threads, keys, access_log)
    config = server_config(app, limits, proxy=proxy, workers=workers, factory=True)
    with ExitStack() as stack:
        listener = stack.enter_context(_listen(host, checks.whole("port", port, least=0, below=1 << 16)))
        started(host, listener.getsockname()[1])
        if workers == 1:
            with suppress(KeyboardInterrupt):  # uvicorn's, after a stop in good order
                uvicorn.Server(config).run(sockets=[listener])
            return
        if SHARED not in os.environ:
            os.environ[SHARED] = stack.enter_context(tempfile.TemporaryDirectory(prefix="vqshield-"))
            stack.callback(os.environ.pop, SHARED)
        del built
        group = Workers(config, [listener])
        group.run()
        if any(process.exitcode == STARTUP_FAILURE for process in group.processes):
            raise InvalidInputError("a worker did not start; its error is above")


def server_config(app: Any, limits: Limits, *, proxy: str | None = None, **others: Any) -> uvicorn.Config:
    """How uvicorn runs the application."""
    return uvicorn.Config(
        app, http=partial(TimedProtocol, Arrivals(limits.connections, limits.receive_s)),  # type: ignore[arg-type]
        ws="none", log_level="warning", access_log=False, server_header=False, backlog=BACKLOG,
        proxy_headers=proxy is not None, forwarded_allow_ips=proxy or "",
        timeout_graceful_shutdown=STOP_S, h11_max_incomplete_event_size=HEADERS, **others,
    )  # fmt: skip


class Workers(Multiprocess):
    """Processes that share a socket. They are spawned: torch's threads do not survive a fork."""

    def keep_subprocess_alive(self) -> None:
        """Start another worker for one that died, whose waiting images no longer count."""
        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        for pid in before - {process.pid for process in self.processes}:
            mark_process_dead(pid)  # type: ignore[no-untyped-call]

    def terminate_all(self) -> None:
        """Stop all workers, after this process listens no more: it would never take a connection."""
        for listener in self.sockets:
            listener.close()
        super().terminate_all()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        # Its connections inherit this: no answer waits for a client that delays the ACK of its headers.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise InvalidInputError(
            f"host={host}, port={port} cannot be opened ({reason}); give an address of this machine "
            "and a port that is free and allowed"
        ) from error


def _application(
    served: Predictor | Deployment, limits: Limits, threads: int, keys: Sequence[bytes], log: bool
) -> Guard:
    """The application of one process, whose access log goes to stdout."""
    if log:
        LOG.handlers = [logging.StreamHandler(sys.stdout)]
        LOG.setLevel(logging.INFO)
    LOG.propagate, LOG.disabled = False, not log
    predictor = served.build() if isinstance(served, Deployment) else served
    return create_app(predictor, limits, threads=threads, keys=keys)
