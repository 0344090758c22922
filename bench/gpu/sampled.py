"""Part f: py-spy watches the scheduler's thread under SGLang's loop and under Photon's.

The recordings are kept beside the figures as folded stacks, which every flame graph viewer reads;
the verdict is the share of samples in each of the scheduler's duties, and in waiting.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from sglang_photon.bench.gpu import model_folder
from sglang_photon.bench.gpu.journal import Journal
from sglang_photon.bench.gpu.parts import CannotRunError
from sglang_photon.bench.gpu.served import ON_GPU, PROMPT, WARM, arguments, prepare, tokens_needed
from sglang_photon.bench.gpu.settings import Settings
from sglang_photon.bench.gpu.trace import Window
from sglang_photon.errors import PhotonError

PART = "f"
SECONDS = 8
REHEARSED_SECONDS = 3
RATE_HZ = 200
LOOPS = ("sglang", "photon")
ROWS = 16
SET_PTRACER, ANYBODY = 0x59616D61, -1

DUTIES = {
    "waiting for the device": ("synchronize", "wait"),
    "intake": ("ingest_requests", "receive"),
    "results": ("process_batch_result", "commit"),
    "planning": ("get_next_batch_to_run", "plan"),
    "launching": ("run_batch", "forward", "launch_batch_sample_if_needed", "submit", "read_back"),
}
"""Functions of either loop by duty; the first duty that a stack shows is its own."""
LOOP_FRAME = "run_event_loop"


def run(settings: Settings, journal: Journal) -> None:
    """Record both loops.

    Raises:
        CannotRunError: there is no py-spy, or it may not read this process.
    """
    tool = _tool()
    prepare(settings.device)
    _let_it_attach()
    from sglang_photon.upstream.in_process import QUIET
    from sglang_photon.upstream.three_loops import Ask, ThreeLoops

    rows = min(ROWS, max(settings.batches))
    seconds = REHEARSED_SECONDS if settings.rehearse else SECONDS
    ask = Ask(prompt=PROMPT, side=0, tokens=tokens_needed(settings), stream=True)
    with tempfile.TemporaryDirectory(prefix="photon-gpu-") as scratch:
        model = model_folder.write(Path(scratch) / "model", small=settings.rehearse)
        defaults = (*QUIET, ("--load-format", "dummy")) if settings.rehearse else ON_GPU
        with ThreeLoops.open(arguments(settings, model, ()), defaults=defaults) as loops:
            for loop in LOOPS:
                loops.use(loop)
                kept = settings.out.with_name(f"{settings.out.stem}-{loop}.folded").resolve()
                with subprocess.Popen(
                    _command(tool, kept, seconds), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                ) as recorder:
                    while recorder.poll() is None:
                        loops.steady(
                            ask,
                            batch=rows,
                            warm=WARM,
                            steps=settings.steps,
                            traced=1,
                            probe=Window(device="cpu"),
                        )
                    said = recorder.communicate()[0].decode(errors="replace")
                if recorder.returncode or not kept.exists():
                    raise CannotRunError(
                        f"py-spy cannot record here ({said.strip().splitlines()[-1:]})",
                        "Run as root, or with CAP_SYS_PTRACE",
                    )
                found = shares(kept.read_text().splitlines())
                if not found:
                    raise PhotonError(f"No sample of the {loop} loop", f"See {kept}")
                for duty, share in found.items():
                    name = f"{loop}, {rows} text rows, streaming"
                    journal.figure(PART, name, share * 100, "%", column=duty)


def shares(folded: Iterable[str]) -> dict[str, float]:
    """The share of each duty in the samples of the scheduler's loop; the rest is `other`.

    Args:
        folded: lines of `frame;frame;... count`, outermost frame first.
    """
    counts: Counter[str] = Counter()
    for line in folded:
        stack, _, count = line.rpartition(" ")
        # `Class.function (file:line)`
        frames = [frame.partition(" ")[0].rpartition(".")[2] for frame in stack.split(";")]
        if LOOP_FRAME not in frames:
            continue
        inner = set(frames[frames.index(LOOP_FRAME) :])
        duty = next((duty for duty, names in DUTIES.items() if inner.intersection(names)), "other")
        counts[duty] += int(count)
    total = sum(counts.values())
    return {duty: counts[duty] / total for duty in (*DUTIES, "other")} if total else {}


def _command(tool: str, out: Path, seconds: int) -> list[str]:
    given = ("--format", "raw", "--rate", str(RATE_HZ), "--duration", str(seconds))
    return [tool, "record", "--pid", str(os.getpid()), *given, "--output", str(out)]


def _tool() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        spec = find_spec("sglang")
        site = Path(spec.origin).parent.parent if spec is not None and spec.origin else None
        carried = site / "bin" / "py-spy" if site is not None else None
        if carried is None or not carried.exists():
            raise CannotRunError("py-spy is not installed", "pip install py-spy")
        found = str(carried)
    return found


def _let_it_attach() -> None:
    """Where a process may only be read by its parents, allow this one to be read by its child."""
    ctypes.CDLL(None).prctl(SET_PTRACER, ctypes.c_ulong(ANYBODY), 0, 0, 0)
