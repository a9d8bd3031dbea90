"""The contract of core as literals: traces, the runtime and the wire are written against these names.

A change here is a change of the contract: raise `replay.TRACE_VERSION`, and tell whoever sits on the other side.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing

from physis_stream import testing
from physis_stream.core import commands, errors, events, plan
from physis_stream.core.engine_core import CoreStats, EngineCore
from physis_stream.core.replay import TRACE_VERSION
from physis_stream.core.session import State

COMMANDS = {
    "OpenSession": "session seed pace world wait",
    "CloseSession": "session reason",
    "SubmitControl": "session event action prompt",
    "StepChunk": "session event action",
    "ResetSession": "session seed",
    "PauseSession": "session",
    "SuspendSession": "session",
    "ResumeSession": "session",
    "ForkSession": "session children",
    "TakeSnapshot": "session snapshot",
    "RestoreSnapshot": "session snapshot",
    "DropSnapshot": "snapshot",
    "ReportPlayout": "session buffered_ns",
}

EVENTS = {
    "SessionQueued": "session position reason",
    "SessionOpened": "session",
    "StateChanged": "session state epoch",
    "ChunkReady": "session epoch chunk index_in_life applied opened_ns due_ns",
    "SessionForked": "session children chunk",
    "SnapshotTaken": "session snapshot chunk",
    "SnapshotRestored": "session snapshot epoch chunk",
    "ControlIgnored": "session event newest",
    "RequestDropped": "session kind key reason",
    "SessionFailed": "session reason",
    "SessionClosed": "session reason",
}

PLAN = {
    "StartState": "session epoch seed",
    "CloneState": "source target",
    "DropState": "target",
    "Plan": "tick shape_key ops rows decodes",
    "Row": "session epoch chunk step role position context write control noise_key",
    "ContextChunk": "chunk version position pages",
    "Control": "action prompt applied",
    "Decode": "session epoch chunk first",
    "Result": "tick failed rows_ns decode_ns",
}


def fields_of(*kinds: type) -> dict[str, str]:
    return {kind.__name__: " ".join(field.name for field in dataclasses.fields(kind)) for kind in kinds}


def test_commands_keep_their_names_and_fields():
    assert fields_of(*typing.get_args(commands.Command)) == COMMANDS


def test_events_keep_their_names_and_fields():
    assert fields_of(*typing.get_args(events.Event)) == EVENTS


def test_plans_and_results_keep_their_names_and_fields():
    kinds = (*typing.get_args(plan.StateOp), plan.Plan, plan.Row, plan.ContextChunk, plan.Control, plan.Decode)
    assert fields_of(*kinds, plan.Result) == PLAN
    assert [role.value for role in plan.Role] == ["denoise", "commit", "prime"]


def test_everything_that_crosses_a_seam_is_frozen():
    kinds = (*typing.get_args(commands.Command), *typing.get_args(events.Event), plan.Plan, plan.Row, plan.Result)
    assert all(kind.__dataclass_params__.frozen for kind in kinds)


def test_states_and_paces_keep_their_names():
    states = ["queued", "starting", "ready", "streaming", "paused", "reconnecting", "failed", "ended"]
    assert [state.value for state in State] == states
    assert [pace.value for pace in commands.Pace] == ["realtime", "lockstep"]


def test_refusals_keep_their_codes():
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.EngineError)]
    assert {kind.__name__: kind.code for kind in kinds} == {
        "EngineError": "internal",
        "InvalidAction": "invalid_action",
        "InvalidState": "invalid_state",
        "NotFound": "not_found",
        "Capacity": "capacity",
        "TooLarge": "too_large",
        "SessionEnded": "session_ended",
        "EngineDown": "engine_down",
    }


def test_the_facade_keeps_its_signatures():
    signatures = {
        name: str(inspect.signature(getattr(EngineCore, name)))
        for name in ("submit", "schedule", "complete", "next_wake_ns", "check_integrity", "stats", "num_pages")
    }
    assert signatures == {
        "submit": "(self, command: 'cmd.Command', now_ns: 'int') -> 'tuple[Event, ...]'",
        "schedule": "(self, now_ns: 'int') -> 'Plan | None'",
        "complete": "(self, result: 'Result', now_ns: 'int') -> 'tuple[Event, ...]'",
        "next_wake_ns": "(self, now_ns: 'int') -> 'int | None'",
        "check_integrity": "(self) -> 'None'",
        "stats": "(self) -> 'CoreStats'",
        "num_pages": "(self, world: 'str | None' = None) -> 'int'",
    }
    assert "late_chunks" in fields_of(CoreStats)["CoreStats"].split()


def test_the_trace_version_is_known():
    assert TRACE_VERSION == 1


def test_the_test_kit_offers_what_it_lists_without_hypothesis_or_torch():
    assert all(hasattr(testing, name) for name in testing.__all__)
    sources = [inspect.getsource(inspect.getmodule(getattr(testing, name))) for name in testing.__all__]
    for forbidden in ("import hypothesis", "from hypothesis", "import torch", "import numpy"):
        assert not any(forbidden in source for source in sources)
