"""`vqshield app` as a process of its own, for pictures and tests of its page."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def running_app(before: str = "") -> Iterator[str]:
    """Its address, from when it listens until the end; before: Python that its process runs first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = f"{before}\nfrom vqshield.cli import main\nmain()"
    command = [sys.executable, "-c", program, "app", "--no-browser", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", said)
            if found is None:
                raise RuntimeError(f"the app did not start, and said {said!r}")
            yield found[0]
        finally:
            server.terminate()
