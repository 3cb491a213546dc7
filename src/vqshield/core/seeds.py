"""Seeds derived from seeds: every purpose has draws that no other purpose sees, and all repeat.

The bits are part of the records' format: a change here would change every recorded figure.
"""

import hashlib
import json


def derived_seed(*parts: int | str) -> int:
    """63 bits that depend on all the parts; other parts give unrelated bits."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


def purpose_seed(seed: int, purpose: str) -> int:
    """64 bits for one purpose of an audit, whose journals were written with these."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:8])
