"""Where each loop's host time goes: `photon bench host --stages`, under py-spy."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from sglang_photon.bench.host_samples import LOOPS
from sglang_photon.errors import PhotonError, UsageError

RATE = 1000
STEPS, REQUESTS, REPS = 6000, 20, 3
"""At least so many steps, or requests of a client: a second per loop, not milliseconds."""

TOP = 4

STAGES = {
    "joins and ends": (
        "handle_generate_request",
        "get_new_batch_prefill",
        "prepare_for_extend",
        "process_batch_result_prefill",
        "release_kv_cache",
        "_release_finished",
    ),
    "wait": ("sleep_until",),
    "receive": ("receive", "ingest_requests", "recv_requests", "process_input_requests"),
    "plan": ("plan", "again", "step", "get_next_batch_to_run"),
    "launch": (
        "run_batch",
        "_launch",
        "launch_batch_sample_if_needed",
        "stage",
        "submit",
        "read_back",
        "_submitting",
    ),
    "commit": ("commit", "_commit_oldest", "process_batch_result"),
    "stream": ("stream_output", "_send", "send_output", "ask"),
}
"""Stages, and the functions that begin them. The innermost decides, except that joins and ends are
taken out wherever they happen, and that waiting is no host time."""

_FRAME = re.compile(r"(?:.*\.)?(?P<name>[\w<>]+) \((?P<file>[^():]*)(?::\d+)?\)")


def loop_of(stack: Sequence[tuple[str, str]]) -> str | None:
    """Which loop a stack (name and file, outermost first) belongs to; None outside of all."""
    found = None
    for name, _ in stack:
        if name == "event_loop_normal":
            found = "blocking"
        elif name == "event_loop_overlap":
            found = "sglang"
        elif name == "_run_photon_loop":
            found = "photon"
    return found


def stage_of(stack: Sequence[tuple[str, str]]) -> str:
    """What a stack within a loop is busy with."""
    names = [name for name, _ in stack]
    for stage in ("wait", "joins and ends"):
        if any(name in STAGES[stage] for name in names):
            return stage
    for name in reversed(names):
        for stage, functions in STAGES.items():
            if name in functions:
                return stage
    return "other"


def table(lines: Iterable[str]) -> str:
    """The stage table of what py-spy wrote: stacks, outermost frame first, and their counts."""
    samples: dict[str, Counter[str]] = {loop: Counter() for loop in LOOPS}
    leaves: dict[tuple[str, str], Counter[str]] = {}
    for line in lines:
        frames, _, count = line.rstrip("\n").rpartition(" ")
        stack = [
            (match["name"], match["file"]) for frame in frames.split(";")
            if (match := _FRAME.fullmatch(frame))
        ]  # fmt: skip
        loop = loop_of(stack)
        if loop is None or not count.isdigit():
            continue
        stage = stage_of(stack)
        samples[loop][stage] += int(count)
        name, file = stack[-1]
        leaf = f"{name} ({Path(file).name})"
        leaves.setdefault((loop, stage), Counter())[leaf] += int(count)
    rows = ["loop      stage            % of host  mostly"]
    for loop, stages_found in samples.items():
        waited = stages_found.pop("wait", 0)
        total = sum(stages_found.values())
        if not total:
            continue
        for stage, share in stages_found.most_common():
            top = ", ".join(
                f"{leaf} {here / total:.0%}"
                for leaf, here in leaves[loop, stage].most_common(TOP)
            )  # fmt: skip
            rows.append(f"{loop:9} {stage:16} {share / total:9.1%}  {top}")
        rows.append(f"{loop:9} {total} samples, and {waited} while waiting for the device\n")
    return "\n".join(rows)


def stages(arguments: Sequence[str], *, steps: int, requests: int) -> int:
    """Run the benchmark in a child process under py-spy, and print its stage table.

    Args:
        arguments: what is measured.
        steps: decode steps of a steady load; more, if these are few.
        requests: of a closed-loop client; more, if these are few.

    Raises:
        PhotonError: py-spy may not look into a child process here, or the child failed.
    """
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if spy is None:
        raise UsageError("There is no py-spy", "Install it: pip install py-spy")
    command = [sys.executable, "-m", "sglang_photon.bench", "host", *arguments]
    command += ["--reps", str(REPS), "--steps", str(max(steps, STEPS))]
    command += ["--requests", str(max(requests, REQUESTS))]
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "stacks"
        spying = [spy, "record", "--rate", str(RATE), "--format", "raw", "--output", str(raw)]
        code = subprocess.run([*spying, "--", *command], check=False).returncode
        if code or not raw.exists():
            raise PhotonError(
                f"py-spy ended with code {code}",
                "Its message is above; it needs ptrace: a container wants --cap-add SYS_PTRACE",
            )
        print(table(raw.read_text().splitlines()))
    return 0
