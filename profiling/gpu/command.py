"""`photon profile gpu`: counters beside what the server does, and one sentence about each GPU."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sglang_photon.errors import UsageError
from sglang_photon.profiling.gpu.diagnosis import UNKNOWN, Diagnosis, ServerState, diagnose
from sglang_photon.profiling.gpu.fields import FIELDS, explain, find
from sglang_photon.profiling.gpu.nvml import read_nvml
from sglang_photon.profiling.gpu.readings import Readings, parse_dmon, parse_exporter
from sglang_photon.profiling.gpu.server import read_server


def main(argv: Sequence[str]) -> int:
    """Return 0 when every GPU could be judged, 3 otherwise."""
    options = _options(argv)
    if options.explain is not None:
        return _explain(options.explain)
    readings, power_limit = _read(options)
    server, why = (ServerState(), None) if options.port is None else read_server(options.port)
    if why is not None:
        print(f"warning: {why}")
    found = {
        gpu: diagnose(readings.of(gpu), server, power_limit=power_limit) for gpu in readings.gpus()
    }
    if not found:
        found = {"?": diagnose(readings, server)}
    for gpu, diagnosis in found.items():
        _print(gpu, readings.of(gpu), diagnosis)
    if options.json is not None:
        options.json.write_text(
            json.dumps({gpu: asdict(diagnosis) for gpu, diagnosis in found.items()}, indent=1)
        )
    return 3 if any(diagnosis.verdict == UNKNOWN for diagnosis in found.values()) else 0


def _print(gpu: str, readings: Readings, diagnosis: Diagnosis) -> None:
    print(f"GPU {gpu}: {diagnosis.describe()}")
    for field in FIELDS:
        value = readings.mean(field.key)
        number = "" if field.number is None else f" {field.number}"
        if value is None:
            shown = "unknown"
        else:
            shown = f"{value:.0%}" if field.unit == "share" else f"{value:.0f} {field.unit}"
        print(f"  {field.key:7}{shown:>9}  {field.name}{number}: {field.answers}?")
    for warning in diagnosis.warnings:
        print(f"  warning: {warning}")


def _explain(word: str) -> int:
    if word == "all":
        print("\n\n".join(explain(field) for field in FIELDS))
        return 0
    field = find(word)
    if field is None:
        raise UsageError(
            f"There is no field {word!r}", f"Choose: all, {', '.join(f.key for f in FIELDS)}"
        )
    print(explain(field))
    return 0


def _read(options: argparse.Namespace) -> tuple[Readings, float]:
    """From the source that was asked for, else from the best one that is here."""
    if options.dmon is not None:
        return parse_dmon(options.dmon.read_text()), math.nan
    if options.exporter is not None:
        return _read_exporter(options), math.nan
    if shutil.which("dcgmi"):
        readings = _run_dcgmi(options)
        if readings.samples:
            return readings, math.nan
    return read_nvml(seconds=options.seconds, every_s=options.every)


def _read_exporter(options: argparse.Namespace) -> Readings:
    pages = []
    for _ in range(max(1, round(options.seconds / options.every))):
        try:
            with urllib.request.urlopen(options.exporter, timeout=5) as page:
                pages.append(page.read().decode())
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{options.exporter} cannot be read ({error})", "Is the dcgm-exporter running?"
            ) from error
        time.sleep(options.every)
    return parse_exporter(pages)


def _run_dcgmi(options: argparse.Namespace) -> Readings:
    numbers = ",".join(str(field.number) for field in FIELDS)
    count = max(1, round(options.seconds / options.every))
    done = subprocess.run(
        ["dcgmi", "dmon", "-e", numbers, "-d", str(round(options.every * 1e3)), "-c", str(count)],
        capture_output=True,
        text=True,
        timeout=options.seconds + 30,
        check=False,
    )
    return parse_dmon(done.stdout + done.stderr)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="photon profile gpu",
        description="What the GPU's own counters say, and what they cannot say.",
    )
    parser.add_argument("--port", type=int, help="of the server, for tokens/s and running requests")
    parser.add_argument("--seconds", type=float, default=5.0, help="for how long (5)")
    parser.add_argument("--every", type=float, default=0.2, help="seconds between samples (0.2)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--exporter", metavar="URL", help="of a dcgm-exporter: .../metrics")
    source.add_argument("--dmon", type=Path, metavar="FILE", help="output of `dcgmi dmon`")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts there")
    parser.add_argument("--explain", metavar="FIELD", help="what a field can show; or: all")
    return parser.parse_args(list(argv))
