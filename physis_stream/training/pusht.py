"""The recipe of the world `pusht`: gym-pusht at 96x96, played so that the block is touched about half of the time.

Random pointers seldom touch the block, and contact is what has to be learned. An episode is a chain of short
behaviours, each of which moves the *target* (the action) as a person's pointer would: pushing through the block from
any side at any speed, following it, pushing it towards its goal, wandering, jumping, resting. Lengths are in the
environment's 512 units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from physis_stream.training.recipe import Frame, Policy, Recipe, StateSpec, Vector

SIZE = 96
ARENA = 512.0
GOAL = np.array([256.0, 256.0])
STATE = StateSpec(
    names=("agent_x", "agent_y", "block_x", "block_y", "block_angle", "reward"),
    units=("px/512", "px/512", "px/512", "px/512", "rad", "coverage/0.95"),
    angles=(4,),
)
Point = NDArray[np.float64]


def _state(env: gymnasium.Env[Any, Any], reward: float) -> Vector:
    world = cast(Any, env.unwrapped)
    angle = (world.block.angle + np.pi) % (2 * np.pi) - np.pi
    return np.array([*world.agent.position, *world.block.position, angle, reward], np.float32)


def _coverage(env: gymnasium.Env[Any, Any]) -> float:
    world = cast(Any, env.unwrapped)
    return float(np.clip(world._get_coverage() / world.success_threshold, 0.0, 1.0))


def make() -> gymnasium.Env[Any, Any]:
    """Make the environment, without its time limit and without rendering on every step."""
    import gym_pusht  # noqa: F401  (registers the environment)

    return gymnasium.make("gym_pusht/PushT-v0", obs_type="state", render_mode="rgb_array", disable_env_checker=True)


def reset(env: gymnasium.Env[Any, Any], rng: np.random.Generator) -> Vector:
    """Begin from the environment's own distribution half of the time, from a wider one (walls, corners) otherwise."""
    options = None
    if rng.random() < 0.5:
        block, agent = rng.uniform(70, 442, 2), rng.uniform(20, 492, 2)
        if rng.random() < 0.35:
            block = GOAL + rng.normal(0, 45, 2)
        options = {"reset_to_state": [*agent, *block, rng.uniform(-np.pi, np.pi)]}
    env.reset(seed=int(rng.integers(2**31)), options=options)
    return _state(env, _coverage(env))


def step(env: gymnasium.Env[Any, Any], action: Vector) -> tuple[Vector, bool]:
    """Advance by 0.1 s towards the target; success does not end an episode, since nothing ends in a live session."""
    reward = float(env.unwrapped.step(action.astype(np.float64))[1])
    return _state(env, reward), False


def frame(env: gymnasium.Env[Any, Any]) -> Frame:
    """Draw the environment at 96x96."""
    return np.ascontiguousarray(cast(Any, env.unwrapped)._render())


def set_state(env: gymnasium.Env[Any, Any], agent: Point, block: Point, angle: float) -> None:
    """Put the agent at rest and the block at the pose *as `state` reports it* (the environment's own setter does
    not)."""
    world = cast(Any, env.unwrapped)
    world.agent.position, world.agent.velocity = agent.tolist(), (0.0, 0.0)
    world.block.angle = float(angle)
    world.block.position = block.tolist()
    world.space.reindex_shapes_for_body(world.block)
    world.space.reindex_shapes_for_body(world.agent)


class PointerPolicy:
    """Chains behaviours until the episode ends. `weights` are relative: push, goal, follow, wander, jump, rest."""

    def __init__(self, rng: np.random.Generator, weights: tuple[float, ...]) -> None:
        self._rng = rng
        self._weights = np.array(weights) / sum(weights)
        self._state: Point = np.zeros(6)
        self._target: Point | None = None
        self._running: Iterator[Point] = iter(())

    def __call__(self, state: Vector) -> Vector:
        self._state = state.astype(np.float64)
        if self._target is None:
            self._target = self._state[:2]
        point = next(self._running, None)
        while point is None:
            behaviours: list[Callable[[], Iterator[Point]]] = [
                self._push, self._goal, self._follow, self._wander, self._jump, self._rest,
            ]  # fmt: skip
            self._running = behaviours[self._rng.choice(len(behaviours), p=self._weights)]()
            point = next(self._running, None)
        self._target = np.clip(point, 0.0, ARENA)
        return self._target.astype(np.float32)

    def _centre(self) -> Point:
        angle = self._state[4]
        return self._state[2:4] + 45.0 * np.array([-np.sin(angle), np.cos(angle)])

    def _on_block(self) -> Point:
        """Draw a point of the T, uniformly over its bar and stem."""
        rng, angle = self._rng, self._state[4]
        bar = rng.random() < 0.55
        local = np.array(
            [rng.uniform(-60, 60), rng.uniform(0, 30)] if bar else [rng.uniform(-15, 15), rng.uniform(30, 120)]
        )
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        point: Point = self._state[2:4] + turn @ local
        return point

    def _line(self, goal: Point, speed: float) -> Iterator[Point]:
        assert self._target is not None
        start = self._target.copy()
        count = max(1, int(np.ceil(np.linalg.norm(goal - start) / speed)))
        for k in range(1, count + 1):
            yield start + (goal - start) * k / count

    def _push(self) -> Iterator[Point]:
        """Stroke through a point of the block from a random side, or from where the pointer is."""
        rng = self._rng
        speed = float(np.exp(rng.uniform(np.log(6), np.log(70))))
        point = self._on_block()
        if rng.random() < 0.5:
            heading = rng.uniform(0, 2 * np.pi)
            side = np.array([np.cos(heading), np.sin(heading)])
            yield from self._line(point - side * rng.uniform(60, 130), float(rng.uniform(20, 90)))
            point = self._on_block()
        assert self._target is not None
        along = point - self._target
        along /= np.linalg.norm(along) + 1e-6
        yield from self._line(point + along * rng.uniform(0, 140), speed)

    def _goal(self) -> Iterator[Point]:
        """Go behind the block as seen from its goal and push, as a player who wants the reward does."""
        rng = self._rng
        for _ in range(int(rng.integers(1, 4))):
            to_goal = GOAL + rng.normal(0, 25, 2) - self._centre()
            heading = to_goal / (np.linalg.norm(to_goal) + 1e-6)
            side = np.array([-heading[1], heading[0]]) * rng.uniform(-45, 45)
            yield from self._line(self._centre() - heading * 105 + side, float(rng.uniform(20, 60)))
            stroke = min(float(np.linalg.norm(to_goal)), 150.0)
            yield from self._line(self._centre() - heading * 30 + side + heading * stroke, float(rng.uniform(5, 25)))

    def _follow(self) -> Iterator[Point]:
        """Keep the pointer at a slowly moving offset from the block's centre, pushing it ahead."""
        rng = self._rng
        offset, drift = rng.normal(0, 40, 2), rng.normal(0, 6, 2)
        assert self._target is not None
        for _ in range(int(rng.integers(6, 20))):
            offset = offset + drift
            yield self._target + 0.35 * (self._centre() + offset - self._target)

    def _wander(self) -> Iterator[Point]:
        rng = self._rng
        velocity = rng.normal(0, 18, 2)
        assert self._target is not None
        point = self._target.copy()
        for _ in range(int(rng.integers(5, 20))):
            velocity = 0.9 * velocity + rng.normal(0, 7, 2) + 0.01 * (GOAL - point)
            point = point + velocity
            yield point

    def _jump(self) -> Iterator[Point]:
        rng = self._rng
        for _ in range(int(rng.integers(1, 4))):
            point = self._on_block() if rng.random() < 0.3 else rng.uniform(0, ARENA, 2)
            for _ in range(int(rng.integers(1, 7))):
                yield point

    def _rest(self) -> Iterator[Point]:
        assert self._target is not None
        point = self._state[:2].copy() if self._rng.random() < 0.5 else self._target.copy()
        for _ in range(int(self._rng.integers(2, 9))):
            yield point


def policy(env: gymnasium.Env[Any, Any], rng: np.random.Generator) -> Policy:
    """Return the player that training data is collected with."""
    return PointerPolicy(rng, (0.36, 0.16, 0.12, 0.14, 0.15, 0.07))


def test_policy(env: gymnasium.Env[Any, Any], rng: np.random.Generator) -> Policy:
    """Return the player of the held-out rollouts: nearly always in contact with the block."""
    return PointerPolicy(rng, (0.5, 0.3, 0.2, 0.0, 0.0, 0.0))


RECIPE = Recipe(
    name="pusht",
    fps=10.0,
    size=SIZE,
    action_names=("target_x", "target_y"),
    action_low=(0.0, 0.0),
    action_high=(ARENA, ARENA),
    action_default=(ARENA / 2, ARENA / 2),
    state=STATE,
    episode_frames=64,
    make=make,
    reset=reset,
    step=step,
    frame=frame,
    policy=policy,
    test_policy=test_policy,
    rest=lambda state: state[:2],
    title="Push-T",
    description="Push the grey T onto its green place. There is no simulator behind the picture: a video model dreams "
    "every frame from what you do.",
)
