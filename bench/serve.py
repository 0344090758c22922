"""`photon bench serve`: stock SGLang and Photon in turn, on your model, on your machine.

    photon bench serve --model-path Qwen/Qwen2.5-VL-3B-Instruct [any SGLang flag]

Each round starts a server with one loop, drives it with SGLang's own `bench_serving`, stops it, and
goes on with the next loop; every second round goes the other way round, so that a machine that gets
slower meanwhile slows both. The report is Markdown and JSON; everything the servers and the client
printed lies beside it.

    req/s, tok/s     completed requests and generated tokens per second
    TTFT, TPOT, ITL  ms until the first token, per further token, between two pieces of text
    idle             share of time in which no kernel ran, as the GPU's driver samples it
    equal            greedy answers that are the same under every loop
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sglang_photon import hardware, reference
from sglang_photon.arguments import MODEL_PATH, ArgumentList
from sglang_photon.bench.serving import FIGURES, Load, Measured, drive, equal_answers
from sglang_photon.errors import UsageError
from sglang_photon.reference.models import names
from sglang_photon.server_process import ServerProcess

LOOPS = ("sglang", "photon", "blocking")
NAMES = {"sglang": "SGLang", "photon": "Photon", "blocking": "SGLang, no overlap"}
DATA = ("text", "image")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One loop under one load: the median of its rounds, figure by figure."""

    loop: str
    load: str
    rounds: int
    figures: dict[str, float]
    idle_pct: float | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """All cells, and which answers were the same.

    Attributes:
        model: as it was asked for.
        flags: SGLang's flags of both servers.
        cells: by load, then by loop.
        equal: by load: answers that are the same in every run, and how many there were.
    """

    model: str
    flags: tuple[str, ...]
    cells: tuple[Cell, ...]
    equal: dict[str, tuple[int, int]]


def main(argv: Sequence[str]) -> int:
    """Run the comparison and print its report."""
    options, flags = _options(argv)
    arguments = ArgumentList(flags)
    model = arguments.value(*MODEL_PATH)
    if model is None:
        raise UsageError("No model is given", "Add --model-path, for example --model-path demo")
    loads = _loads(options)
    options.out.mkdir(parents=True, exist_ok=True)
    resolved = names.resolve(model)
    # The client looks for tokenizer and processor where it says what model it asks for.
    arguments.replace(("--served-model-name",), resolved.path)
    environ = client_environment(arguments, os.environ)
    measured: dict[tuple[str, str], list[Measured]] = {}
    for turn in range(options.rounds):
        for loop in options.loops[:: -1 if turn % 2 else 1]:
            folder = options.out / f"round-{turn + 1}-{loop}"
            folder.mkdir(exist_ok=True)
            _say(f"round {turn + 1} of {options.rounds}: {NAMES[loop]}")
            server = ServerProcess(
                [*arguments.items, "--photon-loop", loop],
                log=folder / "server.log",
                start_limit_s=options.start_limit_s,
            )
            with server:
                for number, load in enumerate(loads):
                    _say(f"  {load.name}")
                    found = drive(
                        load,
                        port=server.port,
                        model=resolved.path,
                        environ=environ,
                        log=folder / f"client-{number}.log",
                    )
                    measured.setdefault((load.name, loop), []).append(found)
    report = summarise(measured, model=model, flags=tuple(flags))
    text = markdown(report)
    (options.out / "report.md").write_text(text + "\n")
    (options.out / "report.json").write_text(json.dumps(asdict(report), indent=1) + "\n")
    print(text)
    _say(f"report, logs and answers: {options.out}")
    return 0


def summarise(
    measured: Mapping[tuple[str, str], Sequence[Measured]], *, model: str, flags: tuple[str, ...]
) -> Report:
    """Medians over the rounds; answers compared over all of them."""
    cells = []
    equal = {}
    for (load, loop), runs in measured.items():
        idle = [run.idle_pct for run in runs if run.idle_pct is not None]
        figures = {name: statistics.median(run.figures[name] for run in runs) for name in FIGURES}
        cells.append(
            Cell(
                loop=loop,
                load=load,
                rounds=len(runs),
                figures=figures,
                idle_pct=statistics.median(idle) if idle else None,
            )
        )
        every = [
            run.answers for key, all_runs in measured.items() if key[0] == load for run in all_runs
        ]
        equal[load] = equal_answers(every)
    cells.sort(key=lambda cell: (list(equal).index(cell.load), LOOPS.index(cell.loop)))
    return Report(model=model, flags=flags, cells=tuple(cells), equal=equal)


def markdown(report: Report) -> str:
    """The report as a person reads it."""
    heads = ["load", "loop", *FIGURES.values(), "GPU idle %"]
    lines = [
        f"Model: {report.model}",
        f"Flags: {' '.join(report.flags)}",
        "Latencies in ms, medians over the rounds.",
        "",
        f"| {' | '.join(heads)} |",
        f"| --- | --- |{' ---: |' * (len(heads) - 2)}",
    ]
    stock: dict[str, Cell] = {}
    for cell in report.cells:
        base = stock.setdefault(cell.load, cell)
        numbers = [_beside(cell, base, name) for name in FIGURES]
        idle = "not here: no GPU" if cell.idle_pct is None else f"{cell.idle_pct:.1f}"
        lines.append(f"| {' | '.join([cell.load, NAMES[cell.loop], *numbers, idle])} |")
    lines.append("")
    for load, (same, count) in report.equal.items():
        lines.append(f"Greedy answers that are equal in every run, {load}: {same} of {count}")
    return "\n".join(lines)


def client_environment(arguments: ArgumentList, environ: Mapping[str, str]) -> dict[str, str]:
    """What SGLang's client needs where the server runs without compiled kernels, laid over ours."""
    given = dict(environ)
    if hardware.serves_on_cpu(arguments, environ):
        given[hardware.CPU_ENGINE] = "1"
    if reference.wanted(given):
        given |= reference.child_environment(given)
    return given


def _beside(cell: Cell, base: Cell, name: str) -> str:
    """A figure, and how it compares with the first loop's."""
    value, other = cell.figures[name], base.figures[name]
    if cell is base or not other:
        return f"{value:.2f}"
    return f"{value:.2f} ({(value / other - 1) * 100:+.1f} %)"


def _loads(options: argparse.Namespace) -> list[Load]:
    base = Load(
        data="text",
        rate=None,
        concurrency=None,
        prompts=options.prompts,
        input_tokens=options.input_tokens,
        output_tokens=options.output_tokens,
        resolution=options.resolution,
    )
    paces: list[tuple[float | None, int | None]]
    paces = [(None, number) for number in options.concurrency]
    paces += [(rate, None) for rate in options.rate]
    return [
        replace(base, data=data, rate=rate, concurrency=concurrency)
        for data in options.data
        for rate, concurrency in paces
    ]


def _options(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our flags, and what is left for the servers."""
    parser = argparse.ArgumentParser(
        prog="photon bench serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def add(name: str, **more: object) -> None:
        parser.add_argument(f"--bench-{name}", dest=name.replace("-", "_"), **more)  # type: ignore[arg-type]

    add("loops", nargs="+", choices=LOOPS, default=["sglang", "photon"], help="default: both")
    add("data", nargs="+", choices=DATA, default=list(DATA), help="default: text image")
    add("concurrency", nargs="+", type=int, help="requests at a time, one load for each number")
    add("rate", nargs="+", type=float, help="requests per second, one load for each number")
    add("rounds", type=int, default=3, help="rounds; medians are shown (default 3)")
    add("prompts", type=int, default=200, help="requests of a load (default 200)")
    add("input-tokens", type=int, default=256, help="of a prompt (default 256)")
    add("output-tokens", type=int, default=128, help="of an answer (default 128)")
    add("resolution", default="448x448", help="of the pictures (default 448x448)")
    add("start-limit-s", type=float, default=900.0, help="until a server must answer (default 900)")
    add("out", type=Path, default=Path("bench-serve"), help="folder for report and logs")
    options, flags = parser.parse_known_args(list(argv))
    options.rate = options.rate or []
    options.concurrency = options.concurrency or ([] if options.rate else [1, 16, 64])
    unknown = [flag for flag in flags if flag.startswith(("--bench-", "--photon-loop"))]
    if unknown:
        raise UsageError(
            f"{unknown[0]} is not a flag of this benchmark", "See photon bench serve --help"
        )
    numbers = [*options.rate, *options.concurrency, options.rounds, options.prompts]
    if min([*numbers, options.input_tokens, options.output_tokens]) <= 0:
        raise UsageError(
            "A number of rounds, requests or tokens is not positive", "Give positive ones"
        )
    return options, flags


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
