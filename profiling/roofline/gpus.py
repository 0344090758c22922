"""Data-sheet values of GPUs: memory bandwidth and *dense* peaks per number format.

Vendors print peaks with 2:4 sparsity, which no language model here uses: those are halved. A value
that the named document does not state beyond doubt is left out, so that it is never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_photon.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """What one GPU can do.

    Attributes:
        name: as in the table.
        bandwidth: bytes/s of device memory; None where it is not known.
        peaks: dense FLOP/s (OP/s for int8) by format: bf16 (also fp16), fp8, int8, fp4.
        memory: bytes of device memory; None where it is not known.
        source: the documents the values come from.
    """

    name: str
    bandwidth: float | None
    peaks: Mapping[str, float]
    memory: float | None
    source: str


def _gpu(name: str, terabytes: float, gigabytes: int, source: str, **teraflops: float) -> Gpu:
    """A row of the table: TB/s, GB and dense TFLOP/s."""
    return Gpu(
        name=name,
        bandwidth=terabytes * 1e12,
        peaks={form: peak * 1e12 for form, peak in teraflops.items()},
        memory=gigabytes * 1e9,
        source=source,
    )


_A100 = "NVIDIA A100 Tensor Core GPU data sheet, June 2021"
_H100 = "NVIDIA H100 Tensor Core GPU data sheet, 2023 (printed with sparsity, halved)"
_HGX = "NVIDIA HGX platform specifications, 2025 (8 GPUs; an eighth, and halved if sparse)"
_GH200 = "NVIDIA GH200 Grace Hopper Superchip data sheet, 2023 (printed with sparsity, halved)"
_HOPPER = {"bf16": 989, "fp8": 1979, "int8": 1979}

TABLE = (
    _gpu("A100-SXM-80GB", 2.039, 80, _A100, bf16=312, int8=624),
    _gpu("A100-PCIe-80GB", 1.935, 80, _A100, bf16=312, int8=624),
    _gpu("A100-40GB", 1.555, 40, "NVIDIA A100 data sheet, 2020", bf16=312, int8=624),
    _gpu("H100-SXM", 3.35, 80, _H100, **_HOPPER),
    _gpu("H100-PCIe", 2.0, 80, _H100, bf16=756, fp8=1513, int8=1513),
    _gpu("H100-NVL", 3.9, 94, _H100, bf16=835.5, fp8=1670.5, int8=1670.5),
    _gpu("H200-SXM", 4.8, 141, "NVIDIA H200 Tensor Core GPU data sheet, 2024 (halved)", **_HOPPER),
    _gpu("GH200-96GB", 4.0, 96, _GH200, **_HOPPER),
    _gpu("GH200-144GB", 4.9, 144, _GH200, **_HOPPER),
    _gpu("B200", 8.0, 180, _HGX, bf16=2250, fp8=4500, int8=4500, fp4=9000),
    # The documents disagree about int8 on B300: left out.
    _gpu("B300", 8.0, 270, _HGX, bf16=2250, fp8=4500, fp4=13500),
    _gpu("L4", 0.3, 24, "NVIDIA L4 data sheet, 2023 (halved)", bf16=121, fp8=242.5, int8=242.5),
    _gpu("L40S", 0.864, 48, "NVIDIA L40S data sheet, 2023", bf16=362, fp8=733, int8=733),
    # GeForce and RTX PRO: the rates with FP32 accumulation, which inference kernels use.
    _gpu("RTX-3090", 0.936, 24, "NVIDIA Ampere GA102 architecture paper, 2021", bf16=71, int8=284),
    _gpu(
        "RTX-4090",
        1.008,
        24,
        "NVIDIA Ada GPU architecture paper, 2022",
        bf16=165.2,
        fp8=330.3,
        int8=660.6,
    ),
    _gpu(
        "RTX-5090",
        1.792,
        32,
        "NVIDIA RTX Blackwell GPU architecture paper, 2025",
        bf16=209.5,
        fp8=419,
        int8=838,
        fp4=1676,
    ),
    _gpu(
        "RTX-PRO-6000",
        1.792,
        96,
        "NVIDIA RTX PRO Blackwell GPU architecture paper, 2025 (Workstation Edition)",
        bf16=503.8,
        fp8=1007.6,
        int8=1007.6,
        fp4=2015.2,
    ),
    _gpu(
        "MI300X",
        5.3,
        192,
        "AMD Instinct MI300X data sheet, December 2023",
        bf16=1307.4,
        fp8=2614.9,
        int8=2614.9,
    ),
)

ALIASES = {
    "A100": "A100-SXM-80GB",
    "A100-80GB": "A100-SXM-80GB",
    "A100-SXM4-80GB": "A100-SXM-80GB",
    "A100-80GB-PCIe": "A100-PCIe-80GB",
    "A100-SXM4-40GB": "A100-40GB",
    "A100-PCIe-40GB": "A100-40GB",
    "H100": "H100-SXM",
    "H100-SXM5": "H100-SXM",
    "H100-80GB-HBM3": "H100-SXM",
    "H200": "H200-SXM",
    "GH200": "GH200-96GB",
    "GH200-480GB": "GH200-96GB",
    "GH200-144G-HBM3e": "GH200-144GB",
    "RTX-PRO-6000-Blackwell-Workstation-Edition": "RTX-PRO-6000",
}
"""Short names, and those that nvidia-smi prints, without the vendor's name."""

_VENDOR_WORDS = re.compile(r"\b(nvidia|amd|instinct|geforce|tesla)\b")


def find_gpu(name: str) -> Gpu | None:
    """The GPU of that name, in any case and punctuation; None for one that is not in the table.

    Only whole names match: an "H100 NVL" must never be taken for an "H100".
    """
    return _INDEX.get(_plain(name))


def names() -> str:
    """The names of the table, for a message."""
    return ", ".join(gpu.name for gpu in TABLE)


def measured_gpu(
    name: str | None, *, bandwidth: float | None = None, peak: float | None = None
) -> Gpu:
    """The GPU to calculate with: from the table, with measured values in place of its own.

    Args:
        name: as given by the user; None where everything is measured.
        bandwidth: measured bytes/s, or None.
        peak: measured FLOP/s, used for every format, or None.

    Raises:
        UsageError: there is neither a name nor a measured value.
    """
    known = find_gpu(name) if name else None
    if name is None and bandwidth is None and peak is None:
        raise UsageError("No GPU is given", f"Use --gpu with one of: {names()}")
    measured = [
        word for word, value in (("bandwidth", bandwidth), ("peak", peak)) if value is not None
    ]
    note = f"measured {' and '.join(measured)}, as given" if measured else ""
    return Gpu(
        name=known.name if known else name or "measured",
        bandwidth=bandwidth or (known.bandwidth if known else None),
        peaks=dict.fromkeys(FORMATS, peak) if peak else (known.peaks if known else {}),
        memory=known.memory if known else None,
        source="; ".join(part for part in (note, known.source if known else "") if part),
    )


FORMATS = ("bf16", "fp8", "int8", "fp4")
"""Formats that products are computed in; fp16 runs at the rate of bf16 on every GPU here."""


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _VENDOR_WORDS.sub("", name.lower()))


_BY_NAME = {gpu.name: gpu for gpu in TABLE}
_INDEX = {_plain(gpu.name): gpu for gpu in TABLE}
_INDEX |= {_plain(alias): _BY_NAME[name] for alias, name in ALIASES.items()}
