"""A profile is read whole or refused by name."""

import json

import pytest

from physis_stream.core.context_rule import ContextRule, Discipline
from physis_stream.models.profile import ProfileError, WorldError, parse_profile, profile_json, read_profile
from physis_stream.models.tiny.weights import tiny_random

PROFILE = tiny_random().profile


def changed(**fields):
    content = json.loads(profile_json(PROFILE))
    for name, value in fields.items():
        if value is None:
            del content[name]
        else:
            content[name] = value
    return json.dumps(content)


def test_text_and_back_is_the_same_profile():
    assert parse_profile(profile_json(PROFILE)) == PROFILE


def test_missing_fields_are_named_all_at_once():
    with pytest.raises(ProfileError, match=r"lacks levels, window"):
        parse_profile(changed(levels=None, window=None))


def test_title_and_description_may_be_left_out():
    plain = parse_profile(changed(title=None, description=None))
    assert (plain.title, plain.description) == ("", "")
    named = parse_profile(changed(title="Push-T", description="Push the T."))
    assert (named.title, named.description) == ("Push-T", "Push the T.")


def test_unknown_fields_are_named():
    with pytest.raises(ProfileError, match="unknown fields guidance"):
        parse_profile(changed(guidance=3.0))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"levels": [1.0, 0.5]}, "levels has 2 entries, num_steps is 3"),
        ({"levels": [0.5, 0.8, 1.0]}, "levels must fall"),
        ({"levels": "1.0"}, "must be a list"),
        ({"window": 0}, "window must be positive"),
        ({"window": True}, "must be int"),
        ({"fps": "ten"}, "must be float"),
        ({"commit_level": 2.0}, "commit_level must lie in 0..1"),
        ({"renoise": "maybe"}, "expected one of fresh, implied"),
        ({"rules": []}, "rules is empty"),
        ({"rules": [{"discipline": "dirty", "commit": True}]}, "expected one of clean, cascade, same_step"),
        ({"latent": [8, 12]}, "must have 3 entries"),
        (
            {"action": {"names": ["x"], "low": [0.0], "high": [0.0], "default": [0.0], "combine": "latest"}},
            "low < high must hold",
        ),
        ({"readout": {"names": ["a"], "units": [], "angles": []}}, "names and units differ"),
    ],
)
def test_wrong_values_are_refused_with_the_reason(fields, complaint):
    with pytest.raises(ProfileError, match=complaint):
        parse_profile(changed(**fields))


def test_what_is_not_json_is_refused():
    with pytest.raises(ProfileError, match="is not JSON"):
        parse_profile("{")


def test_a_folder_without_profile_is_told_what_one_holds(tmp_path):
    with pytest.raises(WorldError, match=r"no profile\.json.*num_steps"):
        read_profile(tmp_path)


def test_the_first_rule_is_the_default_and_others_can_be_asked_for():
    assert PROFILE.rule() == ContextRule(Discipline.CASCADE, 3, 6, True)
    assert PROFILE.rule("clean") == ContextRule(Discipline.CLEAN, 3, 6, True)
    assert PROFILE.rule("cascade", False) == ContextRule(Discipline.CASCADE, 3, 6, False)


def test_a_rule_the_weights_were_not_trained_for_is_refused_with_the_choice():
    with pytest.raises(ProfileError, match=r"choose one of: cascade \(commit=true\)"):
        PROFILE.rule("same_step", True)
