"""The baseline: what one writes without an engine. Sessions are served one after another, a chunk at a time.

Same model, dtype and threads; the clean discipline, as published systems have it: S denoising forwards and one that
writes clean KV, batch 1. Each session keeps a dense ring of keys and values that attention reads in place, roped
once on writing, so that nothing is copied or gathered; the attention kernel is the engine's. Whose chunk is due
first is served first, at most one chunk ahead of its time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from physis_stream.core.seeds import noise_key
from physis_stream.models.denoise_step import StepInput, denoise_step
from physis_stream.models.noise import AddressedNoise
from physis_stream.models.paged_attention import ChunkRope, attention, rotate_into
from physis_stream.runtime.frame_decoder import FrameDecoder
from physis_stream.runtime.served_model import ServedModel
from physis_stream.runtime.service import Frames


class _DenseKv:
    """One session's keys and values, (H, (W+1) * T, D) a layer, the oldest chunk's place taken by the newest."""

    def __init__(self, model: ServedModel, rope: ChunkRope) -> None:
        shape, window = model.kv, model.spec.rule.window
        size = (shape.num_layers, 1, shape.num_heads, (window + 1) * shape.chunk_tokens, shape.head_dim)
        self._keys, self._values = torch.zeros(size, dtype=model.dtype), torch.zeros(size, dtype=model.dtype)
        self._tokens, self._places, self._rope = shape.chunk_tokens, window + 1, rope
        self.begin(0)

    def begin(self, chunk: int) -> None:
        """The next forwards are of this chunk."""
        begin = chunk % self._places * self._tokens
        self._own = slice(begin, begin + self._tokens)
        self._seen = min(chunk + 1, self._places) * self._tokens
        self._cos, self._sin = self._rope.own([chunk])

    def __call__(self, layer: int, q_RTHD: Tensor, k_RTHD: Tensor, v_RTHD: Tensor) -> Tensor:
        """See `models.interface.Attend`; one row."""
        q, k, v = (x.transpose(1, 2) for x in (q_RTHD, k_RTHD, v_RTHD))
        keys, values = self._keys[layer], self._values[layer]
        rotate_into(keys[:, :, self._own], k, self._cos, self._sin)
        values[:, :, self._own] = v
        query = rotate_into(q.new_empty(q.shape), q, self._cos, self._sin)
        return attention(query, keys[:, :, : self._seen], values[:, :, : self._seen], None).transpose(1, 2)


class SequentialSession:
    """One session; `next_chunk` makes its next chunk, the first from the world's start. `latent` is the newest chunk's.

    Fresh noise at every step, whatever the world's profile says: the cost is the same.
    """

    def __init__(self, model: ServedModel, decoder: FrameDecoder, rope: ChunkRope, seed: int) -> None:
        if model.spec.sink:
            raise ValueError("the baseline keeps no sink; choose a world without one")
        self._model, self._decoder = model, decoder
        self._kv = _DenseKv(model, rope)
        self._state = decoder.fresh_state()[None]
        self._seed, self._noise = seed, AddressedNoise()
        self._start = model.start_latent(seed)[None]
        self.chunk = 0
        self.latent = self._start

    @torch.inference_mode()
    def next_chunk(self, action: tuple[float, ...]) -> Frames:
        """Make one chunk under this action; uint8 RGB (F, H, W, 3)."""
        self._kv.begin(self.chunk)
        given = torch.tensor([action])
        self.latent = self._start if self.chunk == 0 else self._denoise(given)
        self._forward(self.latent, None, 0.0, self._model.levels.clean_level, given)
        decoded = self._decoder.decode(self.latent, self._state)
        self._state = decoded.states
        self.chunk += 1
        frames: Frames = decoded.frames[0]
        return frames

    def _denoise(self, action: Tensor) -> Tensor:
        x0 = torch.zeros_like(self._start)
        for step, level in enumerate(self._model.levels.levels):
            x0 = self._forward(x0, noise_key(self._seed, self.chunk, step), level, level, action)
        return x0

    def _forward(self, x0: Tensor, key: int | None, level: float, told: float, action: Tensor) -> Tensor:
        noise = self._noise.sample([key], tuple(x0.shape[1:]))
        step = StepInput(x0, noise, torch.tensor([level]), torch.tensor([told]), action)
        return denoise_step(self._model.denoiser, self._kv, step).x0_RCHW
