"""Stacks in time order, phases, hot spots, and what other tools read."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from sglang_photon.errors import UsageError
from sglang_photon.profiling import flame, timeline
from sglang_photon.profiling.folder import Recording
from sglang_photon.profiling.outputs import write_outputs
from sglang_photon.profiling.phases import (
    Device,
    blamed,
    hot_spot,
    hot_spot_seconds,
    phase_of,
    phase_seconds,
    scheduler_thread,
    shares,
)
from sglang_photon.profiling.samples import Frame, Stack, collapse, load, parse, speedscope
from tests.unit.profiling.recordings import (
    COMMIT_STACK,
    LAUNCH_STACK,
    LOOP,
    PLAN_STACK,
    RECEIVE_STACK,
    SITE,
    WAIT_STACK,
    Call,
    recording,
    steps,
    trace,
)

GPU, CPU = Device(), Device(on_cpu=True)


def stack(calls: list[Call]) -> Stack:
    return tuple(Frame(*call) for call in calls)


def sglang(name: str, file: str) -> Call:
    return (name, f"{SITE}/srt/{file}", 1)


BLOCKING = [("<module>", "/x", 1), sglang("Scheduler.event_loop_normal", "managers/scheduler.py")]


@pytest.mark.parametrize(
    ("calls", "phase"),
    [
        (RECEIVE_STACK, "receive"),
        (PLAN_STACK, "plan"),
        (LAUNCH_STACK, "launch"),
        (COMMIT_STACK, "commit"),
        (WAIT_STACK, "wait for device"),
        ([*RECEIVE_STACK, *COMMIT_STACK[3:]], "commit"),
        ([*LOOP, ("SchedulerHost.rest", "/x/sglang_photon/upstream/host.py", 1)], "idle"),
        ([*COMMIT_STACK, ("StepMeter._publish", "/x/observe/meter.py", 1)], "chores"),
        (LOOP, "other"),
        ([*BLOCKING, sglang("Scheduler.ingest_requests", "managers/scheduler.py")], "receive"),
        ([*BLOCKING, sglang("Scheduler.get_next_batch_to_run", "managers/scheduler.py")], "plan"),
        ([*BLOCKING, sglang("Scheduler.run_batch", "managers/scheduler.py")], "launch"),
        ([*BLOCKING, sglang("Scheduler.process_batch_result", "managers/scheduler.py")], "commit"),
        ([*BLOCKING, sglang("Scheduler.on_idle", "managers/scheduler.py")], "idle"),
        (
            [*COMMIT_STACK, ("Event.synchronize", "/x/site-packages/torch/cuda/streams.py", 1)],
            "wait for device",
        ),
    ],
)
def test_the_innermost_function_that_says_something_decides(calls: list[Call], phase: str) -> None:
    assert phase_of(stack(calls), GPU) == phase


def test_a_forward_is_the_devices_on_a_cpu_and_a_launch_on_a_gpu() -> None:
    forward = sglang("TpModelWorker.forward_batch_generation", "managers/tp_worker.py")
    calls = stack([*LAUNCH_STACK, forward, ("linear", "/x/site-packages/torch/nn/f.py", 1)])
    assert phase_of(calls, GPU) == "launch"
    assert phase_of(calls, CPU) == "wait for device"
    assert phase_of(calls, Device(on_cpu=True, simulated=True)) == "launch"


def test_a_copy_to_the_host_waits_for_a_gpu_but_leaves_no_frame(tmp_path: Path) -> None:
    file = tmp_path / "sglang" / "result.py"
    file.parent.mkdir()
    file.write_text("ids = next_token_ids.tolist()\nn = len(ids)\n")
    waits = stack([*COMMIT_STACK, ("process", str(file), 1)])
    works = stack([*COMMIT_STACK, ("process", str(file), 2)])
    assert phase_of(waits, GPU) == "wait for device"
    assert phase_of(works, GPU) == "commit"
    assert phase_of(waits, CPU) == "commit"


@pytest.mark.parametrize(
    ("function", "spot"),
    [
        ("hash_feature", "image hash"),
        ("reconstruct_on_target_device", "handle open"),
        ("release_features", "unmap"),
        ("BaseGrammarObject.fill_vocab_mask", "grammar mask"),
        ("release_kv_cache", "KV release"),
        ("OutputStreamer.stream_output", "streaming"),
        ("anything", None),
    ],
)
def test_known_hot_spots(function: str, spot: str | None) -> None:
    calls = stack([*RECEIVE_STACK, (function, "/x/a.py", 1), ("inner", "/x/b.py", 1)])
    assert hot_spot(calls) == spot


def test_the_caller_of_a_library_is_blamed() -> None:
    calls = stack(
        [*PLAN_STACK, ("ours", "/x/ours.py", 1), ("dumps", "/usr/lib/python3.11/j.py", 2)]
    )
    assert blamed(calls).name == "ours"
    assert blamed(stack([("run", "/usr/lib/python3.11/threading.py", 1)])).name == "run"


def test_intervals_and_phases_add_up_to_the_time() -> None:
    samples = parse(
        trace([(PLAN_STACK, 0.5), (COMMIT_STACK, 0.25), (WAIT_STACK, 1.0), (PLAN_STACK, 0.25)]),
        offset=100.0,
    )
    thread = scheduler_thread(samples)
    assert thread is not None
    assert (samples.start, samples.end) == pytest.approx((100.0, 102.0))
    assert [round(interval.seconds, 6) for interval in thread.intervals] == [0.5, 0.25, 1.0, 0.25]
    assert phase_seconds(thread, GPU) == pytest.approx(
        {"plan": 0.75, "commit": 0.25, "wait for device": 1.0}
    )
    assert hot_spot_seconds(thread) == {}
    assert shares(thread, GPU) == ("wait for device 50.0 %, plan 37.5 %, commit 12.5 %", "none")
    collapsed = collapse(samples)
    assert sum(collapsed.values()) == pytest.approx(2000, abs=2)
    assert max(collapsed, key=collapsed.__getitem__).endswith("CudaLane.wait (slots/lane.py)")


def test_speedscope_has_every_sample_and_its_weight() -> None:
    data = speedscope(parse(trace([(PLAN_STACK, 0.5), (WAIT_STACK, 1.0)]), offset=0.0), name="s")
    (profile,) = data["profiles"]
    assert profile["unit"] == "seconds"
    assert sum(profile["weights"]) == pytest.approx(profile["endValue"]) == pytest.approx(1.5)
    frames = data["shared"]["frames"]
    assert [frames[i]["name"] for i in profile["samples"][1]] == [call[0] for call in WAIT_STACK]


def test_no_samples_are_no_error() -> None:
    samples = parse([], offset=5.0)
    assert (samples.threads, scheduler_thread(samples), collapse(samples)) == ([], None, {})


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('[{"ph": "B"')
    with pytest.raises(UsageError, match=r"x\.json is no Chrome trace"):
        load(tmp_path / "x.json", offset=0.0)


def test_a_flame_graph_is_drawn_to_scale_and_escapes_names() -> None:
    evil = [("<module>", "/x", 1), ('f"<b>&', "/x/e.py", 1)]
    samples = parse(trace([(evil, 1.0), (PLAN_STACK, 3.0)]), offset=0.0)
    root = ET.fromstring(flame.svg(flame.tree(samples), title="<t>"))
    boxes = {
        str(group[0].text).partition(":")[0]: float(group[1].get("width", "0"))
        for group in root.iter("{http://www.w3.org/2000/svg}g")
    }
    assert boxes['f"<b>& (x/e.py)'] == pytest.approx(flame.WIDTH / 4)
    assert boxes["all"] == flame.WIDTH


def test_a_difference_has_both_shares() -> None:
    tree = flame.difference({"a;b": 30, "a;c": 70}, {"a;b": 50, "a;d": 50})
    node = tree.children["a"]
    assert node.value == pytest.approx(1.0)
    assert (node.children["b"].before, node.children["b"].value) == pytest.approx((0.3, 0.5))
    assert "rgb(" in flame.svg(tree, title="")


def test_the_time_line_has_three_tracks_on_one_clock(tmp_path: Path) -> None:
    made = recording(
        tmp_path,
        stacks=[(PLAN_STACK, 0.5), (WAIT_STACK, 0.5)],
        records=steps(40, idle_s=2e-3, every=2),
    )
    events = timeline.events(made)["traceEvents"]
    tracks = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    assert len(tracks) == 3
    by_track = {
        name: [e for e in events if e["ph"] == "X" and e["tid"] == tid]
        for name, tid in tracks.items()
    }
    assert [e["name"] for e in by_track[timeline.TRACKS[timeline.CPU]]] == [
        *("plan", "wait for device"),
    ]
    lane = by_track["lane: steps"]
    assert [e["name"] for e in lane] == ["prefill"] + ["decode"] * 39
    bubbles = by_track["bubbles"]
    assert len(bubbles) == 19
    assert {e["name"] for e in bubbles} == {"plan"}
    assert bubbles[0]["ts"] + bubbles[0]["dur"] == pytest.approx(lane[2]["ts"], abs=1)


def test_all_files_of_a_recording(tmp_path: Path) -> None:
    made = recording(tmp_path, stacks=[(PLAN_STACK, 0.5)], records=steps(40))
    write_outputs(Recording.open(made.path))
    assert {path.name for path in tmp_path.iterdir()} == {
        *("meta.json", "scheduler.trace.json", "scheduler.steps.npy", "scheduler.stacks.txt"),
        *("scheduler.speedscope.json", "scheduler.flame.svg", "timeline.json"),
    }
    assert json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]


@pytest.mark.parametrize("text", [None, "{", '{"version": 99}'])
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "meta.json").write_text(text)
    with pytest.raises(UsageError, match="recording"):
        Recording.open(tmp_path)
