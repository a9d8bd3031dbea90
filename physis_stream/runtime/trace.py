"""Traces of whole runs, one JSON object a line: what went in and out of core, how long ticks took, what the frames
were.

    {"call": "engine", ...EngineConfig}                          first line: how to build the same engine
    {"call": "serve" | "submit" | "schedule" | "complete", ...}  core's own records, see core.replay
    {"call": "image", "session", "pixels"}                       an image that a session was opened with, base64 of
    its bytes {"call": "tick", "tick", "began_ns", "rows_ns", "decode_ns", "wall_ns", "rows"}
    {"call": "chunk", "session", "epoch", "chunk", "now_ns", "opened_ns", "sha256"}   of the frames' bytes

A trace replays without a model (core decides the same again) and with it (the same plans give the same frames, bit
for bit, on the same machine with as many threads). It knows no services.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from physis_stream.core import replay as core_replay
from physis_stream.core.ids import SessionId
from physis_stream.core.plan import Plan
from physis_stream.core.trace_codec import decode
from physis_stream.runtime.clock import Clock
from physis_stream.runtime.engine_config import EngineConfig
from physis_stream.runtime.executor import ChunkKey, DecodedChunk, Executor
from physis_stream.runtime.metrics import TickTimes
from physis_stream.runtime.service import ChunkOut, Frames

Record = dict[str, Any]
_CORE_CALLS = ("serve", "submit", "schedule", "complete")


class TraceWriter:
    """Appends records to a file. Lines are complete whenever the process ends; `close` is idempotent."""

    def __init__(self, path: str | Path, config: EngineConfig) -> None:
        self._file: TextIO | None = Path(path).open("w", encoding="utf-8", buffering=1 << 16)  # noqa: SIM115 (closed by close)
        self.write({"call": "engine", **dataclasses.asdict(config)})

    def write(self, record: Record) -> None:
        """Append one record; nothing after `close`."""
        if self._file is not None:
            self._file.write(json.dumps(record, separators=(",", ":")) + "\n")

    def image(self, session: SessionId, image: Frames) -> None:
        self.write({"call": "image", "session": session, "pixels": base64.b64encode(image.tobytes()).decode("ascii")})

    def tick(self, tick: int, began_ns: int, times: TickTimes) -> None:
        self.write(
            {
                "call": "tick",
                "tick": tick,
                "began_ns": began_ns,
                "rows_ns": times.rows_ns,
                "decode_ns": times.decode_ns,
                "wall_ns": times.wall_ns,
                "rows": times.num_rows,
            }
        )

    def chunk(self, chunk: ChunkOut, opened_ns: int, now_ns: int) -> None:
        self.write(
            {
                "call": "chunk",
                "session": chunk.session,
                "epoch": chunk.epoch,
                "chunk": chunk.chunk,
                "now_ns": now_ns,
                "opened_ns": opened_ns,
                "sha256": frames_hash(chunk.frames),
            }
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def frames_hash(frames: Frames) -> str:
    """The SHA-256 of the frames' bytes, in hex."""
    return hashlib.sha256(np.ascontiguousarray(frames).tobytes()).hexdigest()


def read_trace(path: str | Path) -> Iterator[Record]:
    """Yield the records of a file. Raises ValueError naming the line that is not one; a last line cut short ends it."""
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                return
            try:
                record = json.loads(line)
            except ValueError as wrong:
                raise ValueError(f"{path} line {number} is not JSON: {wrong}") from wrong
            if not isinstance(record, dict) or "call" not in record:
                raise ValueError(f"{path} line {number} is no record of a trace")
            yield record


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay went through. `differing` are the chunks whose frames came out other than recorded."""

    commands: int
    plans: int
    rows: int
    chunks: int
    differing: tuple[ChunkKey, ...]

    @property
    def agrees(self) -> bool:
        return not self.differing


def recorded_config(path: str | Path) -> EngineConfig:
    """The configuration that a trace was recorded with; raises ValueError if it does not begin with one."""
    first = next(read_trace(path), None)
    if first is None or first.pop("call") != "engine":
        raise ValueError(f"{path} does not begin with the engine's configuration: it is no trace")
    try:
        return EngineConfig(**{**first, "trace": None})
    except TypeError as wrong:
        raise ValueError(f"{path} was recorded by another version: {wrong}") from wrong


def replay_decisions(path: str | Path) -> core_replay.Replayed:
    """Feed the commands and results to a new core, without a model. Raises Diverged where it decides otherwise."""
    return core_replay.replay(record for record in read_trace(path) if record["call"] in _CORE_CALLS)


def replay_frames(path: str | Path, executor: Executor) -> ReplayReport:
    """Carry out the recorded plans on a fresh executor and compare every chunk that was handed out.

    The executor must serve the recorded configuration with at least as many pages.
    """
    decoded: dict[ChunkKey, DecodedChunk] = {}
    commands = plans = rows = chunks = 0
    differing: list[ChunkKey] = []
    for record in read_trace(path):
        match record["call"]:
            case "submit":
                commands += 1
            case "image":
                executor.hold_image(SessionId(record["session"]), _pixels(record, executor))
            case "schedule":
                plan: Plan = decode(record["plan"])
                plans, rows = plans + 1, rows + len(plan.rows)
                decoded = executor.execute(plan).chunks
            case "chunk":
                chunks += 1
                key = (SessionId(record["session"]), record["epoch"], record["chunk"])
                if key not in decoded or frames_hash(decoded[key].frames) != record["sha256"]:
                    differing.append(key)
    return ReplayReport(commands, plans, rows, chunks, tuple(differing))


def replay_trace(path: str | Path, clock: Clock) -> ReplayReport:
    """Build the engine that a trace was recorded with and replay it: decisions first, then frames."""
    from physis_stream.runtime.engine_loop import build_engine

    replay_decisions(path)
    return replay_frames(path, build_engine(recorded_config(path), clock).executor)


def _pixels(record: Record, executor: Executor) -> Frames:
    shape = executor.image_shape
    pixels = np.frombuffer(base64.b64decode(record["pixels"]), np.uint8)
    return pixels.reshape(shape)


def export_timeline(path: str | Path, out: str | Path) -> int:
    """Write the trace as a timeline that Perfetto and chrome://tracing show; returns the number of events.

    One track shows what the engine does (model, decode, the rest), one track a session its chunks from opened to ready.
    """
    events = [event for record in read_trace(path) for event in _timeline_events(record)]
    sessions = sorted({event["tid"] for event in events if event["pid"] == 2})
    names = {name: number for number, name in enumerate(sessions, start=1)}
    for event in events:
        event["tid"] = names.get(event["tid"], event["tid"])
    for pid, title in ((1, "engine"), (2, "sessions")):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}})
    for name, number in names.items():
        events.append({"ph": "M", "name": "thread_name", "pid": 2, "tid": number, "args": {"name": name[:8]}})
    Path(out).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")
    return len(events)


def _timeline_events(record: Record) -> Iterator[Record]:
    if record["call"] == "tick":
        began, rows, decode_ns = record["began_ns"], record["rows_ns"], record["decode_ns"]
        end = began + record["wall_ns"]
        yield _span("tick", 1, 1, began, end, rows=record["rows"])
        yield _span("model", 1, 1, end - decode_ns - rows, end - decode_ns)
        yield _span("decode", 1, 1, end - decode_ns, end)
    elif record["call"] == "chunk":
        name = f"chunk {record['chunk']}"
        yield _span(name, 2, record["session"], record["opened_ns"], record["now_ns"], epoch=record["epoch"])


def _span(name: str, pid: int, tid: int | str, begin_ns: int, end_ns: int, **args: int) -> Record:
    times = {"ts": begin_ns / 1e3, "dur": (end_ns - begin_ns) / 1e3}
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, **times, "args": args}
