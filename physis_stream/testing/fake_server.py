"""`python -m physis_stream.testing.fake_server --port N`.

The real server over the fake engine, for page and client work.
"""

from __future__ import annotations

import argparse

from physis_stream.server.serve import run
from physis_stream.server.settings import ServerSettings
from physis_stream.testing.fake_service import FakeEngineService


def main() -> None:
    parser = argparse.ArgumentParser(description="serve a square that moves to where the action points; no model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--max-sessions", type=int, default=8)
    parser.add_argument("--chunk-frames", type=int, default=3)
    parser.add_argument("--fps", type=float, default=10.0)
    asked = parser.parse_args()
    service = FakeEngineService(fps=asked.fps, chunk_frames=asked.chunk_frames, max_sessions=asked.max_sessions)
    run(service, ServerSettings(host=asked.host, port=asked.port), announce=lambda said: print(said, flush=True))


if __name__ == "__main__":
    main()
