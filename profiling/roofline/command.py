"""The command line of `photon roofline`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_photon.errors import PhotonError, UsageError, report
from sglang_photon.profiling.roofline import gpus
from sglang_photon.profiling.roofline.analysis import Analysis, Question, analyse
from sglang_photon.profiling.roofline.ceiling import Machine
from sglang_photon.profiling.roofline.config_file import load
from sglang_photon.profiling.roofline.formats import FORMS, KV_NAMES
from sglang_photon.profiling.roofline.plot import draw
from sglang_photon.profiling.roofline.report import as_json, as_text


def main(argv: Sequence[str]) -> int:
    """Answer on stdout; returns 0, or the exit code of the error."""
    options = _parser().parse_args(argv)
    try:
        answer = _answer(options)
        _write(options, answer)
    except PhotonError as error:
        return report(error)
    return 0


def _answer(options: argparse.Namespace) -> Analysis:
    gpu = gpus.measured_gpu(
        options.gpu,
        bandwidth=options.bandwidth_gbs * 1e9 if options.bandwidth_gbs else None,
        peak=options.peak_tflops * 1e12 if options.peak_tflops else None,
    )
    machine = Machine(gpu=gpu, count=options.tp)
    seconds = options.step_ms / 1e3 if options.step_ms else None
    if options.tok_s:
        seconds = options.batch / options.tok_s
    if not machine.is_known and seconds is None:
        raise UsageError(
            f"{gpu.name} has no floor: its bandwidth and peak are not both known",
            f"Give --bandwidth-gbs and --peak-tflops, or --gpu with one of: {gpus.names()}",
        )
    if options.image_tokens > options.prompt:
        raise UsageError(
            f"--image-tokens {options.image_tokens} is more than --prompt {options.prompt}",
            "Image tokens are a part of the prompt: count them in --prompt",
        )
    question = Question(
        batch=options.batch,
        context=options.context,
        prompt=options.prompt,
        image_tokens=options.image_tokens,
        weights=options.weight_dtype,
        kv=options.kv_dtype,
        step_seconds=seconds,
    )
    return analyse(load(Path(options.config)), machine, question)


def _write(options: argparse.Namespace, answer: Analysis) -> None:
    if options.plot:
        if Path(options.plot).suffix.lower() != ".svg":
            raise UsageError(
                f"--plot {options.plot}: the drawing is an SVG", "Give it a name that ends in .svg"
            )
        _save(Path(options.plot), draw(answer))
    text = json.dumps(as_json(answer), indent=2, allow_nan=False) + "\n"
    if options.json == "-":
        sys.stdout.write(text)
        return
    sys.stdout.write(as_text(answer))
    if options.json:
        _save(Path(options.json), text)


def _save(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{file} cannot be written ({error.strerror})", "Name a file in a folder that exists"
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="photon roofline",
        description="The least time of a decode step and a prefill, from sizes and data sheets.",
        epilog=f"GPUs in the table: {gpus.names()}",
    )
    add = parser.add_argument
    add("--config", required=True, metavar="FILE", help="config.json of the model, or its folder")
    add("--gpu", metavar="NAME", help="a GPU of the table, as there or as nvidia-smi prints it")
    add("--bandwidth-gbs", type=_positive, metavar="GB/S", help="measured memory bandwidth")
    add("--peak-tflops", type=_positive, metavar="TFLOPS", help="measured dense peak, per GPU")
    add("--tp", type=_whole, default=1, metavar="N", help="GPUs that share the model (1)")
    add("--batch", type=_whole, default=1, metavar="N", help="rows of a decode step (1)")
    add("--context", type=_whole, default=1024, metavar="N", help="cached tokens per row (1024)")
    add("--prompt", type=_whole, default=1024, metavar="N", help="tokens of a prefill (1024)")
    add("--image-tokens", type=_count, default=0, metavar="N", help="of the prompt, from images")
    add("--weight-dtype", choices=list(FORMS), help="in place of the checkpoint's")
    add("--kv-dtype", choices=KV_NAMES, help="in place of the checkpoint's")
    measured = parser.add_mutually_exclusive_group()
    measured.add_argument("--step-ms", type=_positive, metavar="MS", help="measured decode step")
    measured.add_argument(
        "--tok-s", type=_positive, metavar="N", help="measured tokens/s of the whole batch"
    )
    add("--json", metavar="FILE", help="write JSON; - prints it in place of the table")
    add("--plot", metavar="FILE.svg", help="draw the roofline")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value
