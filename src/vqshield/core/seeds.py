"""Seeds derived from seeds: every purpose has draws that no other purpose sees, and all repeat.

The bits are part of the records' format: a change here would change every recorded result.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derived_seed(*parts: int | str) -> int:
    """63 bits that depend on all the parts; other parts give unrelated bits."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


def purpose_seed(seed: int, purpose: str) -> int:
    """64 bits for one purpose of an audit, whose journals were written with these."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:8])


@contextmanager
def torch_seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's own generators for this context; afterwards they are as before.

    Nothing of vqshield draws from them; a random classifier, or another library's attack, may.

    Args:
        seed: of all of them.
        device: seeds the generators of the CPU and of this device alone (None: of all devices).
    """
    gpus = [each for each in (device,) if each is not None and each.type == "cuda"]
    with torch.random.fork_rng(devices=None if device is None else gpus):
        if device is None:
            torch.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield
