"""A classifier behind HTTP, for `vqshield serve`: batches, votes, limits, keys, metrics, several workers.

Importing this package without its libraries raises a MissingExtraError that names the extra `serving`.
"""

from vqshield.core.entry_points import require

for _module, _package in (
    ("fastapi", "fastapi"), ("uvicorn", "uvicorn"), ("prometheus_client", "prometheus-client"),
    ("python_multipart", "python-multipart"), ("PIL", "pillow"),
):  # fmt: skip
    require(_module, "./deploy[serving]", _package)
