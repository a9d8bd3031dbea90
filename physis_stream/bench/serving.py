"""Start the product as a user does, on a free port, and stop it again by its process id; for benchmarks and tests.

Knows no engine: it runs `physis-stream serve`, reads the address that it announces and waits until it could admit.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

START_S = 120.0
STOP_S = 15.0


class ServeProcess:
    """One running server. `url` is set once it is ready; `log` holds the last lines that it wrote."""

    def __init__(self, model: str, options: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "physis_stream.cli", "serve", "--model", model, "--port", "0", *options]
        self.log: list[str] = []
        self.url = ""
        self._announced = threading.Event()
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, name="serve log", daemon=True).start()
        try:
            self._wait_announced()
            self._wait_ready()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Process id of the server; its engine is a child of it."""
        return self._process.pid

    def stop(self) -> None:
        """Ask it to end, insist after STOP_S; safe to call twice."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.log = [*self.log[-99:], line]
            match = re.search(r"https?://\S+:\d+", line)
            if match and not self.url:
                self.url = match.group(0)
                self._announced.set()
        self._announced.set()

    def _wait_announced(self) -> None:
        self._announced.wait(START_S)
        if not self.url:
            raise ValueError("the server did not come up:\n" + "".join(self.log[-20:]))

    def _wait_ready(self) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                pass
            time.sleep(0.1)
        raise ValueError("the engine did not get ready:\n" + "".join(self.log[-20:]))


@contextmanager
def served(model: str, options: Sequence[str] = ()) -> Iterator[str]:
    """Serve `model` on a free port for the length of the block; yield the URL. ValueError if it does not come up."""
    process = ServeProcess(model, options)
    try:
        yield process.url
    finally:
        process.stop()
