"""The engine's process and its parent: neither outlives the other, and the parent's side stays light."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from physis_stream.models.tiny.weights import save_folder, tiny_random


@pytest.fixture
def world(tmp_path) -> str:
    save_folder(tiny_random(window=3), tmp_path / "tiny")
    return str(tmp_path / "tiny")


def test_a_child_does_not_outlive_its_parent(world, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio
            from physis_stream.runtime.engine_config import EngineConfig
            from physis_stream.runtime.engine_process import ProcessEngine

            async def main():
                service = ProcessEngine(EngineConfig(world={world!r}, threads=1, dtype="float32"))
                await service.start()
                print(service.process_id, service._child.ring.name, flush=True)
                await asyncio.sleep(600)

            if __name__ == "__main__":
                asyncio.run(main())
            """
        )
    )
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'clients/python'}"}
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        child_id, ring = parent.stdout.readline().split()
        child = psutil.Process(int(child_id))
        parent.kill()
        parent.wait(10)
        child.wait(10)
        deadline = time.monotonic() + 10
        while (Path("/dev/shm") / ring).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not (Path("/dev/shm") / ring).exists()
    finally:
        parent.kill()
        parent.stdout.close()


def test_the_server_side_of_the_process_engine_needs_no_torch():
    code = "import sys, physis_stream.runtime.engine_process; sys.exit('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'clients/python'}"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
