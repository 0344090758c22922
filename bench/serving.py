"""One measured run of SGLang's own `bench_serving` against a server, and what it found.

The client is SGLang's, in a process of its own, so that two servers are judged by the yardstick
that their users already know. It writes every answer down; two servers that answer the same
requests greedily should give the same ones.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_photon.errors import PhotonError

CLIENT = (sys.executable, "-m", "sglang_photon.upstream.bench_client")
FIGURES = {
    "request_throughput": "req/s",
    "output_throughput": "tok/s",
    "median_ttft_ms": "TTFT p50",
    "p99_ttft_ms": "TTFT p99",
    "median_tpot_ms": "TPOT p50",
    "p99_tpot_ms": "TPOT p99",
    "median_itl_ms": "ITL p50",
    "p99_itl_ms": "ITL p99",
}
"""What is taken from the client's report, and how it is called in ours; latencies in ms."""
LAST_LINES = 15
SAMPLE_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked of a server.

    Attributes:
        data: `text` or `image`.
        rate: requests per second; None: as fast as `concurrency` allows.
        concurrency: requests at a time; None: no bound.
        prompts: how many requests.
        input_tokens: of each prompt, without its picture.
        output_tokens: of each answer.
        resolution: of the pictures, `heightxwidth`.
    """

    data: str
    rate: float | None
    concurrency: int | None
    prompts: int
    input_tokens: int
    output_tokens: int
    resolution: str

    @property
    def name(self) -> str:
        """In tables."""
        pace = [f"{self.rate:g} req/s"] if self.rate is not None else []
        pace += [f"{self.concurrency} at a time"] if self.concurrency is not None else []
        return f"{self.data}, {', '.join(pace) or 'all at once'}"

    def arguments(self) -> list[str]:
        """Of SGLang's client."""
        picture = ("--image-count", "1", "--image-resolution", self.resolution)
        return [
            *("--backend", "sglang-oai-chat" if self.data == "image" else "sglang"),
            *("--dataset-name", "image" if self.data == "image" else "random-ids"),
            *("--random-input-len", str(self.input_tokens)),
            *("--random-output-len", str(self.output_tokens), "--random-range-ratio", "1.0"),
            *(picture if self.data == "image" else ()),
            *("--num-prompts", str(self.prompts)),
            *("--request-rate", "inf" if self.rate is None else str(self.rate)),
            *(() if self.concurrency is None else ("--max-concurrency", str(self.concurrency))),
        ]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run.

    Attributes:
        figures: those of `FIGURES`, by the client's names.
        completed: requests that were answered.
        idle_pct: of the time, the GPU ran no kernel, as its driver samples it; None without one.
        answers: texts, in the order of the requests.
    """

    figures: dict[str, float]
    completed: int
    idle_pct: float | None
    answers: tuple[str, ...]


def drive(
    load: Load,
    *,
    port: int,
    model: str,
    environ: Mapping[str, str],
    log: Path,
) -> Measured:
    """Run the client once.

    Args:
        load: what to ask.
        port: of the server, on this machine.
        model: what requests call the model, and where the client finds tokenizer and processor.
        environ: of the client.
        log: receives what the client prints; its report is put beside it.

    Raises:
        PhotonError: the client failed, or not every request was answered.
    """
    found = log.with_suffix(".jsonl")
    command = [
        *CLIENT,
        *load.arguments(),
        *("--host", "127.0.0.1", "--port", str(port), "--model", model),
        *("--output-file", str(found), "--output-details", "--disable-tqdm"),
        *("--seed", "1", "--flush-cache", "--warmup-requests", "1"),
    ]
    with log.open("wb") as output, _idle_share() as idle:
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env=dict(environ), check=False,
        ).returncode  # fmt: skip
    if code or not found.exists():
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
        raise PhotonError(
            f"SGLang's benchmark client ended with exit code {code}", f"It printed ({log}):\n{tail}"
        )
    measured = read_report(json.loads(found.read_text().splitlines()[-1]), idle=idle())
    if measured.completed != load.prompts:
        raise PhotonError(
            f"{measured.completed} of {load.prompts} requests were answered", f"See {log}"
        )
    return measured


def read_report(report: Mapping[str, Any], *, idle: float | None) -> Measured:
    """The client's report, reduced to what we compare."""
    return Measured(
        figures={name: float(report[name]) for name in FIGURES},
        completed=int(report["completed"]),
        idle_pct=idle,
        answers=tuple(report["generated_texts"]),
    )


class _Idle:
    """What a sampling thread saw."""

    def __init__(self) -> None:
        self.busy: list[int] = []

    def __call__(self) -> float | None:
        return 100 - statistics.fmean(self.busy) if self.busy else None


@contextlib.contextmanager
def _idle_share() -> Iterator[_Idle]:
    """Sample the driver's utilisation of the first GPU while the block runs."""
    idle, done = _Idle(), threading.Event()
    read = _utilisation()
    if read is None:
        yield idle
        return

    def sample() -> None:
        while not done.wait(SAMPLE_S):
            idle.busy.append(read())

    thread = threading.Thread(target=sample, name="photon-idle", daemon=True)
    thread.start()
    try:
        yield idle
    finally:
        done.set()
        thread.join()


def _utilisation() -> Any:
    """A function that gives the per cent of time in which a kernel ran; None without a GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except (ImportError, OSError):
        return None
    except Exception as error:
        if type(error).__module__ != "pynvml":
            raise
        return None  # No driver, no device.
    return lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu


def equal_answers(runs: Sequence[Sequence[str]]) -> tuple[int, int]:
    """How many requests all runs answered alike, and how many there were."""
    rows = list(zip(*runs, strict=True))
    return sum(len(set(row)) == 1 for row in rows), len(rows)
