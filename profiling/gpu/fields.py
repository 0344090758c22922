"""What each counter says, and what it cannot say. Numbers are DCGM's field ids."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Field:
    """One counter.

    Attributes:
        key: short name here.
        name: the tool's name.
        number: DCGM's field id; None for NVML's own.
        unit: of the value; shares are from 0 to 1.
        meaning: what it says.
        cannot: what it does not say.
        answers: the question that it is good for.
    """

    key: str
    name: str
    number: int | None
    unit: str
    meaning: str
    cannot: str
    answers: str


FIELDS = (
    Field(
        key="util",
        name="DCGM_FI_DEV_GPU_UTIL",
        number=203,
        unit="share",
        meaning="share of time in which at least one kernel ran (what nvidia-smi shows)",
        cannot="how much of the GPU worked: one request at 0.3 % of the peak shows 100 %",
        answers="is anything being launched at all",
    ),
    Field(
        key="engine",
        name="DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        number=1001,
        unit="share",
        meaning="share of time in which the graphics or compute engine was active",
        cannot="how many SMs worked; a waiting kernel is active too",
        answers="is the GPU starved by the host (low while requests run)",
    ),
    Field(
        key="sm",
        name="DCGM_FI_PROF_SM_ACTIVE",
        number=1002,
        unit="share",
        meaning="share of time in which an SM had a warp, averaged over all SMs",
        cannot="that the warps did anything: waiting for memory counts; over 1 it is invalid (MIG)",
        answers="do the kernels fill the GPU",
    ),
    Field(
        key="tensor",
        name="DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        number=1004,
        unit="share",
        meaning="share of cycles in which the tensor pipe was active",
        cannot="FLOP/s: low is right for decoding, which waits for memory",
        answers="is this bound by arithmetic (prefill, large batches)",
    ),
    Field(
        key="dram",
        name="DCGM_FI_PROF_DRAM_ACTIVE",
        number=1005,
        unit="share",
        meaning="share of cycles in which device memory sent or received data",
        cannot="whether the bytes were needed; about 0.8 is a practical maximum",
        answers="is this bound by memory (decoding)",
    ),
    Field(
        key="power",
        name="DCGM_FI_DEV_POWER_USAGE",
        number=155,
        unit="W",
        meaning="power drawn",
        cannot="useful work: a spinning kernel draws power as well",
        answers="is work being done at all (near idle power: no)",
    ),
    Field(
        key="clock",
        name="DCGM_FI_DEV_SM_CLOCK",
        number=100,
        unit="MHz",
        meaning="clock of the SMs now",
        cannot="why it is low: power, heat, or nothing to do",
        answers="is the GPU throttled",
    ),
)
BY_KEY = {field.key: field for field in FIELDS}
SHARES = frozenset(field.key for field in FIELDS if field.unit == "share")


def find(word: str) -> Field | None:
    """A field by its short name, its tool's name or its number."""
    for field in FIELDS:
        if word.lower() in (field.key, field.name.lower(), str(field.number)):
            return field
    return None


def explain(field: Field) -> str:
    """A few lines for people."""
    number = "" if field.number is None else f" (field {field.number})"
    return (
        f"{field.key}: {field.name}{number}, in {field.unit}\n"
        f"  says:        {field.meaning}\n"
        f"  cannot show: {field.cannot}\n"
        f"  answers:     {field.answers}"
    )
