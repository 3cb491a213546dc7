"""What a server takes of its clients, and for how long."""

from dataclasses import dataclass

from vqshield.core import checks

FORM_BYTES = 4096  # what a form may take besides its file


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server takes, and for how long. Beyond a limit, a request is refused with a message.

    Attributes:
        max_bytes: refuse uploads of more bytes.
        max_pixels: refuse images of more pixels, by their header.
        max_batch: compute at most this many images together.
        wait_ms: let a batch wait this many milliseconds for more images.
        queue: refuse images while this many wait for the model.
        connections: refuse requests while this many run; also bounds the connections that wait for one.
        receive_s: end a request that takes more seconds to arrive.
        answer_s: refuse a request whose answer takes more seconds.
        rate: requests per second that a client may send on average to each worker; 0: no limit.
        burst: requests that a client may send at once.

    Raises:
        InvalidInputError: a limit out of range.
    """

    max_bytes: int = 4 << 20
    max_pixels: int = 16_000_000
    max_batch: int = 16
    wait_ms: float = 2.0
    queue: int = 64
    connections: int = 256
    receive_s: float = 30.0
    answer_s: float = 30.0
    rate: float = 0.0
    burst: int = 10

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_pixels", "max_batch", "queue", "connections", "burst"):
            checks.whole(name, getattr(self, name), least=1)
        for name in ("wait_ms", "rate"):
            checks.real(name, getattr(self, name))
        for name in ("receive_s", "answer_s"):
            checks.real(name, getattr(self, name), least=0.001)
