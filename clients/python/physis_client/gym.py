"""Worlds as Gymnasium environments, one or many at a time, over the network. Needs the extra `gym`.

`import physis_client.gym` registers the ids below; `gymnasium.make("physis_client.gym:physis/PushT-v0")` imports by
itself. An environment is one lockstep session: a step is a chunk, its observation the chunk's last frame, the
readouts, or both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from physis_client.chunks import Chunk, World
from physis_client.errors import InvalidAction, InvalidState, NotFound
from physis_client.sync_client import Client
from physis_client.sync_session import Session

Observe = Literal["pixels", "state", "both"]
Observation = Any
Info = dict[str, Any]
MAX_SEED = 2**31
MAX_ACTIONS = 256
"""Actions in one chunk of actions at most."""
MAX_THREADS = 16


def checked_actions(action: object, dim: int) -> npt.NDArray[np.float64]:
    """Return one action (A,) or a chunk of them (T, A) as (T, A); raise InvalidAction for anything else."""
    try:
        array = np.asarray(action)
    except (TypeError, ValueError) as error:
        raise InvalidAction(f"an action is ({dim},) or (T, {dim}) numbers") from error
    if array.dtype.kind not in "iuf":
        raise InvalidAction(f"an action is made of numbers, got {array.dtype}")
    rows = array[None] if array.ndim == 1 else array
    if rows.ndim != 2 or rows.shape[1] != dim or not 1 <= rows.shape[0] <= MAX_ACTIONS:
        raise InvalidAction(f"an action is ({dim},) or (T, {dim}) with T in 1..{MAX_ACTIONS}, got {array.shape}")
    numbers = rows.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise InvalidAction("an action must be finite")
    return numbers


def find_world(client: Client, model: str) -> World:
    """Return the server's world of that name; NotFound lists those that exist."""
    worlds = {world.name: world for world in client.models()}
    if model not in worlds:
        raise NotFound(f"no world named {model!r}; there are: {', '.join(worlds)}")
    return worlds[model]


def action_space(world: World) -> spaces.Box:
    """The world's bounds as a space of float32 actions."""
    low, high = (np.asarray(world.action[side], np.float32) for side in ("low", "high"))
    return spaces.Box(low, high, dtype=np.float32)


def observation_space(world: World, observe: Observe) -> spaces.Space[Any]:
    """Pixels uint8 (H, W, 3), state float64 (n,), or both in a dict."""
    pixels: spaces.Space[Any] = spaces.Box(0, 255, (world.height, world.width, 3), np.uint8)
    state: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (len(world.state_names),), np.float64)
    if observe == "both":
        return spaces.Dict({"pixels": pixels, "state": state})
    return pixels if observe == "pixels" else state


def observation(chunk: Chunk, world: World, observe: Observe) -> Observation:
    """What is seen after a chunk: its last frame, the readouts in the world's order, or both."""
    pixels = np.ascontiguousarray(chunk.frames[-1])
    state = np.array([chunk.state[name] for name in world.state_names], np.float64)
    if observe == "both":
        return {"pixels": pixels, "state": state}
    return pixels if observe == "pixels" else state


def info_of(chunk: Chunk) -> Info:
    return {"chunk": chunk.index, "state": dict(chunk.state), "frames": chunk.frames}


class WorldEnv(gymnasium.Env[Observation, npt.NDArray[np.float32]]):
    """One world. A step takes one action (A,) or a chunk of them (T, A), done in order until the episode ends.

    The reward is the sum over the actions done, `info["rewards"]` has each. `success_reward` ends the episode
    (terminated) once a chunk's reward reaches it. `reset(options={"image": uint8 (H, W, 3)})` starts from a picture.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (gymnasium's own form)

    def __init__(
        self,
        model: str,
        *,
        url: str | None = None,
        token: str | None = None,
        client: Client | None = None,
        observe: Observe = "pixels",
        render_mode: str | None = None,
        success_reward: float | None = None,
        timeout: float = 30.0,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise InvalidState(f"render_mode is None or 'rgb_array', got {render_mode!r}")
        self._own_client = client is None
        self._client = Client(url, token, timeout=timeout) if client is None else client
        self._session: Session | None = None
        self._chunk: Chunk | None = None
        self.render_mode, self.observe, self.success_reward = render_mode, observe, success_reward
        try:
            self.world = find_world(self._client, model)
        except BaseException:
            self.close()
            raise
        self.metadata = {**self.metadata, "render_fps": self.world.fps / self.world.chunk_frames}
        self.action_space = cast(Any, action_space(self.world))
        self.observation_space = observation_space(self.world, observe)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Observation, Info]:
        """Begin an episode; without a seed the next one of the environment's own generator."""
        super().reset(seed=seed)
        start = int(self.np_random.integers(MAX_SEED)) if seed is None else seed % MAX_SEED
        image = (options or {}).get("image")
        if image is not None or self._session is None:
            self._leave()
            self._session = self._client.open_session(self.world.name, seed=start, mode="lockstep", image=image)
            chunk = self._session.observe()
        else:
            chunk = self._session.reset(start)
        self._chunk = chunk
        return observation(chunk, self.world, self.observe), {**info_of(chunk), "seed": start}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Do one action or a chunk of them; InvalidAction before any of them is done."""
        rows = checked_actions(action, self.world.action["dim"])
        if self._session is None:
            raise InvalidState("reset the environment before its first step")
        rewards: list[float] = []
        terminated = False
        for row in rows:
            self._chunk = self._session.step(row)
            rewards.append(self._chunk.reward or 0.0)
            terminated = self.success_reward is not None and rewards[-1] >= self.success_reward
            if terminated:
                break
        assert self._chunk is not None
        seen = observation(self._chunk, self.world, self.observe)
        return seen, float(sum(rewards)), terminated, False, {**info_of(self._chunk), "rewards": rewards}

    def render(self) -> npt.NDArray[np.uint8] | None:
        """Return the present picture, uint8 (H, W, 3); None without a render mode or before the first reset."""
        if self.render_mode is None or self._chunk is None:
            return None
        return np.ascontiguousarray(self._chunk.frames[-1])

    @property
    def session(self) -> Session | None:
        """The session behind, for forks and snapshots; None before the first reset."""
        return self._session

    def close(self) -> None:
        """End the session, and the client if this environment made it. Idempotent."""
        self._leave()
        if self._own_client:
            self._client.close()

    def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


class WorldVectorEnv(VectorEnv[Observation, npt.NDArray[np.float32], Any]):
    """`num_envs` worlds that step in one batched call. An episode that ended is reset by the next step.

    That step ignores its action and gives reward 0 (autoreset NEXT_STEP), so that the final observation is seen.
    Episodes end by `success_reward` (terminated) or after `max_episode_steps` (truncated).
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (gymnasium's own form)
        "render_modes": ["rgb_array"],
        "render_fps": 10,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        model: str,
        num_envs: int = 1,
        *,
        url: str | None = None,
        token: str | None = None,
        observe: Observe = "pixels",
        render_mode: str | None = None,
        success_reward: float | None = None,
        max_episode_steps: int | None = None,
        timeout: float = 60.0,
    ) -> None:
        if num_envs < 1:
            raise InvalidState(f"num_envs must be at least 1, got {num_envs}")
        self._client = Client(url, token, timeout=timeout)
        self._threads = ThreadPoolExecutor(min(MAX_THREADS, num_envs), thread_name_prefix="physis envs")
        self._sessions: list[Session] = []
        self._chunks: list[Chunk] = []
        self._done = np.ones(num_envs, np.bool_)
        self._lengths = np.zeros(num_envs, np.int64)
        self.num_envs, self.observe, self.render_mode = num_envs, observe, render_mode
        self.success_reward, self.max_episode_steps = success_reward, max_episode_steps
        try:
            self.world = find_world(self._client, model)
        except BaseException:
            self.close()
            raise
        self.metadata = {**self.metadata, "render_fps": self.world.fps / self.world.chunk_frames}
        self.single_action_space = cast(Any, action_space(self.world))
        self.single_observation_space = observation_space(self.world, observe)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode in each world; one seed counts up from world to world."""
        if isinstance(seed, int):
            super().reset(seed=seed)
            seeds: list[int | None] = [seed + index for index in range(self.num_envs)]
        else:
            super().reset()
            seeds = [None] * self.num_envs if seed is None else list(seed)
        if len(seeds) != self.num_envs:
            raise InvalidState(f"{self.num_envs} worlds need as many seeds, got {len(seeds)}")
        starts = [self._draw() if one is None else one % MAX_SEED for one in seeds]
        if not self._sessions:
            self._sessions = list(self._threads.map(self._open, starts))
            self._chunks = [session.observe() for session in self._sessions]
        else:
            self._restart(range(self.num_envs), starts)
        self._done[:] = False
        self._lengths[:] = 0
        return self._observations(), {"seed": np.array(starts), **self._facts()}

    def step(
        self, actions: npt.NDArray[np.float32]
    ) -> tuple[Observation, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], Info]:
        """Step every world under its row of `actions` (N, A); InvalidAction before any of them moves."""
        rows = checked_actions(actions, self.world.action["dim"])
        if len(rows) != self.num_envs or np.ndim(actions) != 2:
            raise InvalidAction(f"actions are ({self.num_envs}, {self.world.action['dim']}), got {np.shape(actions)}")
        if not self._sessions:
            raise InvalidState("reset the environments before their first step")
        fresh = np.flatnonzero(self._done)
        going = np.flatnonzero(~self._done)
        rewards = np.zeros(self.num_envs)
        if len(going):
            chunks = self._client.step_many([self._sessions[i] for i in going], [rows[i] for i in going])
            for index, chunk in zip(going, chunks, strict=True):
                self._chunks[index] = chunk
                rewards[index] = chunk.reward or 0.0
        self._lengths[going] += 1
        self._restart(fresh, [self._draw() for _ in fresh])
        self._lengths[fresh] = 0
        terminated, truncated = self._ends(rewards, going)
        self._done = terminated | truncated
        return self._observations(), rewards, terminated, truncated, self._facts()

    def render(self) -> tuple[npt.NDArray[np.uint8], ...] | None:
        """Return each world's present picture; None without a render mode or before the first reset."""
        if self.render_mode is None or not self._chunks:
            return None
        return tuple(np.ascontiguousarray(chunk.frames[-1]) for chunk in self._chunks)

    @property
    def sessions(self) -> list[Session]:
        """The sessions behind, in order; empty before the first reset."""
        return list(self._sessions)

    def close_extras(self, **more: Any) -> None:
        """End all sessions and the client."""
        self._threads.shutdown(wait=True)
        self._client.close()

    def _open(self, seed: int) -> Session:
        return self._client.open_session(self.world.name, seed=seed, mode="lockstep")

    def _restart(self, which: Iterable[int], starts: Sequence[int]) -> None:
        """Reset these worlds side by side."""
        indices = list(which)
        chunks = self._threads.map(lambda index, start: self._sessions[index].reset(start), indices, starts)
        for index, chunk in zip(indices, chunks, strict=True):
            self._chunks[index] = chunk

    def _draw(self) -> int:
        return int(self.np_random.integers(MAX_SEED))

    def _ends(
        self, rewards: npt.NDArray[np.float64], going: npt.NDArray[np.intp]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        terminated = np.zeros(self.num_envs, np.bool_)
        if self.success_reward is not None:
            terminated[going] = rewards[going] >= self.success_reward
        late = np.zeros(self.num_envs, np.bool_)
        if self.max_episode_steps is not None:
            late = self._lengths >= self.max_episode_steps
        return terminated, late & ~terminated

    def _observations(self) -> Observation:
        seen = [observation(chunk, self.world, self.observe) for chunk in self._chunks]
        if self.observe == "both":
            return {name: np.stack([one[name] for one in seen]) for name in ("pixels", "state")}
        return np.stack(seen)

    def _facts(self) -> Info:
        return {
            "chunk": np.array([chunk.index for chunk in self._chunks]),
            "state": np.array([[chunk.state[name] for name in self.world.state_names] for chunk in self._chunks]),
        }


IDS: Mapping[str, Mapping[str, Any]] = {"physis/PushT-v0": {"model": "pusht", "max_episode_steps": 300}}
"""Registered ids -> the world and the length of an episode."""


def register_envs() -> None:
    """Register the ids; those already registered are left alone."""
    for name, facts in IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point="physis_client.gym:WorldEnv",
                vector_entry_point=cast(Any, "physis_client.gym:WorldVectorEnv"),
                max_episode_steps=facts["max_episode_steps"],
                kwargs={"model": facts["model"]},
            )


register_envs()
