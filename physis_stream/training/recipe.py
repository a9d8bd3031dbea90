"""What a world's training needs to know about its environment: frames, actions, state, and how it is to be played.

A `Recipe` is data and a few callables around a Gymnasium environment; `collect`, the trainers and the evaluation know
no environment but through it. `gymnasium_recipe` builds one for any environment that renders `rgb_array`; a world that
wants better play than smooth noise (contact, say) writes its own, as `training.pusht` does.

Legend: H, W image size; A action numbers; D state numbers. Frames are uint8 RGB (H, W, 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray
from PIL import Image

Frame = NDArray[np.uint8]
Vector = NDArray[np.float32]


class Policy(Protocol):
    """Plays one episode; made afresh for each."""

    def __call__(self, state: Vector) -> Vector:
        """Return the action (A,) in the recipe's range for the state (D,) that the environment is in."""
        ...


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The simulator's numbers that the model learns to read out of a frame.

    `angles` are indices of entries in radians, which are learned as sine and cosine.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    angles: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.names) != len(self.units):
            raise ValueError(f"{len(self.names)} state names but {len(self.units)} units")
        if any(not 0 <= i < len(self.names) for i in self.angles):
            raise ValueError(f"angle indices {self.angles} lie outside the {len(self.names)} state numbers")


@dataclass(frozen=True, slots=True)
class Recipe:
    """An environment as training sees it.

    `reset(env, rng)` begins an episode and returns its state; `step(env, action)` advances it and returns the new state
    and whether the episode ended; `frame(env)` draws it. `policy(env, rng)` makes a player for the episode just begun.
    `title` and `description` introduce the world to people.
    """

    name: str
    fps: float
    size: int
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    action_default: tuple[float, ...]
    state: StateSpec
    episode_frames: int
    make: Callable[[], gymnasium.Env[Any, Any]]
    reset: Callable[[gymnasium.Env[Any, Any], np.random.Generator], Vector]
    step: Callable[[gymnasium.Env[Any, Any], Vector], tuple[Vector, bool]]
    frame: Callable[[gymnasium.Env[Any, Any]], Frame]
    policy: Callable[[gymnasium.Env[Any, Any], np.random.Generator], Policy]
    test_policy: Callable[[gymnasium.Env[Any, Any], np.random.Generator], Policy]
    rest: Callable[[Vector], Vector]
    title: str = ""
    description: str = ""


class SmoothRandomPolicy:
    """Holds or drifts towards random actions for random spans: plays any environment without knowing it."""

    def __init__(self, rng: np.random.Generator, low: Vector, high: Vector, *, discrete: bool) -> None:
        self._rng, self._low, self._high, self._discrete = rng, low, high, discrete
        self._left = 0
        self._rate = 1.0
        self._goal = self._action = self._draw()

    def _draw(self) -> Vector:
        if self._discrete:
            choice = np.zeros_like(self._low)
            choice[self._rng.integers(len(choice))] = 1.0
            return choice
        return self._rng.uniform(self._low, self._high).astype(np.float32)

    def __call__(self, state: Vector) -> Vector:
        if self._left == 0:
            self._left = int(self._rng.integers(1, 9))
            self._goal = self._draw()
            self._rate = 1.0 if self._discrete else float(self._rng.choice([0.2, 0.5, 1.0]))
        self._left -= 1
        self._action = (self._action + self._rate * (self._goal - self._action)).astype(np.float32)
        return self._action


def gymnasium_recipe(env_id: str, *, size: int = 96, episode_frames: int = 120, **env_kwargs: Any) -> Recipe:
    """Build a recipe for any Gymnasium environment with `rgb_array` rendering and a Box or Discrete action space.

    The state is the observation where that is a short vector (at most 32 numbers), and the reward. A discrete action
    becomes one number per choice, of which the greatest is taken. Raises ValueError for other action spaces.
    """

    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.make(env_id, render_mode="rgb_array", **env_kwargs)

    probe = make()
    space, seen, fps = probe.action_space, probe.observation_space, float(probe.metadata.get("render_fps", 10))
    probe.close()
    discrete = isinstance(space, gymnasium.spaces.Discrete)
    if isinstance(space, gymnasium.spaces.Discrete):
        low, high = np.zeros(int(space.n), np.float32), np.ones(int(space.n), np.float32)
    elif isinstance(space, gymnasium.spaces.Box):
        low = np.maximum(space.low.reshape(-1), -1e3).astype(np.float32)
        high = np.minimum(space.high.reshape(-1), 1e3).astype(np.float32)
    else:
        raise ValueError(f"{env_id} has action space {space}; a recipe needs Box or Discrete")
    has_vector = isinstance(seen, gymnasium.spaces.Box) and int(np.prod(seen.shape)) <= 32
    num_seen = int(np.prod(seen.shape or (0,))) if has_vector else 0
    names = (*(f"state_{i}" for i in range(num_seen)), "reward")

    def state_of(observation: Any, reward: float) -> Vector:
        vector = np.asarray(observation, np.float32).reshape(-1) if has_vector else np.zeros(0, np.float32)
        return np.append(vector, np.float32(reward))

    def reset(env: gymnasium.Env[Any, Any], rng: np.random.Generator) -> Vector:
        observation, _ = env.reset(seed=int(rng.integers(2**31)))
        return state_of(observation, 0.0)

    def step(env: gymnasium.Env[Any, Any], action: Vector) -> tuple[Vector, bool]:
        native = int(action.argmax()) if discrete else action.reshape(space.shape or (-1,))
        observation, reward, terminated, truncated, _ = env.step(native)
        return state_of(observation, float(reward)), bool(terminated or truncated)

    def frame(env: gymnasium.Env[Any, Any]) -> Frame:
        picture = Image.fromarray(np.asarray(env.render(), np.uint8))
        return np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR), np.uint8)

    def policy(env: gymnasium.Env[Any, Any], rng: np.random.Generator) -> Policy:
        return SmoothRandomPolicy(rng, low, high, discrete=discrete)

    default = np.asarray(low if discrete else (low + high) / 2, np.float32)
    return Recipe(
        name=env_id.split("/")[-1].lower(),
        fps=fps,
        size=size,
        action_names=tuple(f"action_{i}" for i in range(len(low))),
        action_low=tuple(map(float, low)),
        action_high=tuple(map(float, high)),
        action_default=tuple(map(float, default)),
        state=StateSpec(names=names, units=("",) * len(names)),
        episode_frames=episode_frames,
        make=make,
        reset=reset,
        step=step,
        frame=frame,
        policy=policy,
        test_policy=policy,
        rest=lambda state: default,
    )
