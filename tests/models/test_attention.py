"""The dense oracle says what the context rule says, and a cached rollout is the dense sequence."""

import pytest
import torch

from physis_stream.core.context_rule import ContextRule, Discipline
from physis_stream.models.attention import DenseAttention, Groups
from physis_stream.models.rope import rope_table, rotate
from physis_stream.models.tiny.weights import tiny_random
from physis_stream.training.rollout import Rollout, Sampling

RULES = [
    ContextRule(Discipline.CLEAN, 3, 4, True),
    ContextRule(Discipline.CASCADE, 3, 4, True),
    ContextRule(Discipline.CASCADE, 3, 4, False),
    ContextRule(Discipline.SAME_STEP, 3, 4, False),
]


def sees(rule, frames, frame, version):
    groups = Groups.of(rule, frames)
    pairs = list(zip(groups.frames, groups.versions, strict=True))
    row = groups.allowed(rule)[pairs.index((frame, version))]
    return [pair for pair, allowed in zip(pairs, row, strict=True) if allowed]


def test_cascade_looks_along_the_diagonal_and_at_clean_frames_further_back():
    rule = ContextRule(Discipline.CASCADE, 3, 5, True)
    assert sees(rule, 8, 7, 0) == [(2, 3), (3, 3), (4, 2), (5, 1), (6, 0), (7, 0)]


def test_clean_looks_at_committed_frames_only():
    rule = ContextRule(Discipline.CLEAN, 2, 2, True)
    assert sees(rule, 5, 4, 1) == [(2, 2), (3, 2), (4, 1)]


def test_a_primed_frame_is_seen_clean_by_every_step():
    rule = ContextRule(Discipline.SAME_STEP, 2, 4, False)
    assert sees(rule, 3, 2, 0) == [(0, 1), (1, 0), (2, 0)]


def test_rope_depends_on_differences_only():
    cos, sin = rope_table(8, 2, 2, 16)
    q, k = torch.randn(2, 4, 1, 16, generator=torch.Generator().manual_seed(0))

    def score(at_q, at_k):
        a = rotate(q, cos[at_q][:, None], sin[at_q][:, None])
        b = rotate(k, cos[at_k][:, None], sin[at_k][:, None])
        return (a * b).sum(-1)

    torch.testing.assert_close(score(3, 1), score(7, 5), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(score(3, 1), score(3, 2), atol=1e-3)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.discipline}-{rule.commit}")
def test_a_cached_rollout_is_the_dense_sequence(rule):
    """Every row of a rollout with a cache gives the velocity that the whole sequence gives at once."""
    frames = 8
    model = tiny_random(window=rule.window).transformer
    recorded = {}

    class Recording(Rollout):
        def _forward(self, x, level, action, version):
            velocity = super()._forward(x, level, action, version)
            recorded[self.frame, version] = (x, torch.full(x.shape[:1], level), action, velocity)
            return velocity

    rollout = Recording(model, Sampling(rule, (1.0, 0.8, 0.5), 0.1), seed=4)
    random = torch.Generator().manual_seed(1)
    rollout.prime(torch.randn(2, 5, 12, 12, generator=random), torch.full((2, 2), 256.0))
    for _ in range(frames - 1):
        rollout.step(torch.rand(2, 2, generator=random) * 512)
    groups = Groups.of(rule, frames)
    order = [recorded[pair] for pair in zip(groups.frames, groups.versions, strict=True)]
    x, t, action, cached = (torch.stack(column, 1).flatten(0, 1) for column in zip(*order, strict=True))
    attend = DenseAttention(groups, rule, rope_table(frames, 4, 4, 32, placeless=1))
    torch.testing.assert_close(model(x, t, action, attend), cached, atol=2e-4, rtol=1e-3)
