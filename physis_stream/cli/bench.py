"""`physis-stream bench`: run one benchmark, print its table, write its JSON."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

from physis_stream.cli import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="capacity|latency|world", required=True)
    capacity = kinds.add_parser("capacity", help="sessions at the service level, against serving one after the other")
    latency = kinds.add_parser("latency", help="control-to-photon in a real browser on loopback")
    world = kinds.add_parser("world", help="fidelity against the simulator")
    world.add_argument("name", nargs="?", default="pusht", help="a world that ships, or a folder (default: pusht)")
    world.add_argument("--discipline", help="clean, cascade or same_step (default: the profile's)")
    for one in (capacity, latency):
        one.add_argument("--model", default="pusht", help="the world to serve (default: pusht)")
    for one in (capacity, latency, world):
        one.add_argument("--quick", action="store_true", help="under 45 seconds: fewer runs, same keys")
        one.add_argument("--json", type=Path, metavar="FILE", help="write the result here")


def run(args: argparse.Namespace) -> int:
    from physis_stream.bench.machine import commit, machine
    from physis_stream.bench.report import lines, write_json

    if args.json is not None and not args.json.resolve().parent.is_dir():
        raise UsageError(f"--json {args.json}: the folder {args.json.resolve().parent} does not exist; make it first")
    module = importlib.import_module(f"physis_stream.bench.{args.kind}")
    options: dict[str, Any] = {"quick": args.quick}
    if args.kind == "world":
        options |= {"name": args.name, "discipline": args.discipline}
    else:
        options |= {"name": args.model}
    try:
        result = {"bench": args.kind, **module.run(**options)}
    except ValueError as wrong:
        raise UsageError(str(wrong)) from wrong
    result.setdefault("machine", machine())
    result.setdefault("commit", commit())
    print("\n".join(lines(result)))
    if args.json is not None:
        write_json(json.loads(json.dumps(result)), args.json)
    return 0
