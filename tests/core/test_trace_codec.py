"""Plain data and back, strictly."""

from __future__ import annotations

import json
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_stream.core import commands, events, plan
from physis_stream.core.commands import OpenSession, Pace, StepChunk
from physis_stream.core.cost_model import CostPrior
from physis_stream.core.ids import EventId, SessionId
from physis_stream.core.limits import Limits
from physis_stream.core.plan import Plan, Result
from physis_stream.core.trace_codec import decode, encode
from physis_stream.testing import strategies

KINDS = [
    *typing.get_args(commands.Command),
    *typing.get_args(events.Event),
    *typing.get_args(plan.StateOp),
    plan.Row,
    plan.Plan,
    plan.Result,
    CostPrior,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_whatever_crosses_the_seams_survives_json(kind, data):
    value = data.draw(st.builds(kind))
    copy = decode(json.loads(json.dumps(encode(value))))
    assert repr(copy) == repr(value), "compared as text, because a trace also holds the NaN that was refused"


@given(strategies.world_specs(), strategies.limits())
def test_worlds_and_limits_survive_json(spec, limits):
    assert decode(json.loads(json.dumps(encode(spec)))) == spec
    assert decode(json.loads(json.dumps(encode(limits)))) == limits


def test_a_whole_plan_survives_json(stage):
    stage.open("a")
    stage.walk("a", *[0.1] * 5)
    for made in stage.plans:
        copy = decode(json.loads(json.dumps(encode(made))))
        assert isinstance(copy, Plan)
        assert copy == made


def test_a_command_reads_like_what_it_says():
    command = StepChunk(SessionId("a"), EventId(3), (0.5,))
    assert encode(command) == {"type": "StepChunk", "session": "a", "event": 3, "action": [0.5]}
    opened = typing.cast("dict", encode(OpenSession(SessionId("a"), 1, Pace.REALTIME)))
    assert opened["pace"] == "realtime"


@pytest.mark.parametrize(
    ("plain", "complaint"),
    [
        ({"type": "StepChunk", "session": "a", "event": "3", "action": [0.5]}, "event must be int"),
        ({"type": "StepChunk", "session": "a", "event": True, "action": [0.5]}, "event must be int"),
        ({"type": "StepChunk", "session": "a", "event": 3, "action": 0.5}, "must be a list"),
        ({"type": "StepChunk", "session": "a", "event": 3, "action": ["x"]}, "must be float"),
        ({"type": "StepChunk", "session": "a", "event": 3}, "has fields"),
        ({"type": "StepChunk", "session": "a", "event": 3, "action": [], "more": 1}, "has fields"),
        ({"type": "OpenSession", "session": "a", "seed": 1, "pace": "fast", "world": None, "wait": True}, "fast"),
        ({"type": "SubmitControl", "session": "a", "event": 1, "action": None, "prompt": 7}, "prompt"),
        ({"type": "Popen", "args": ["ls"]}, "Popen"),
        ({"session": "a"}, "of type None"),
        ([1, 2], "a dict"),
        ({"type": "Result", "tick": 1, "failed": [["a"]], "rows_ns": 0, "decode_ns": 0}, "2 items"),
        (
            {"type": "Plan", "tick": 0, "shape_key": "", "ops": [{"type": "CostPrior"}], "rows": [], "decodes": []},
            "fields",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_words(plain, complaint):
    with pytest.raises(ValueError, match=complaint):
        decode(plain)


def test_an_object_of_the_wrong_kind_is_refused_where_another_is_due():
    limits = encode(Limits())
    with pytest.raises(ValueError, match="is a Limits"):
        decode({"type": "Plan", "tick": 0, "shape_key": "", "ops": [limits], "rows": [], "decodes": []})
    with pytest.raises(ValueError, match="is a Limits"):
        decode({"type": "Plan", "tick": 0, "shape_key": "", "ops": [], "rows": [limits], "decodes": []})


def test_what_traces_do_not_hold_is_not_encoded():
    for value in (object(), {"a": 1}, [1], b"bytes"):
        with pytest.raises(TypeError, match="does not hold"):
            encode(value)


def test_results_name_sessions_and_reasons():
    result = Result(plan.TickIndex(4), ((SessionId("a"), "broke"),), 5, 6)
    assert decode(encode(result)) == result
