"""Record what goes in and out of an engine core, and run it again elsewhere: same calls, same plans and facts.

    {"call": "serve",    "version", "specs", "limits", "priors"}            first record of a trace
    {"call": "submit",   "now_ns", "command", "facts" | "refused"}
    {"call": "schedule", "now_ns", "plan"}                                  only those that gave a plan
    {"call": "complete", "now_ns", "result", "facts"}

Records are plain data (see trace_codec); who writes them to a file is the runtime's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from physis_stream.core.commands import Command
from physis_stream.core.engine_core import EngineCore
from physis_stream.core.errors import EngineError
from physis_stream.core.events import Event
from physis_stream.core.plan import Plan, Result
from physis_stream.core.trace_codec import decode, encode

TRACE_VERSION = 1

Record = dict[str, Any]


class Diverged(Exception):
    """The replayed core answered record `index` differently: `expected` was recorded, `got` came."""

    def __init__(self, index: int, expected: Any, got: Any) -> None:
        super().__init__(f"record {index}: expected {expected!r}, got {got!r}")
        self.index, self.expected, self.got = index, expected, got


class RecordedCore:
    """An engine core whose calls are handed to `write` as records. Same methods, same answers, same errors."""

    def __init__(self, core: EngineCore, write: Callable[[Record], None]) -> None:
        """Wrap a core that has not been used yet; writes the first record."""
        self.core = core
        self._write = write
        priors = {shape: encode(prior) for shape, prior in core.priors.items()}
        specs = [encode(spec) for spec in core.specs]
        write(
            {"call": "serve", "version": TRACE_VERSION, "specs": specs, "limits": encode(core.limits), "priors": priors}
        )

    def submit(self, command: Command, now_ns: int) -> tuple[Event, ...]:
        """See EngineCore.submit; a refusal is recorded and raised."""
        record: Record = {"call": "submit", "now_ns": now_ns, "command": encode(command)}
        try:
            facts = self.core.submit(command, now_ns)
        except EngineError as refusal:
            self._write(record | {"refused": refusal.code})
            raise
        self._write(record | {"facts": encode(facts)})
        return facts

    def schedule(self, now_ns: int) -> Plan | None:
        """See EngineCore.schedule."""
        plan = self.core.schedule(now_ns)
        if plan is not None:
            self._write({"call": "schedule", "now_ns": now_ns, "plan": encode(plan)})
        return plan

    def complete(self, result: Result, now_ns: int) -> tuple[Event, ...]:
        """See EngineCore.complete."""
        facts = self.core.complete(result, now_ns)
        self._write({"call": "complete", "now_ns": now_ns, "result": encode(result), "facts": encode(facts)})
        return facts

    def next_wake_ns(self, now_ns: int) -> int | None:
        """See EngineCore.next_wake_ns; changes nothing and is not recorded."""
        return self.core.next_wake_ns(now_ns)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay that agreed went through, and the core as it stands at the end."""

    num_commands: int
    num_plans: int
    num_rows: int
    core: EngineCore


def replay(records: Iterable[Mapping[str, Any]]) -> Replayed:
    """Feed a trace to a new core and compare every answer exactly.

    Raises Diverged at the first difference, ValueError for a trace that is not one.
    """
    core: EngineCore | None = None
    commands = plans = rows = 0
    for index, record in enumerate(records):
        call = record.get("call")
        if core is None:
            core = _serve(record)
        elif call == "submit":
            commands += 1
            _replay_submit(core, record, index)
        elif call == "schedule":
            plans += 1
            plan = core.schedule(record["now_ns"])
            rows += len(plan.rows) if plan is not None else 0
            _compare(index, record["plan"], encode(plan))
        elif call == "complete":
            facts = core.complete(decode(record["result"]), record["now_ns"])
            _compare(index, record["facts"], encode(facts))
        else:
            raise ValueError(f"record {index} is a call of {call!r}")
    if core is None:
        raise ValueError("the trace is empty")
    return Replayed(commands, plans, rows, core)


def _serve(record: Mapping[str, Any]) -> EngineCore:
    if record.get("call") != "serve" or record.get("version") != TRACE_VERSION:
        raise ValueError(f"a trace of version {TRACE_VERSION} begins with how the core was made, got {record!r:.200}")
    priors = {shape: decode(prior) for shape, prior in record["priors"].items()}
    return EngineCore([decode(spec) for spec in record["specs"]], decode(record["limits"]), priors)


def _replay_submit(core: EngineCore, record: Mapping[str, Any], index: int) -> None:
    try:
        facts = core.submit(decode(record["command"]), record["now_ns"])
    except EngineError as refusal:
        _compare(index, record.get("refused"), refusal.code)
        return
    _compare(index, record.get("facts"), encode(facts))


def _compare(index: int, expected: Any, got: Any) -> None:
    if expected != got:
        raise Diverged(index, expected, got)
