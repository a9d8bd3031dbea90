"""`physis-stream trace`: record a run of the engine, replay it, or turn it into a timeline for Perfetto."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from physis_stream.cli import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="record|replay|view", required=True)
    record = actions.add_parser("record", help="drive a few sessions in lockstep and record the run")
    record.add_argument("file", type=Path)
    record.add_argument("--model", default="pusht", help="the world (default: pusht)")
    record.add_argument("--sessions", type=int, default=4, help="sessions side by side (4)")
    record.add_argument("--chunks", type=int, default=50, help="chunks of each session (50)")
    record.add_argument("--discipline", help="clean, cascade or same_step (default: the profile's)")
    replay = actions.add_parser("replay", help="decide it all again, then compare every frame")
    replay.add_argument("file", type=Path)
    replay.add_argument("--decisions-only", action="store_true", help="without the model: scheduler and pages alone")
    view = actions.add_parser("view", help="write a timeline that Perfetto and chrome://tracing open")
    view.add_argument("file", type=Path)
    view.add_argument("out", type=Path)


def run(args: argparse.Namespace) -> int:
    if args.action != "record" and not args.file.is_file():
        raise UsageError(f"there is no trace at {args.file}: record one with `physis-stream trace record FILE`")
    try:
        return {"record": _record, "replay": _replay, "view": _view}[args.action](args)
    except (ValueError, OSError) as wrong:
        raise UsageError(str(wrong)) from wrong


def _record(args: argparse.Namespace) -> int:
    from tqdm import trange

    import physis_stream as ps

    if args.sessions < 1 or args.chunks < 1:
        raise UsageError("--sessions and --chunks must be at least 1")
    with ps.Engine(args.model, discipline=args.discipline, max_sessions=args.sessions, trace=args.file) as engine:
        low, high = engine.world.action["low"], engine.world.action["high"]
        sessions = [engine.open_session(seed=seed) for seed in range(args.sessions)]
        for k in trange(args.chunks, desc="recording", unit="chunk"):
            actions = [_circling(low, high, k / 40 + place / len(sessions)) for place in range(len(sessions))]
            engine.step_many(sessions, actions)
    print(f"{args.file}: {args.sessions} sessions of {args.chunks} chunks")
    return 0


def _circling(low: tuple[float, ...], high: tuple[float, ...], turns: float) -> list[float]:
    """An action that goes round the middle of the action space; each next pair of numbers a quarter turn on."""
    return [
        (lo + hi) / 2 + 0.3 * (hi - lo) * math.cos(2 * math.pi * (turns - index / 4))
        for index, (lo, hi) in enumerate(zip(low, high, strict=True))
    ]


def _replay(args: argparse.Namespace) -> int:
    from physis_stream.core.replay import Diverged
    from physis_stream.runtime import trace
    from physis_stream.runtime.clock import RealClock

    try:
        if args.decisions_only:
            decided = trace.replay_decisions(args.file)
            print(f"{decided.num_commands} commands, {decided.num_plans} plans, {decided.num_rows} rows: decided alike")
            return 0
        report = trace.replay_trace(args.file, RealClock())
    except Diverged as diverged:
        print(f"the replay decides otherwise at {diverged}")
        return 1
    same = report.chunks - len(report.differing)
    print(
        f"{report.commands} commands, {report.plans} plans, {report.rows} rows; {same} of {report.chunks} chunks agree"
    )
    return 0 if report.agrees else 1


def _view(args: argparse.Namespace) -> int:
    from physis_stream.runtime.trace import export_timeline

    print(f"{args.out}: {export_timeline(args.file, args.out)} events")
    return 0
