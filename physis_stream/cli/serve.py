"""`physis-stream serve`: the server in this process, the engine in its own, on loopback unless told otherwise."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from pathlib import Path

from physis_stream.cli import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="pusht", help="a world that ships, or a folder (default: pusht)")
    parser.add_argument("--host", default="127.0.0.1", help="any other bind than loopback demands --token-file")
    parser.add_argument("--port", type=int, default=8080, help="0 takes a free one (default: 8080)")
    parser.add_argument("--max-sessions", type=int, default=64, metavar="N", help="resident sessions at most (64)")
    parser.add_argument("--discipline", help="clean, cascade or same_step (default: the profile's)")
    parser.add_argument("--threads", type=int, metavar="N", help="torch threads (default: leave a core to encoders)")
    parser.add_argument("--token-file", type=Path, metavar="F", help="who opens sessions must know the token in it")
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help="a further Host header")
    parser.add_argument("--allow-origin", action="append", default=[], metavar="URL", help="a further page's origin")
    parser.add_argument("--in-process", action="store_true", help="run the engine in a thread of this process")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="record commands, plans and results")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


def run(args: argparse.Namespace) -> int:
    from physis_stream import worlds
    from physis_stream.runtime.engine_config import EngineConfig
    from physis_stream.runtime.engine_process import ProcessEngine
    from physis_stream.runtime.engine_thread import ThreadEngine
    from physis_stream.server.serve import StartFailed
    from physis_stream.server.serve import run as serve
    from physis_stream.server.settings import ServerSettings, read_token_file

    try:
        worlds.load_profile(args.model)
        settings = ServerSettings(
            host=args.host,
            port=args.port,
            token=read_token_file(args.token_file) if args.token_file else None,
            allowed_hosts=tuple(args.allow_host),
            allowed_origins=tuple(args.allow_origin),
        )
        config = EngineConfig(
            world=args.model,
            discipline=args.discipline,
            threads=args.threads,
            spare_cores=1,
            max_sessions=args.max_sessions,
            trace=str(args.trace.resolve()) if args.trace else None,
        )
        engine = ThreadEngine(config) if args.in_process else ProcessEngine(config)

        def announce(said: str) -> None:
            print(said, flush=True)
            if args.open and _has_display():
                webbrowser.open(said.rsplit(" ", 1)[-1])

        serve(engine, settings, announce=announce)
    except ValueError as wrong:
        raise UsageError(str(wrong)) from wrong
    except StartFailed as failed:
        print(f"physis-stream serve: {failed}", file=sys.stderr)
        return 1
    return 0


def _has_display() -> bool:
    return os.name == "nt" or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY", "TERM_PROGRAM"))
