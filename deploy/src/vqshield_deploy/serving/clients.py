"""Who may ask, and how often."""

import hashlib
import hmac
import ipaddress
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

from vqshield.core.errors import InvalidInputError

KEYS = "VQSHIELD_API_KEYS"
"""The environment variable with API keys, where no file has them."""
_KEY = re.compile(r"[!-~]{16,256}")
_MOST_CLIENTS = 1 << 16  # buckets that are kept; the one that was used longest ago goes first


def read_keys(file: Path | None) -> tuple[bytes, ...]:
    """SHA-256 digests of the API keys in a file, one per line, or in the environment; empty: none are set."""
    text = os.environ.get(KEYS, "") if file is None else file.read_bytes().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    place = f"{KEYS} (environment)" if file is None else str(file)
    if file is not None and not keys:
        raise InvalidInputError(f"{place} has no API key; give one per line, or leave the file out")
    for number, key in enumerate(keys, 1):
        if not _KEY.fullmatch(key):  # the message must not show the key
            raise InvalidInputError(
                f"{place}: API key {number} has {len(key)} characters; a key has 16 to 256 printable ASCII "
                "characters without spaces, as in the output of: openssl rand -hex 32"
            )
    return tuple(hashlib.sha256(key.encode()).digest() for key in keys)


def key_of(headers: Iterable[tuple[bytes, bytes]], keys: Sequence[bytes]) -> str | None:
    """A short name of the key in "Authorization: Bearer KEY"; None: it is none of the keys.

    The comparison takes the same time for every key of one length.
    """
    given = [value for name, value in headers if name.lower() == b"authorization"]
    scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
    digest, known = hashlib.sha256(token.strip()).digest(), False
    for key in keys:
        known |= hmac.compare_digest(key, digest)
    return f"key {digest.hex()[:8]}" if known and scheme.lower() == b"bearer" else None


def address_of(host: str) -> str:
    """An address as a client is counted by: of IPv6 the network /64, which one subscriber has."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a socket without an address
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return str(getattr(address, "ipv4_mapped", None) or address)


class TokenBuckets:
    """A rate per client: each has a bucket of tokens that fills evenly, and a request takes one.

    Args:
        rate: tokens per second that a bucket gains; 0: without a limit.
        burst: tokens that it holds at most, and at first.
        most: buckets that are kept.
    """

    def __init__(self, rate: float, burst: int, most: int = _MOST_CLIENTS) -> None:
        self._rate, self._burst, self._most = rate, burst, most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, when

    def wait(self, client: str, now: float) -> float:
        """Take a token: 0, or the seconds until the client has one."""
        if not self._rate:
            return 0
        tokens, then = self._buckets.pop(client, (float(self._burst), now))
        tokens = min(self._burst, tokens + (now - then) * self._rate)
        short = max(1 - tokens, 0)
        self._buckets[client] = (tokens if short else tokens - 1, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return short / self._rate

    def __len__(self) -> int:
        return len(self._buckets)
