"""From work to time: the roofline of one GPU, or of several that share a model evenly.

    floor = max(bytes / bandwidth, sum over formats of FLOP / peak)

Sharing over N GPUs is taken as perfect (no communication, nothing replicated): still a floor.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_photon.errors import UsageError
from sglang_photon.profiling.roofline.formats import Formats
from sglang_photon.profiling.roofline.gpus import Gpu
from sglang_photon.profiling.roofline.shapes import ModelShape
from sglang_photon.profiling.roofline.work import Flop, Work, decode_work

MOST_ROWS = 1 << 40
"""Batches beyond this are "never"."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The least time of a step.

    Attributes:
        seconds: the larger of the two below.
        memory: seconds to move the bytes.
        compute: seconds to do the operations.
    """

    seconds: float
    memory: float
    compute: float

    @property
    def bound(self) -> str:
        """What binds: `memory` or `compute`."""
        return "compute" if self.compute >= self.memory else "memory"


class Machine:
    """One GPU, or `count` of them.

    Args:
        gpu: data sheet or measured values.
        count: GPUs that share the model.
    """

    def __init__(self, *, gpu: Gpu, count: int = 1) -> None:
        self.gpu = gpu
        self.count = count

    @property
    def is_known(self) -> bool:
        """Whether both roofs are there."""
        return self.gpu.bandwidth is not None and bool(self.gpu.peaks)

    @property
    def bandwidth(self) -> float:
        """Bytes/s of all GPUs together.

        Raises:
            UsageError: it is not known.
        """
        if self.gpu.bandwidth is None:
            raise _missing(self.gpu.name, "bandwidth", "--bandwidth-gbs")
        return self.gpu.bandwidth * self.count

    def computes_in(self, form: str) -> str:
        """The format that products asked for in `form` run in on this GPU.

        MXFP4 weights meet 8-bit activations where the GPU has 4-bit units, 16-bit ones elsewhere;
        a format without units is widened to 16 bits.
        """
        if form == "mxfp8":
            form = "fp8" if "fp4" in self.gpu.peaks else "bf16"
        return form if form in self.gpu.peaks else "bf16"

    def peak(self, form: str) -> float:
        """Dense FLOP/s of all GPUs together, for products asked for in `form`.

        Raises:
            UsageError: it is not known.
        """
        value = self.gpu.peaks.get(self.computes_in(form))
        if value is None:
            raise _missing(self.gpu.name, "peak", "--peak-tflops")
        return value * self.count

    def ridge(self, form: str) -> float:
        """FLOP per byte above which a step is bound by arithmetic."""
        return self.peak(form) / self.bandwidth

    def compute_time(self, flop: Flop) -> float:
        """Seconds that operations take at peak."""
        return sum(amount / self.peak(form) for form, amount in flop.items() if amount)

    def floor(self, work: Work) -> Floor:
        """The floor of a step, by the usual count."""
        memory, compute = work.bytes / self.bandwidth, self.compute_time(work.flop)
        return Floor(seconds=max(memory, compute), memory=memory, compute=compute)

    def rows_in_memory(self, weights: float, per_row: float) -> int | None:
        """Rows whose KV cache fits beside the weights; None where the memory is not known."""
        if self.gpu.memory is None or per_row <= 0:
            return None
        return max(int((self.gpu.memory * self.count - weights) // per_row), 0)


def turning_batch(
    machine: Machine, model: ModelShape, formats: Formats, *, context: int
) -> int | None:
    """The smallest batch whose decode step is bound by arithmetic; None: there is none.

    Each row adds its KV cache to the bytes: with long contexts the bytes of a row outweigh its
    operations, and no batch ever turns. Compute minus memory time is convex in the batch and
    starts below zero or at once above, so there is one crossing to bisect for.
    """

    def turns(batch: int) -> bool:
        work = decode_work(model, formats, batch=batch, context=context)
        return machine.floor(work).bound == "compute"

    high = 1
    while not turns(high):
        high *= 2
        if high > MOST_ROWS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if turns(middle) else (middle, high)
    return high


def _missing(name: str, what: str, flag: str) -> UsageError:
    return UsageError(f"The {what} of {name} is not known", f"Give it with {flag}")
