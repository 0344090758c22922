"""Which phase of a tick a stack belongs to, by the functions on it; and which known hot spot.

The innermost function that says something decides: a commit inside a plan is a commit. Waiting for
the device decides before everything else, so that it is never counted as work of the host. On a
CPU the forward itself is the device's work; on a GPU the same function only launches kernels.

`SGLANG` is checked against SGLang's sources by `tests/contract/test_profiled_functions.py`.
"""

from __future__ import annotations

import functools
import linecache
import re
from collections import defaultdict
from dataclasses import dataclass

from sglang_photon.observe import phases
from sglang_photon.observe.phases import NAMES
from sglang_photon.profiling.samples import Frame, Samples, Stack, ThreadSamples

OTHER = "other"
WAIT, IDLE = NAMES[phases.WAIT], NAMES[phases.IDLE]
PHASES = (*NAMES, OTHER)
"""Every phase that a sample of the scheduler's thread can have."""

HOST = tuple(NAMES[phase] for phase in phases.HOST)

PHOTON = {
    ("loop/tick.py", "_settle"): "plan",
    ("loop/tick.py", "_launch"): "launch",
    ("loop/tick.py", "_commit_oldest"): "commit",
    ("loop/tick.py", "_sample"): "sample",
    ("upstream/host.py", "receive"): "receive",
    ("upstream/host.py", "plan"): "plan",
    ("upstream/host.py", "chores"): "chores",
    ("upstream/host.py", "release"): "commit",
    ("upstream/host.py", "rest"): IDLE,
    ("upstream/host.py", "wait_paused"): IDLE,
    ("observe/meter.py", "_publish"): "chores",
    ("slots/lane.py", "wait"): WAIT,
    ("slots/sim.py", "wait"): WAIT,
    ("slots/sim.py", "sleep_until"): WAIT,
}
"""Photon's loop: the end of a file's path, the function, and the phase."""

SGLANG = {
    ("managers/scheduler.py", "ingest_requests"): "receive",
    ("managers/scheduler.py", "process_input_requests"): "receive",
    ("managers/scheduler.py", "get_next_batch_to_run"): "plan",
    ("managers/scheduler.py", "run_batch"): "launch",
    ("managers/scheduler.py", "process_batch_result"): "commit",
    ("managers/scheduler.py", "launch_batch_sample_if_needed"): "sample",
    ("managers/scheduler.py", "on_idle"): IDLE,
    ("managers/scheduler_components/idle_sleeper.py", "maybe_sleep"): IDLE,
    ("managers/async_d2h_copy_worker.py", "synchronize"): WAIT,
}
"""The same for SGLang's own loops."""

TORCH_WAITS = frozenset({"synchronize"})
FORWARD = {
    ("upstream/step.py", "forward"),
    ("upstream/row_step.py", "forward"),
    ("managers/tp_worker.py", "forward_batch_generation"),
    ("managers/tp_worker.py", "forward_batch_embedding"),
    ("model_executor/model_runner.py", "forward"),
}
"""Where a CPU computes; where a GPU is told to."""

SYNCHRONISING = re.compile(
    r"\.(?:tolist|item|cpu|numpy|synchronize)\(|non_blocking=False|\.nonzero\("
)
"""Calls into torch that wait for a CUDA device and leave no Python frame."""

BLOCKING = re.compile(
    r"\b(?:sleep|acquire|wait|select|poll|epoll|recv\w*|accept|communicate|flock|synchronize)\("
    r"|\.(?:get|join)\(\)"
)
"""Calls in which a thread waits, outside the scheduler's loop."""

HOT_SPOTS = {
    "image hash": {"hash_feature", "tensor_hash", "data_hash", "set_pad_value"},
    "unpickle": {"recv_pyobj", "unwrap_shm_features", "loads"},
    "handle open": {"_new_shared_cuda", "reconstruct_on_target_device"},
    "unmap": {"release_features"},
    "grammar mask": {"update_regex_vocab_mask", "fill_vocab_mask", "allocate_vocab_mask"},
    "KV release": {"release_kv_cache"},
    "streaming": {"stream_output"},
}
"""What this project knows to be slow, by function names."""

LOOPS = frozenset({"run_event_loop", "event_loop_normal", "event_loop_overlap", "tick"})
WAITING_FILES = ("/threading.py", "/selectors.py", "/queue.py", "/concurrent/futures/thread.py")


@dataclass(frozen=True, kw_only=True)
class Device:
    """What the phases depend on.

    Attributes:
        on_cpu: forwards are computed by the process's own threads.
        simulated: there is no forward, only a clock.
    """

    on_cpu: bool = False
    simulated: bool = False


def scheduler_thread(samples: Samples) -> ThreadSamples | None:
    """The thread that runs a scheduler's loop."""
    for thread in samples.threads:
        if any(f.function in LOOPS for interval in thread.intervals[:50] for f in interval.stack):
            return thread
    return None


def phase_of(stack: Stack, device: Device) -> str:
    """The phase of one stack of the scheduler's thread."""
    if waits_for_device(stack, device):
        return WAIT
    for frame in reversed(stack):
        phase = table_phase(frame.file, frame.function)
        if phase is not None:
            return phase
    return OTHER


def waits_for_device(stack: Stack, device: Device) -> bool:
    """Whether the thread waits for the device, or is the device."""
    for frame in reversed(stack):
        if table_phase(frame.file, frame.function) == WAIT:
            return True
        if frame.function in TORCH_WAITS and "/torch/" in frame.file:
            return True
        if device.on_cpu and not device.simulated and is_forward(frame):
            return True
    leaf = stack[-1]
    in_engine = "/sglang" in leaf.file or "/torch/" in leaf.file
    return (
        in_engine
        and not device.on_cpu
        and bool(SYNCHRONISING.search(linecache.getline(leaf.file, leaf.line)))
    )


def waits(stack: Stack, device: Device) -> bool:
    """Whether a thread waits for anything: a lock, a socket, a timer, the device."""
    leaf = stack[-1]
    if any(leaf.file.endswith(file) for file in WAITING_FILES):
        return True
    if waits_for_device(stack, device):
        return True
    return bool(BLOCKING.search(linecache.getline(leaf.file, leaf.line)))


def hot_spot(stack: Stack) -> str | None:
    """The known hot spot that a stack is in."""
    for frame in reversed(stack):
        for name, functions in HOT_SPOTS.items():
            if frame.function in functions:
                return name
    return None


def is_forward(frame: Frame) -> bool:
    """Whether a frame is where a CPU computes the forward."""
    return any(frame.function == name and frame.file.endswith(path) for path, name in FORWARD)


def blamed(stack: Stack) -> Frame:
    """The function that a person would look into.

    The innermost one that is not Python's or a library's own, and not the wait itself: the caller
    of a sleep, of a lock or of a synchronisation is what can be changed.
    """
    for frame in reversed(stack):
        if is_library(frame.file) or table_phase(frame.file, frame.function) == WAIT:
            continue
        return frame
    return stack[-1]


@dataclass(slots=True)
class Activity:
    """What all threads of a process did.

    Attributes:
        busy: seconds by function, where a thread worked.
        waiting: seconds by function, where it waited.
    """

    busy: dict[str, float]
    waiting: dict[str, float]

    def describe(self) -> str:
        """For a terminal: who worked, and how much of it all was waiting."""
        total = sum(self.busy.values()) or 1.0
        ranked = sorted(self.busy.items(), key=lambda item: -item[1])[:3]
        worked = ", ".join(f"{name} {spent / total:.0%}" for name, spent in ranked)
        return f"at work: {worked or 'nobody'}; waiting: {sum(self.waiting.values()):.1f} s"


def shares(thread: ThreadSamples, device: Device) -> tuple[str, str]:
    """For people: a thread's phases, and the known hot spots in it, in percent of its time."""
    found = [phase_seconds(thread, device), hot_spot_seconds(thread)]
    texts = []
    for seconds in found:
        ranked = sorted(seconds.items(), key=lambda item: -item[1])
        texts.append(
            ", ".join(f"{name} {spent / thread.seconds * 100:.1f} %" for name, spent in ranked)
        )
    return texts[0], texts[1] or "none"


def activity(samples: Samples, device: Device) -> Activity:
    """Tell work from waiting, for every thread of a process."""
    found = Activity(defaultdict(float), defaultdict(float))
    for _, interval in samples:
        kind = found.waiting if waits(interval.stack, device) else found.busy
        kind[blamed(interval.stack).label()] += interval.seconds
    return found


def phase_seconds(thread: ThreadSamples, device: Device) -> dict[str, float]:
    """Seconds of the scheduler's thread in each phase."""
    found: dict[str, float] = defaultdict(float)
    for interval in thread.intervals:
        found[phase_of(interval.stack, device)] += interval.seconds
    return dict(found)


def hot_spot_seconds(thread: ThreadSamples) -> dict[str, float]:
    """Seconds of a thread in each known hot spot."""
    found: dict[str, float] = defaultdict(float)
    for interval in thread.intervals:
        name = hot_spot(interval.stack)
        if name is not None:
            found[name] += interval.seconds
    return dict(found)


@functools.lru_cache(maxsize=4096)
def table_phase(file: str, function: str) -> str | None:
    """The phase that a function stands for by itself."""
    for table in (PHOTON, SGLANG):
        for (path, name), phase in table.items():
            if function == name and file.endswith(path):
                return phase
    return None


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a file is Python's or a library's, and not SGLang's or ours."""
    if "/sglang/" in file or "/sglang_photon/" in file:
        return False
    return "/site-packages/" in file or "/lib/python3" in file or file.startswith("<")
