"""Carries out one plan: state ops, one batch of rows, decodes. The only place where a plan meets tensors; it decides
nothing.

    ops -> stack rows -> gather latents, draw noise -> denoise_step -> check -> scatter latents -> decode -> pixels

A session whose row comes out not finite fails alone; its batch-mates never notice, since rows meet nowhere but in
the batch dimension. An exception in a batch fails the sessions of that batch. Nothing but a broken invariant raises
out of `execute`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from physis_stream.core.cost_model import CostPrior
from physis_stream.core.ids import SessionId, SnapshotId
from physis_stream.core.plan import Control, Decode, Plan, Result, Role, Row, StartState, StateOp
from physis_stream.models.denoise_step import StepInput, denoise_step
from physis_stream.models.kv_pool import KvPool
from physis_stream.models.noise import AddressedNoise, NoiseSource
from physis_stream.models.paged_attention import ChunkRope, PagedAttend, RowPages
from physis_stream.runtime.batching import RowStacker
from physis_stream.runtime.clock import Clock
from physis_stream.runtime.frame_decoder import FrameDecoder
from physis_stream.runtime.served_model import ServedModel
from physis_stream.runtime.service import Frames
from physis_stream.runtime.session_store import SessionStore

log = logging.getLogger(__name__)
WARM_RUNS = 3
"""Runs of each width before the first user; the first makes kernels, the fastest is what the width takes."""

ChunkKey = tuple[SessionId, int, int]
"""Session, epoch, chunk."""
Failures = dict[SessionId | SnapshotId, str]
"""Who failed in this tick, and why."""
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class DecodedChunk:
    """Frames uint8 RGB (F, H, W, 3), readouts in the world's order, the chunk's own control, and what it took.

    `denoise_ns` is the model time of the ticks that the chunk had a row in, `batch_rows` the width of the last of them.
    """

    frames: Frames
    readouts: tuple[float, ...]
    action: tuple[float, ...]
    started_ns: int
    denoise_ns: int
    decode_ns: int
    batch_rows: int


@dataclass(frozen=True, slots=True)
class Executed:
    """A plan's result, and the chunks that it decoded."""

    result: Result
    chunks: dict[ChunkKey, DecodedChunk]


@dataclass(slots=True)
class _Progress:
    """Of a chunk in flight: its control, when its first row started, model time and width of the ticks it took part
    in.
    """

    control: Control
    started_ns: int
    denoise_ns: int = 0
    batch_rows: int = 0


class Executor:
    """One replica's executor. Not thread-safe: use it from one thread.

    `fixed_rows` > 0 runs batches of exactly that many rows, padded where there are fewer, contexts at full width and
    decodes one by one, so that the bits of a row do not depend on its company.
    """

    def __init__(
        self,
        model: ServedModel,
        num_pages: int,
        clock: Clock,
        *,
        fixed_rows: int = 0,
        max_rows: int = 64,
        noise: NoiseSource | None = None,
    ) -> None:
        self._model, self._clock, self._fixed_rows = model, clock, fixed_rows
        self._noise = AddressedNoise() if noise is None else noise
        self._decoder = FrameDecoder(model.codec, model.readout)
        self._rope = ChunkRope(1, *model.token_grid, model.kv.head_dim, model.dtype, placeless=model.placeless_tokens)
        self._progress: dict[ChunkKey, _Progress] = {}
        with torch.inference_mode():
            self.pool = KvPool(model.kv, num_pages, model.dtype, max_rows=fixed_rows or max_rows)
            self.store = SessionStore(model.latent_shape, self._decoder.fresh_state(), model.start_latent)
        self._stacker = RowStacker(model.levels, self.pool.device)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of a picture of this world."""
        return (self._model.spec.height, self._model.spec.width, 3)

    def hold_image(self, session: SessionId, image: Frames) -> None:
        """Encode an image (height, width, 3) uint8 RGB for a session that is about to be opened with it."""
        with torch.inference_mode():
            self.store.hold_image(session, self._decoder.encode_image(image))

    @torch.inference_mode()
    def warm(self, widths: Sequence[int]) -> CostPrior:
        """Run batches and decodes of these ascending widths on nothing, and return what they take: matrix kernels are
        made at the first use of a shape, and neither should the first users wait for that nor admission guess. Touches
        no session and no page that a plan may name."""
        action, state = self._model.spec.action.initial, self._decoder.fresh_state()
        context = self._model.max_context_pages * (self.pool.blank_page,)
        curve, decode_ns = [], 0
        for width in widths:
            spans = []
            for _ in range(WARM_RUNS):
                began_ns = self._clock.now_ns()
                attend = PagedAttend(self.pool, self._rope, [RowPages(context)] * width)
                blank = torch.zeros(width, *self._model.latent_shape)
                level, given = torch.ones(width), torch.tensor([action] * width)
                denoise_step(self._model.denoiser, attend, StepInput(blank, blank, level, level, given))
                rows_ns = self._clock.now_ns()
                self._decoder.decode(blank, torch.stack([state] * width))
                spans.append((rows_ns - began_ns, (self._clock.now_ns() - rows_ns) // width))
            curve.append((width, max(1, min(rows for rows, _ in spans))))
            decode_ns = max(1, min(decode for _, decode in spans))
        return CostPrior(decode_ns=decode_ns, curve=tuple(curve))

    @torch.inference_mode()
    def execute(self, plan: Plan) -> Executed:
        """Carry out a plan; see the module."""
        failed: Failures = {}
        for op in plan.ops:
            self._apply(op, failed)
        rows_ns = sum(self._run_rows(rows, failed) for rows in _groups(plan.rows, self._fixed_rows))
        self._note_progress(plan, rows_ns)
        began_ns = self._clock.now_ns()
        chunks: dict[ChunkKey, DecodedChunk] = {}
        wanted = [decode for decode in plan.decodes if decode.session not in failed]
        for decodes in _groups(wanted, 1 if self._fixed_rows else 0):
            self._decode(decodes, began_ns, chunks, failed)
        decode_ns = self._clock.now_ns() - began_ns
        self._finish_rows(plan.rows)
        return Executed(Result(plan.tick, tuple(failed.items()), rows_ns, decode_ns), chunks)

    def _apply(self, op: StateOp, failed: Failures) -> None:
        """Obey one state op; what was in flight of its target is void."""
        party = op.session if isinstance(op, StartState) else op.target
        for key in [key for key in self._progress if key[0] == party]:
            del self._progress[key]
        try:
            self.store.apply(op)
        except Exception as error:
            log.exception("a state op failed: %s", type(op).__name__)
            failed[party] = _reason("preparing the session", error)

    def _run_rows(self, rows: Sequence[Row], failed: Failures) -> int:
        """Denoise one batch; returns its nanoseconds, latents and noise included. Adds to `failed` what went wrong."""
        stacked = self._stacker.stack(rows, self._fixed_rows)
        slots = self.store.chunk_slots([(row.session, row.chunk) for row in rows])
        began_ns = self._clock.now_ns()
        latents = self.store.latents.tensor.index_select(0, slots)
        if len(stacked.pages) > len(rows):
            latents = torch.cat((latents, latents.new_zeros(len(stacked.pages) - len(rows), *latents.shape[1:])))
        noise = self._noise.sample(stacked.noise_keys, self._model.latent_shape).to(latents.device)
        if stacked.keeps_noise_R is not None:
            noise = torch.where(stacked.keeps_noise_R[:, None, None, None], latents[:, 1], noise)
        try:
            pad_pages = self._model.max_context_pages if self._fixed_rows else 0
            attend = PagedAttend(self.pool, self._rope, stacked.pages, pad_pages=pad_pages)
            step = StepInput(latents[:, 0], noise, stacked.level_R, stacked.told_R, stacked.action_RA)
            output = denoise_step(self._model.denoiser, attend, step)
            result = torch.stack((output.x0_RCHW, output.noise_RCHW), dim=1)[: len(rows)]
            self.store.latents.tensor.index_copy_(0, slots, result)
            self._fail_broken(rows, output.x0_RCHW, failed)
        except Exception as error:
            log.exception("a batch of %d rows failed", len(rows))
            failed.update((row.session, _reason("denoising", error)) for row in rows)
        return self._clock.now_ns() - began_ns

    def _fail_broken(self, rows: Sequence[Row], x0_RCHW: Tensor, failed: Failures) -> None:
        """One look at the host for the whole batch: which rows are not finite."""
        for row, finite in zip(rows, x0_RCHW.isfinite().flatten(1).all(dim=1).tolist(), strict=False):
            if not finite:
                failed[row.session] = f"chunk {row.chunk} came out not finite at step {row.step}"

    def _note_progress(self, plan: Plan, rows_ns: int) -> None:
        now_ns = self._clock.now_ns()
        for row in plan.rows:
            key = (row.session, int(row.epoch), int(row.chunk))
            progress = self._progress.get(key)
            if progress is None:
                progress = self._progress[key] = _Progress(row.control, now_ns - rows_ns)
            progress.denoise_ns += rows_ns
            progress.batch_rows = len(plan.rows)

    def _decode(
        self,
        decodes: Sequence[Decode],
        began_ns: int,
        chunks: dict[ChunkKey, DecodedChunk],
        failed: Failures,
    ) -> None:
        """Decode these chunks as one batch into `chunks`, and advance the sessions' decoder states."""
        store = self.store
        try:
            slots = torch.tensor([store.decoder_slot(decode.session) for decode in decodes], device=self.pool.device)
            states = store.decoder.tensor.index_select(0, slots)
            latents = store.latents.tensor.index_select(
                0, store.chunk_slots([(decode.session, decode.chunk) for decode in decodes])
            )
            decoded = self._decoder.decode(latents[:, 0], states)
        except Exception as error:
            log.exception("a decode of %d chunks failed", len(decodes))
            failed.update((decode.session, _reason("decoding", error)) for decode in decodes)
            return
        store.decoder.tensor.index_copy_(0, slots, decoded.states)
        decode_ns = self._clock.now_ns() - began_ns
        for number, decode in enumerate(decodes):
            key = (decode.session, int(decode.epoch), int(decode.chunk))
            progress = self._progress[key]
            chunks[key] = DecodedChunk(
                frames=decoded.frames[number].copy(),
                readouts=tuple(decoded.readouts[number].tolist()),
                action=progress.control.action,
                started_ns=progress.started_ns,
                denoise_ns=progress.denoise_ns,
                decode_ns=decode_ns,
                batch_rows=progress.batch_rows,
            )

    def _finish_rows(self, rows: Sequence[Row]) -> None:
        """Let go of the latents of chunks whose last row this was."""
        rule = self._model.spec.rule
        for row in rows:
            last = Role.COMMIT if rule.commit else Role.DENOISE
            if row.role is Role.PRIME or (row.role is last and row.step == rule.rows_per_chunk - 1):
                self.store.finish_chunk(row.session, row.chunk)
                self._progress.pop((row.session, int(row.epoch), int(row.chunk)), None)


def _groups(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """Split into runs of `size` (0: all at once); nothing for no items."""
    width = size or len(items)
    for begin in range(0, len(items), width or 1):
        yield items[begin : begin + width]


def _reason(what: str, error: Exception) -> str:
    """One line for people; the traceback is in the log."""
    first = str(error).splitlines()[0][:200] if str(error) else ""
    return f"{what} failed: {type(error).__name__}{': ' + first if first else ''}"
