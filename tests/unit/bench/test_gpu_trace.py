"""What part d and part f read out of traces and recordings."""

from __future__ import annotations

from sglang_photon.bench.gpu.sampled import shares
from sglang_photon.bench.gpu.served import overlap
from sglang_photon.bench.gpu.trace import Record, Window, summarise

US = 1000


def kernel(start_us: float, end_us: float, name: str = "gemm") -> Record:
    return Record(
        name=name, on_device=True, start_ns=round(start_us * US), end_ns=round(end_us * US)
    )


def call(name: str) -> Record:
    return Record(name=name, on_device=False, start_ns=0, end_ns=1)


def test_gaps_between_kernels_are_idle() -> None:
    found = summarise([kernel(0, 100), kernel(140, 200), kernel(120, 130)], steps=2)
    assert found is not None
    assert found.idle_us == 15.0  # 100 to 120 and 130 to 140, over two steps.
    assert found.span_us == 100.0
    assert found.busy_us == 85.0


def test_gaps_inside_a_graph_are_not() -> None:
    found = summarise([kernel(0, 100), kernel(104.9, 200)], steps=1)
    assert found is not None
    assert found.idle_us == 0.0


def test_a_copy_does_not_keep_the_device_busy() -> None:
    copy = kernel(100, 150, "Memcpy DtoH (Device -> Pinned)")
    found = summarise([kernel(0, 100), copy, kernel(150, 200)], steps=1)
    assert found is not None
    assert found.idle_us == 50.0


def test_kernels_that_overlap_are_counted_once() -> None:
    found = summarise([kernel(0, 100), kernel(10, 50), kernel(90, 200)], steps=1)
    assert found is not None
    assert found.idle_us == 0.0


def test_waits_and_pageable_copies_are_counted_per_step() -> None:
    records = [
        kernel(0, 1),
        call("cudaStreamSynchronize"),
        call("cudaStreamSynchronize"),
        call("cudaEventSynchronize"),
        call("cudaLaunchKernel"),
        kernel(2, 3, "Memcpy HtoD (Pageable -> Device)"),
    ]
    found = summarise(records, steps=2)
    assert found is not None
    assert found.waits == {"cudaStreamSynchronize": 1.0, "cudaEventSynchronize": 0.5}
    assert found.stream_waits == 1.0
    assert found.pageable_copies == 0.5
    assert "cudaStreamSynchronize 1" in found.text()


def test_without_a_kernel_there_is_nothing_to_say() -> None:
    assert summarise([call("cudaStreamSynchronize")], steps=1) is None
    window = Window(device="cpu")
    window.start()
    window.stop()
    assert window.records() == []


def test_kernels_beside_a_long_one() -> None:
    stall = kernel(100, 1100, "spin_kernel(long)")
    others = [kernel(0, 200), kernel(300, 400), kernel(350, 450), kernel(1000, 1200)]
    assert overlap([stall, *others], name="spin_kernel") == (1000.0, 350.0)
    assert overlap(others, name="spin_kernel") == (0.0, 0.0)


def test_samples_by_duty() -> None:
    stack = "main (a.py:1);Scheduler.run_event_loop (b.py:2);"
    folded = [
        stack + "Photon.tick (c.py:1);CudaLane.wait (d.py:2) 5",
        stack + "Scheduler.event_loop_overlap (b.py:3);Scheduler.run_batch (b.py:9) 3",
        stack + "Scheduler.process_batch_result (b.py:4);stream_output (e.py:7) 2",
        "thread (x.py:1);Thread.run (y.py:2);wait (y.py:3) 90",
    ]
    found = shares(folded)
    assert found["waiting for the device"] == 0.5
    assert found["launching"] == 0.3
    assert found["results"] == 0.2
    assert found["other"] == 0.0


def test_without_a_sample_of_the_loop_there_are_no_shares() -> None:
    assert shares(["thread (x.py:1) 3"]) == {}
