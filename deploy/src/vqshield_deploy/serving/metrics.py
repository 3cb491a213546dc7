"""What a server counts, for Prometheus."""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable with the folder where several workers keep their counts."""
SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """The counts of one application; a page of several workers adds up those of all of them."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "vqshield_requests", "Answers to /classify.", ["status"], registry=self._registry
        )
        self.abstentions = Counter("vqshield_abstentions", "Votes that abstained.", registry=self._registry)
        self.seconds = Histogram(
            "vqshield_request_seconds", "Time of /classify.", buckets=SECONDS, registry=self._registry
        )
        self.batch_sizes = Histogram(
            "vqshield_batch_size", "Images computed together.", buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self._registry,
        )  # fmt: skip
        self.queue = Gauge(
            "vqshield_queue_length", "Images that wait for the model.", registry=self._registry,
            multiprocess_mode="livesum",
        )  # fmt: skip

    def page(self) -> bytes:
        """Prometheus's text format."""
        registry = self._registry
        if SHARED in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
