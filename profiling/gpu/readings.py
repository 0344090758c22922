"""Readings in the tools' own formats: `dcgmi dmon`, a dcgm-exporter's page, NVML.

A value that is not there is unknown and never 0. A share over 1 is kept as it is and flagged: on
MIG it is known to be wrong, and a clipped or averaged wrong value would look right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from sglang_photon.profiling.gpu.fields import FIELDS, SHARES

DMON_NAMES = {
    "GPUTL": "util",
    "GRACT": "engine",
    "SMACT": "sm",
    "TENSO": "tensor",
    "DRAMA": "dram",
    "POWER": "power",
    "SMCLK": "clock",
}
MISSING = frozenset({"N/A", "-", "nan", ""})
WATCH_FAILED = re.compile(r"(?:error|returned|status)[^\n]*?(-\d+)", re.I)
WATCH_ERRORS = {
    "-33": "the profiling module is not loaded, or this GPU has none (GeForce, some MIG slices)",
}
EXPORTER = {f.name: f.key for f in FIELDS}
SAMPLE = re.compile(r"^(DCGM_FI_\w+)\{([^}]*)\}\s+(\S+)")
GPU_LABEL = re.compile(r'gpu="(\d+)"')
INSTANCE_LABEL = re.compile(r'GPU_I_ID="(\d+)"')


@dataclass(frozen=True, kw_only=True)
class Sample:
    """All counters of one GPU at one moment.

    Attributes:
        gpu: as the tool names it: a number, or number and instance.
        values: by `Field.key`; what is missing is unknown.
    """

    gpu: str
    values: dict[str, float]


@dataclass(slots=True)
class Readings:
    """What was read.

    Attributes:
        source: the tool.
        samples: in order.
        invalid: fields with values that cannot be, and what was wrong.
        why_missing: reasons for fields that are not there.
        mig: the GPU is a slice of one.
    """

    source: str
    samples: list[Sample] = field(default_factory=list)
    invalid: dict[str, str] = field(default_factory=dict)
    why_missing: list[str] = field(default_factory=list)
    mig: bool = False

    def mean(self, key: str) -> float | None:
        """Over the samples that have it; None where none has, or where a value is impossible."""
        if key in self.invalid:
            return None
        values = self.values(key)
        return sum(values) / len(values) if values else None

    def values(self, key: str) -> list[float]:
        """All values of one field."""
        return [sample.values[key] for sample in self.samples if key in sample.values]

    def gpus(self) -> list[str]:
        """The GPUs that were read."""
        return list(dict.fromkeys(sample.gpu for sample in self.samples))

    def of(self, gpu: str) -> Readings:
        """Only one GPU's."""
        return Readings(
            source=self.source,
            samples=[sample for sample in self.samples if sample.gpu == gpu],
            invalid=dict(self.invalid),
            why_missing=list(self.why_missing),
            mig=self.mig,
        )

    def check(self) -> Readings:
        """Flag what cannot be."""
        for key in SHARES:
            worst = max(self.values(key), default=0.0)
            if worst > 1.0:
                where = " (on MIG this is a known fault of the counter)" if self.mig else ""
                self.invalid[key] = f"{worst:.0%} is impossible{where}"
        return self


def parse_dmon(text: str) -> Readings:
    """`dcgmi dmon -e 203,1001,1002,1004,1005,155,100`: a table with a heading."""
    found = Readings(source="dcgmi dmon")
    names: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if line.lstrip().startswith("#"):
            names = [DMON_NAMES.get(word, word) for word in words[1:] if word != "Entity"]
        elif re.match(r"\s*(GPU(-I|-CI)?|CI|I)\s+\S+", line) and names:
            found.mig |= words[0] != "GPU"
            values = _numbers(zip(names, words[-len(names) :], strict=False))
            found.samples.append(Sample(gpu=words[1], values=_as_shares(values, of_100={"util"})))
        elif failed := WATCH_FAILED.search(line):
            why = WATCH_ERRORS.get(failed[1], line.strip())
            found.why_missing.append(f"DCGM refused to watch (error {failed[1]}): {why}")
        elif "no GPU" in line.lower() or "no entities" in line.lower():
            found.why_missing.append(line.strip())
    return found.check()


def parse_exporter(pages: Iterable[str]) -> Readings:
    """Pages of a dcgm-exporter, one for each moment."""
    found = Readings(source="dcgm-exporter")
    for page in pages:
        values: dict[str, dict[str, float]] = {}
        for line in page.splitlines():
            match = SAMPLE.match(line)
            key = EXPORTER.get(match[1]) if match else None
            if match is None or key is None:
                continue
            gpu = GPU_LABEL.search(match[2])
            instance = INSTANCE_LABEL.search(match[2])
            found.mig |= instance is not None
            name = (gpu[1] if gpu else "?") + (f"/{instance[1]}" if instance else "")
            values.setdefault(name, {}).update(_numbers([(key, match[3])]))
        found.samples += [
            Sample(gpu=name, values=_as_shares(fields, of_100={"util"}))
            for name, fields in values.items()
        ]
    return found.check()


def _numbers(pairs: Iterable[tuple[str, str]]) -> dict[str, float]:
    """The values that are numbers."""
    found = {}
    for key, word in pairs:
        if word in MISSING or key not in {f.key for f in FIELDS}:
            continue
        try:
            value = float(word)
        except ValueError:
            continue
        # DCGM writes blank values as very large numbers.
        if math.isfinite(value) and abs(value) < 1e15:
            found[key] = value
    return found


def _as_shares(values: dict[str, float], *, of_100: set[str]) -> dict[str, float]:
    return {key: value / 100 if key in of_100 else value for key, value in values.items()}
