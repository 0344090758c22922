"""Part b: lanes, slots and the two-slot loop on a device, without SGLang.

For each batch and each amount of host work: T_gpu (the forward alone, queued back to back), T_block
and T_pipe (wall time per step of either loop), and the device's idle time per step from events.
Then P6 on CUDA: the steady ticks run under torch's synchronisation debugging, the allocators'
counters must stand still, and a trace counts what the driver was asked for.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch

from sglang_photon.bench.gpu.clock import milliseconds
from sglang_photon.bench.gpu.decoder import QWEN25_VL_3B, TINY, Decoder
from sglang_photon.bench.gpu.journal import NO_CUDA, Journal, Value
from sglang_photon.bench.gpu.settings import Settings
from sglang_photon.bench.gpu.stepping import (
    Load,
    Trace,
    blocking,
    make_lane,
    make_slots,
    pipelined,
)
from sglang_photon.bench.gpu.trace import Window

PART = "b"
WARM = 4
CONTEXT = 512
PROMPT = 128
ROUNDS = 3
DEVICE_COUNTERS = ("num_device_alloc", "num_alloc_retries", "segment.all.allocated")
HOST_COUNTERS = ("num_host_alloc", "num_host_free")
WAITS = ("Synchronize", "cudaMalloc", "cudaHostAlloc", "cudaHostRegister", "cudaFree")
"""Parts of the driver calls' names that a steady tick must not make, but for the commit's event."""


def run(settings: Settings, journal: Journal) -> None:
    """All cells, then P6."""
    device = settings.device
    small = settings.rehearse
    decoder = Decoder(
        shape=TINY if small else QWEN25_VL_3B,
        device=device,
        rows=max(settings.batches),
        context=64 if small else CONTEXT,
    )
    prompt = 8 if small else PROMPT
    journal.figure(PART, "weights read by a step", decoder.nbytes / 1e9, "GB")
    bench = _Bench(settings=settings, journal=journal, decoder=decoder, prompt=prompt)
    try:
        for batch in settings.batches:
            bench.cells(batch)
        bench.p6(max(settings.batches))
    finally:
        bench.lane.close()


class _Bench:
    def __init__(
        self, *, settings: Settings, journal: Journal, decoder: Decoder, prompt: int
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._decoder = decoder
        self._prompt = prompt
        self._device = settings.device
        self.lane = make_lane(self._device)
        self._slots = make_slots(self._device, max(settings.batches))

    def cells(self, batch: int) -> None:
        """One batch with each amount of host work."""
        load = self._load(batch)
        self._decoder.reset(prompt=self._prompt)
        device_ms = milliseconds(load.forward, device=self._device, repeats=20)
        self._say(f"T_gpu, {batch} rows", device_ms * 1e3, "µs")
        for host_us in self._settings.host_us:
            self._cell(replace(load, host_s=host_us / 1e6), device_us=device_ms * 1e3)

    def p6(self, batch: int) -> None:
        """A steady tick waits for the commit's event and takes no memory."""
        names = (
            "P6: an unwanted wait is noticed (control)",
            "P6: the steady ticks wait for nothing else",
            "P6: allocator counters that moved",
            "P6: driver calls of the steady ticks",
        )
        if self._device != "cuda":
            for name in names:
                self._say(name, None, note=NO_CUDA)
            return
        load = self._load(batch)
        self._run(pipelined, load)  # What is made once is made here.
        self._say(names[0], _forbidden(lambda: load.tokens.sum().item()) is not None)
        before = _counters()
        trouble = _forbidden(lambda: self._run(pipelined, load, rewind=False))
        moved = {name: after - before[name] for name, after in _counters().items()}
        self._say(names[1], trouble is None, note=trouble or f"{load.steps} ticks, {batch} rows")
        self._say(names[2], _counted({name: n for name, n in moved.items() if n}))
        calls = _driver_calls(lambda: self._run(pipelined, load, rewind=False))
        self._say(names[3], _counted(calls), note=f"{load.steps} ticks")

    def _load(self, batch: int) -> Load:
        return Load(
            batch=batch,
            forward=self._decoder.forward_for(batch),
            tokens=self._decoder.tokens[:batch],
            host_s=0.0,
            steps=self._settings.steps + WARM,
        )

    def _cell(self, load: Load, *, device_us: float) -> None:
        cell = f"{load.batch} rows, host {load.host_s * 1e6:g} µs"
        blocked, piped = [], []
        for _ in range(ROUNDS):  # In turn: a machine that gets slower slows both.
            blocked.append(self._run(blocking, load))
            piped.append(self._run(pipelined, load))
        t_block = statistics.median(_step_us(trace) for trace in blocked)
        t_pipe = statistics.median(_step_us(trace) for trace in piped)
        host_us = t_block - device_us
        predicted = (device_us + host_us) / max(device_us, host_us)
        late = sum(trace.late or 0 for trace in piped) / (len(piped) * load.steps) * 100
        same = all(trace.tokens == blocked[0].tokens for trace in (*blocked, *piped))
        figures: dict[str, tuple[Value, str]] = {
            "T_block": (t_block, "µs"),
            "T_pipe": (t_pipe, "µs"),
            "T_block / T_pipe": (t_block / t_pipe, ""),
            "predicted": (predicted, ""),
            "idle per step, blocking": (_idle_us(blocked), "µs"),
            "idle per step, two slots": (_idle_us(piped), "µs"),
            "launches that were late": (late, "%"),
            "same tokens": (same, ""),
        }
        for column, (value, unit) in figures.items():
            note = NO_CUDA if value is None else ""
            self._journal.figure(PART, cell, value, unit, note, column=column)

    def _run(self, loop: Callable[..., Trace], load: Load, *, rewind: bool = True) -> Trace:
        if rewind:
            self._decoder.reset(prompt=self._prompt)
        trace = loop(load, lane=self.lane, slots=self._slots, device=self._device)
        if rewind and self._device == "cuda":
            torch.cuda.synchronize()
        return trace

    def _say(self, name: str, value: Value, unit: str = "", note: str = "") -> None:
        self._journal.figure(PART, name, value, unit, note)


def _step_us(trace: Trace) -> float:
    steady = trace.commits[WARM:-1]
    return statistics.median(b - a for a, b in itertools.pairwise(steady)) * 1e6


def _idle_us(traces: list[Trace]) -> float | None:
    gaps = [gap for trace in traces for gap in trace.gaps.between(skip=WARM)]
    return statistics.fmean(gaps) * 1e3 if gaps else None


def _forbidden(work: Callable[[], object]) -> str | None:
    """Run under synchronisation debugging: what torch says of a wait, None if there was none."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return None


def _counters() -> dict[str, int]:
    """How often each allocator asked the driver."""
    device = torch.cuda.memory_stats()
    host = torch.cuda.host_memory_stats()
    return {
        **{name: int(device.get(name, 0)) for name in DEVICE_COUNTERS},
        **{name: int(host.get(name, 0)) for name in HOST_COUNTERS},
    }


def _driver_calls(work: Callable[[], object]) -> Counter[str]:
    """Waits and allocations in a trace of the work."""
    window = Window(device="cuda")
    window.start()
    work()
    window.stop()
    names = (record.name for record in window.records() if not record.on_device)
    return Counter(name for name in names if any(part in name for part in WAITS))


def _counted(counts: Counter[str] | dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
