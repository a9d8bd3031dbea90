"""An executor without a model: it carries out plans on labelled cells and catches every row that reads wrongly.

A page is a cell that holds the label of what was last written to it. The label of a chunk's KV is a hash of all that
made it (noise, control, what was attended to), so two sessions have equal labels exactly if a model would have given
them equal frames. Beside the cells, each session has its own history of labels by (chunk, version): what its rows
*should* find.

It is an oracle: what a row must read is worked out here from the rule anew, not taken from core.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from physis_stream.core.ids import ChunkIndex, Epoch, PageId, SessionId, SnapshotId
from physis_stream.core.plan import CloneState, Decode, DropState, Plan, Result, Role, Row, StartState, StateOp
from physis_stream.core.seeds import noise_key
from physis_stream.core.spec import WorldSpec


class WrongPlan(AssertionError):
    """A plan asked for something that would have computed on wrong, stale or foreign memory."""


@dataclass(frozen=True, slots=True)
class FakeCosts:
    """Duration of a tick: base + row * rows + decode * decodes, and overhead on top; nanoseconds."""

    base_ns: int = 1_000_000
    row_ns: int = 500_000
    decode_ns: int = 200_000
    overhead_ns: int = 50_000


@dataclass(slots=True)
class _State:
    """The tensors of one session or snapshot, as labels."""

    seed: int
    latents: dict[int, str] = field(default_factory=dict)
    history: dict[tuple[int, int], str] = field(default_factory=dict)
    rows_done: set[tuple[int, Role, int]] = field(default_factory=set)
    vae: str | None = None

    def copy(self) -> _State:
        return replace(self, latents=dict(self.latents), history=dict(self.history), rows_done=set(self.rows_done))


def label(*parts: object) -> str:
    """A digest of what something was made from."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


class FakeExecutor:
    """Carries out plans for worlds with distinct shape keys. Deterministic; failures happen where they were injected.

    `frames` has a label for every decoded chunk by (session, epoch, chunk). `max_rows` is checked on every plan.
    """

    def __init__(self, specs: Iterable[WorldSpec], *, max_rows: int, costs: FakeCosts | None = None) -> None:
        self.specs = {spec.shape_key: spec for spec in specs}
        self.max_rows = max_rows
        self.costs = costs or FakeCosts()
        self.frames: dict[tuple[SessionId, Epoch, ChunkIndex], str] = {}
        self.num_rows = 0
        self._cells: dict[tuple[str, PageId], tuple[str, int]] = {}
        self._states: dict[SessionId | SnapshotId, _State] = {}
        self._to_fail: dict[SessionId | SnapshotId, str] = {}

    def fail_next(self, party: SessionId | SnapshotId, reason: str = "injected") -> None:
        """Make the next plan that has rows of this session, or an op that makes its state, fail for it."""
        self._to_fail[party] = reason

    def holds(self, party: SessionId | SnapshotId) -> bool:
        """If any tensors of this session or snapshot are kept."""
        return party in self._states

    @property
    def num_states(self) -> int:
        return len(self._states)

    def duration_ns(self, plan: Plan) -> int:
        """Wall time of this plan."""
        if not plan.rows:
            return self.costs.overhead_ns
        return self._rows_ns(plan) + self.costs.decode_ns * len(plan.decodes) + self.costs.overhead_ns

    def execute(self, plan: Plan) -> Result:
        """Carry out a plan; raises WrongPlan if any of it is wrong."""
        failed: dict[SessionId | SnapshotId, str] = {}
        for op in plan.ops:
            self._apply(op, failed)
        self._check_batch(plan)
        for row in plan.rows:
            if row.session in self._to_fail:
                failed[row.session] = self._to_fail.pop(row.session)
        for row in plan.rows:
            self._run(plan.shape_key, row, failed)
        for decode in plan.decodes:
            if decode.session not in failed:
                self._decode(decode)
        self.num_rows += len(plan.rows)
        decode_ns = self.costs.decode_ns * len(plan.decodes)
        return Result(plan.tick, tuple(failed.items()), self._rows_ns(plan), decode_ns)

    def _rows_ns(self, plan: Plan) -> int:
        return self.costs.base_ns + self.costs.row_ns * len(plan.rows) if plan.rows else 0

    def _apply(self, op: StateOp, failed: dict[SessionId | SnapshotId, str]) -> None:
        if isinstance(op, DropState):
            _require(op.target in self._states, f"state of {op.target} is dropped and does not exist")
            del self._states[op.target]
            self._to_fail.pop(op.target, None)
            return
        party: SessionId | SnapshotId = op.session if isinstance(op, StartState) else op.target
        if isinstance(op, StartState):
            self._states[party] = _State(op.seed)
        elif isinstance(op, CloneState):
            _require(op.source in self._states, f"state of {op.source} is cloned and does not exist")
            self._states[party] = self._states[op.source].copy()
        if party in self._to_fail:
            failed[party] = self._to_fail.pop(party)

    def _check_batch(self, plan: Plan) -> None:
        _require(len(plan.rows) <= self.max_rows, f"{len(plan.rows)} rows in a plan, at most {self.max_rows} fit")
        _require(plan.shape_key in self.specs or not plan.rows, f"shape {plan.shape_key!r} is not served")
        written = [page for row in plan.rows for page in row.write]
        _require(len(set(written)) == len(written), "two rows of a plan write the same page")
        read = {page for row in plan.rows for chunk in row.context for page in chunk.pages}
        _require(not read & set(written), "a page is read and written in the same tick")
        last_rows = {
            (row.session, row.epoch, row.chunk)
            for row in plan.rows
            if row.role is Role.PRIME
            or (row.role is Role.DENOISE and row.step == self.specs[plan.shape_key].rule.num_steps - 1)
        }
        decoded = {(decode.session, decode.epoch, decode.chunk) for decode in plan.decodes}
        _require(decoded == last_rows, "a plan decodes exactly the chunks whose last step it runs")

    def _run(self, shape: str, row: Row, failed: dict[SessionId | SnapshotId, str]) -> None:
        _require(row.session in self._states, f"session {row.session} has a row and no state")
        state, spec = self._states[row.session], self.specs[shape]
        if row.session in failed:
            self._write(shape, row, label("torn", row.session, row.epoch))
            return
        self._check_order(state, spec, row)
        seen = self._check_context(shape, state, spec, row)
        state.rows_done.add((row.chunk, row.role, row.step))
        if row.role is Role.PRIME:
            state.latents[row.chunk] = label("start", state.seed)
        elif row.role is Role.DENOISE:
            before = state.latents.get(row.chunk)
            state.latents[row.chunk] = label(
                before, row.step, row.noise_key, row.control.action, row.control.prompt, seen
            )
        made = label("kv", state.latents[row.chunk], row.role, row.control.prompt, seen)
        state.history[row.chunk, row.step] = made
        self._write(shape, row, made)

    def _check_order(self, state: _State, spec: WorldSpec, row: Row) -> None:
        what = f"{row.session} epoch {row.epoch} chunk {row.chunk} {row.role} step {row.step}"
        _require((row.chunk, row.role, row.step) not in state.rows_done, f"{what} runs twice")
        if row.role is Role.PRIME:
            _require(row.chunk == 0 and not state.rows_done, f"{what}: only a fresh epoch is primed")
            _require(row.noise_key is None, f"{what} has noise")
        elif row.role is Role.DENOISE:
            before = (row.chunk, Role.DENOISE, row.step - 1)
            _require(row.step == 0 or before in state.rows_done, f"{what} runs before the step before it")
            key = noise_key(state.seed, row.chunk, row.step)
            _require(row.noise_key == key, f"{what} has noise {row.noise_key}, its address is {key}")
        else:
            _require(spec.rule.commit and row.step == spec.rule.num_steps, f"{what}: the rule commits nothing there")
            last = (row.chunk, Role.DENOISE, row.step - 1)
            _require(last in state.rows_done and row.noise_key is None, f"{what} commits an unfinished chunk")

    def _check_context(self, shape: str, state: _State, spec: WorldSpec, row: Row) -> tuple[str, ...]:
        """The labels this row reads, after checking that they are what it should read, from the right pages."""
        what = f"{row.session} epoch {row.epoch} chunk {row.chunk} step {row.step}"
        expected = _view(spec, row)
        got = [(chunk.chunk, chunk.version, chunk.position) for chunk in row.context]
        _require(got == expected, f"{what} attends to {got}, the rule says {expected}")
        _require(row.position == len(expected), f"{what} has position {row.position}, {len(expected)} chunks in view")
        seen = []
        for chunk in row.context:
            which = f"chunk {chunk.chunk} version {chunk.version}"
            should = state.history.get((chunk.chunk, chunk.version))
            _require(should is not None, f"{what} reads {which} before it is written")
            cells = [self._cells.get((shape, page)) for page in chunk.pages]
            wanted = [(should, index) for index in range(spec.pages_per_chunk)]
            _require(cells == wanted, f"{what} finds foreign pages for {which}")
            seen.append(str(should))
        return tuple(seen)

    def _write(self, shape: str, row: Row, made: str) -> None:
        if row.write:
            _require(len(row.write) == self.specs[shape].pages_per_chunk, "a row writes a whole chunk's pages or none")
        for index, page in enumerate(row.write):
            self._cells[shape, page] = (made, index)

    def _decode(self, decode: Decode) -> None:
        state = self._states[decode.session]
        _require(decode.first == (state.vae is None), "the first-chunk flag disagrees with the VAE state")
        state.vae = label("vae", state.vae, state.latents[decode.chunk])
        self.frames[decode.session, decode.epoch, decode.chunk] = label("frames", state.vae)


def _view(spec: WorldSpec, row: Row) -> list[tuple[int, int, int]]:
    """The naive reading of rule and sink: (chunk, version, position) that a row attends to, oldest first."""
    if row.role is Role.PRIME:
        return []
    rule, view = spec.rule, []
    for earlier in range(row.chunk):
        distance = row.chunk - earlier
        if distance <= rule.window:
            view.append((earlier, rule.version(row.step, distance, primed=earlier == 0)))
        elif earlier < spec.sink:
            view.append((earlier, rule.committed_version))
    return [(chunk, version, position) for position, (chunk, version) in enumerate(view)]


def _require(holds: bool, complaint: str) -> None:
    if not holds:
        raise WrongPlan(complaint)
