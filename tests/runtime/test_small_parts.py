"""Slabs, metrics, outboxes and the child's settings: the small parts, by sentence."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from physis_stream.core.plan import CloneState, DropState, StartState
from physis_stream.models.tiny.weights import tiny_random
from physis_stream.runtime.clock import ManualClock
from physis_stream.runtime.engine_config import EngineConfig
from physis_stream.runtime.executor import Executor
from physis_stream.runtime.metrics import EngineMetrics, Ring, TickTimes
from physis_stream.runtime.outbox import Outbox
from physis_stream.runtime.served_model import serve
from physis_stream.runtime.service import ChunkOut, Notice
from physis_stream.runtime.session_store import SessionStore, Slab

MS = 1_000_000


def store() -> SessionStore:
    return SessionStore((1, 2, 2), torch.zeros(3), lambda seed: torch.full((1, 2, 2), float(seed)))


def test_a_slab_grows_and_keeps_what_it_holds():
    slab = Slab((2,), torch.float32, torch.device("cpu"), capacity=2)
    slots = [slab.take() for _ in range(5)]
    for slot in slots:
        slab.tensor[slot] = slot
    assert len(set(slots)) == 5
    assert slab.num_used == 5
    assert [float(slab.tensor[slot, 0]) for slot in slots] == slots
    slab.give_back(slots[0])
    assert slab.take() == slots[0]
    slab.check_integrity()
    slab.give_back(slots[0])
    slab.give_back(slots[0])
    with pytest.raises(AssertionError, match="twice"):
        slab.check_integrity()


def test_chunk_0_begins_as_the_start_and_others_as_zeros_whatever_the_slot_held():
    kept = store()
    kept.apply(StartState("a", 0, 7))
    slots = kept.chunk_slots([("a", 0), ("a", 1)])
    kept.latents.tensor[slots] += torch.nan
    kept.finish_chunk("a", 0)
    kept.finish_chunk("a", 1)
    kept.apply(StartState("a", 1, 9))
    found = kept.latents.tensor[kept.chunk_slots([("a", 0), ("a", 1)])]
    assert float(found[0, 0].min()) == float(found[0, 0].max()) == 9.0
    assert not found[1].any()
    assert kept.chunk_slots([("a", 1)]) == kept.chunk_slots([("a", 1)]), "a chunk keeps its slot"
    kept.check_integrity()


def test_a_clone_has_a_decoder_state_of_its_own():
    kept = store()
    kept.apply(StartState("a", 0, 1))
    kept.decoder.tensor[kept.decoder_slot("a")] = 5.0
    kept.apply(CloneState("a", "b"))
    kept.decoder.tensor[kept.decoder_slot("a")] = 6.0
    assert float(kept.decoder.tensor[kept.decoder_slot("b"), 0]) == 5.0
    kept.apply(StartState("a", 1, 1))
    assert not kept.decoder.tensor[kept.decoder_slot("a")].any(), "a new epoch starts from a fresh state"
    for owner in "ab":
        kept.apply(DropState(owner))
        kept.apply(DropState(owner))
    assert len(kept) == kept.decoder.num_used == 0
    with pytest.raises(KeyError):
        kept.apply(CloneState("a", "c"))


def test_a_ring_forgets_the_oldest():
    ring = Ring(3)
    assert (ring.mean(), ring.percentile(0.5), len(ring)) == (0.0, 0.0, 0)
    for value in (100.0, 1.0, 2.0, 3.0):
        ring.add(value)
    assert (ring.mean(), ring.percentile(0.5), ring.percentile(1.0), len(ring)) == (2.0, 2.0, 3.0, 3)


def test_overhead_is_what_is_neither_model_nor_decoding():
    metrics = EngineMetrics()
    metrics.tick(TickTimes(wall_ns=10 * MS, rows_ns=6 * MS, decode_ns=3 * MS, num_rows=4))
    metrics.tick(TickTimes(wall_ns=50 * MS, rows_ns=0, decode_ns=0, num_rows=0))
    assert metrics.overhead_share == pytest.approx(0.1)
    assert (metrics.ticks, metrics.rows, metrics.batch_rows_mean) == (1, 4, 4.0)


def test_intervals_are_between_chunks_of_one_session_and_epoch():
    metrics = EngineMetrics()
    for session, epoch, now_ms, due_ms in (("a", 0, 0, None), ("b", 0, 5, 4), ("a", 0, 100, 100), ("a", 1, 900, 901)):
        metrics.chunk(session, epoch, now_ms * MS, None if due_ms is None else due_ms * MS)
    assert list(metrics.chunk_interval_ms(0.5, 1.0)) == [100.0, 100.0]
    assert metrics.late_chunks == 1
    metrics.begin()
    assert metrics.late_chunks == metrics.ticks == 0


def chunk(epoch: int, number: int) -> ChunkOut:
    return ChunkOut("s", epoch, number, number, np.zeros((1, 2, 2, 3), np.uint8), (), (0.0,), {}, None)


def test_an_outbox_drops_the_oldest_chunks_and_whatever_is_of_an_older_epoch():
    box = Outbox(2)
    box.put(Notice("s", "queue", {"position": 1}))
    for number in range(4):
        box.put(chunk(0, number))
    assert box.num_dropped == 2
    box.put(Notice("s", "status", {"state": "starting", "epoch": 1}))
    box.put(chunk(0, 9))
    box.put(chunk(1, 0))

    async def drain() -> list[str]:
        items = [await box.get() for _ in range(3)]
        return [item.kind if isinstance(item, Notice) else f"{item.epoch}/{item.chunk}" for item in items]

    assert asyncio.run(drain()) == ["queue", "status", "1/0"]


def test_an_outbox_tells_the_events_of_a_dropped_chunk_with_the_next_one_of_its_epoch():
    box = Outbox(1)
    for number in range(3):
        box.put(replace(chunk(0, number), applied=(number,)))
    box.put(replace(chunk(1, 0), applied=(7,)))

    async def drain() -> tuple[int, ...]:
        return (await box.get()).applied

    assert asyncio.run(drain()) == (7,), "a new epoch does not tell of the old one's events"
    for number in range(3):
        box.put(replace(chunk(1, number), applied=(number,)))
    assert asyncio.run(drain()) == (0, 1, 2)
    assert box.num_dropped == 4


def test_warming_touches_no_page_that_a_plan_may_name():
    executor = Executor(serve(tiny_random()), 5, ManualClock(), max_rows=4)
    executor.warm([1, 4])
    for layer in range(executor.pool.shape.num_layers):
        heads = torch.arange(6 * executor.pool.shape.num_heads)
        assert not any(found.any() for found in executor.pool.read(layer, heads))
    assert executor.store.latents.num_used == executor.store.decoder.num_used == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [({"dtype": "int8"}, "dtype"), ({"threads": 0}, "threads"), ({"fixed_rows": 0}, "fixed_rows")],
)
def test_a_wrong_setting_is_refused_by_name(options, named):
    with pytest.raises(ValueError, match=named):
        EngineConfig(**options)


def test_threads_divide_the_cores_on_purpose():
    cores = len(os.sched_getaffinity(0))
    assert EngineConfig().num_threads == cores
    assert EngineConfig(spare_cores=1).num_threads == max(1, cores - 1)
    assert EngineConfig(spare_cores=1000).num_threads == 1
    assert EngineConfig(threads=3, spare_cores=1).num_threads == 3
    assert EngineConfig(deterministic=True).torch_dtype is torch.float32
    with pytest.raises(ValueError, match="deterministic"):
        EngineConfig(deterministic=True, dtype="bfloat16")


def test_what_the_user_has_set_for_waiting_stays():
    code = (
        "import os; from physis_stream.runtime.process_tuning import calm_threads, keep_memory; keep_memory();"
        "calm_threads(3); names = ('OMP_NUM_THREADS', 'OMP_WAIT_POLICY', 'GOMP_SPINCOUNT');"
        "print(*(os.environ[name] for name in names))"
    )
    root = Path(__file__).resolve().parents[2]
    environment = {"PYTHONPATH": f"{root}:{root / 'clients/python'}", "OMP_WAIT_POLICY": "ACTIVE"}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["3", "ACTIVE", "0"]
