"""A server of our own on a free loopback port, as a child process that is gone afterwards, whatever happens."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

START_S = 90.0


@dataclass(frozen=True)
class RunningServer:
    url: str
    pid: int


@contextlib.contextmanager
def server_under_test(*arguments: str) -> Iterator[RunningServer]:
    """Start `physis-stream serve --port 0 ...`, wait until it announces its URL, and stop it by its process id."""
    child = subprocess.Popen(
        [sys.executable, "-m", "physis_stream.cli", "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        yield RunningServer(_announced(child), child.pid)
    finally:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _announced(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    deadline = time.monotonic() + START_S
    for line in child.stdout:
        if found := re.search(r"https?://[\w.:\[\]]+", line):
            return found.group()
        if time.monotonic() > deadline:
            break
    raise RuntimeError(f"the server did not announce its address (exit code {child.poll()})")
