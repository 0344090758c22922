"""How much of the roof a measured decode step reaches.

MBU is bytes moved per second over the bandwidth, MFU operations per second over the dense peak.
Nothing runs faster than the hardware: a share above 100 % means that a number that went in is
wrong, and is an error, never a result.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_photon.errors import UsageError
from sglang_photon.profiling.roofline.ceiling import Machine
from sglang_photon.profiling.roofline.work import Work


class ImpossibleMeasurementError(UsageError):
    """A measured step that is faster than the hardware can be."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A measured decode step beside the roof.

    Attributes:
        step_seconds: as given.
        tokens_per_second: of all rows together.
        bytes_per_second: memory traffic that this step needs.
        flop_per_second: arithmetic that this step does.
        mbu: share of the bandwidth; None where the GPU's is not known.
        mfu: share of the dense peak; None where the GPU's is not known.
        floor_share: floor over measured time; None where the GPU is not known.
        note: why a share is missing or counted differently, else empty.
    """

    step_seconds: float
    tokens_per_second: float
    bytes_per_second: float
    flop_per_second: float
    mbu: float | None
    mfu: float | None
    floor_share: float | None
    note: str = ""


def measure(machine: Machine, work: Work, *, batch: int, step_seconds: float) -> Measured:
    """Set a measured step against the roof.

    Raises:
        ImpossibleMeasurementError: it needs more bandwidth or arithmetic than the GPU has.
    """
    moved, flop, note = work.bytes, work.flop, ""
    mbu = mfu = None
    if machine.gpu.bandwidth is not None:
        if moved / step_seconds > machine.bandwidth:
            moved, note = work.least_bytes, LEAST_NOTE
        mbu = moved / step_seconds / machine.bandwidth
        if mbu > 1 and moved <= CACHE_BYTES * machine.count:
            mbu, note = None, CACHE_NOTE
        elif mbu > 1:
            raise _impossible(machine, step_seconds, "memory", moved, machine.bandwidth)
    if machine.gpu.peaks:
        if machine.compute_time(flop) > step_seconds:
            flop, note = work.least_flop, LEAST_NOTE
        mfu = machine.compute_time(flop) / step_seconds
        if mfu > 1:
            total = sum(flop.values())
            raise _impossible(
                machine, step_seconds, "arithmetic", total, total / machine.compute_time(flop)
            )
    roofs = (("MBU", machine.gpu.bandwidth), ("MFU", machine.gpu.peaks))
    missing = [name for name, roof in roofs if not roof]
    if missing:
        note = f"no {' and no '.join(missing)}: no data-sheet value of {machine.gpu.name} is known"
    return Measured(
        step_seconds=step_seconds,
        tokens_per_second=batch / step_seconds,
        bytes_per_second=moved / step_seconds,
        flop_per_second=sum(flop.values()) / step_seconds,
        mbu=mbu,
        mfu=mfu,
        floor_share=max(mbu, mfu) if mbu is not None and mfu is not None else None,
        note=note,
    )


LEAST_NOTE = (
    "faster than the usual count allows: counted without the token table and with as few experts "
    "as possible"
)


CACHE_BYTES = 256e6
"""The largest last-level cache of the table (MI300X): what fits need not come from memory."""

CACHE_NOTE = "no MBU: so few bytes may stay in the GPU's cache, which the data sheet does not rate"


def _impossible(
    machine: Machine, seconds: float, what: str, amount: float, roof: float
) -> ImpossibleMeasurementError:
    moves, unit, name = ("moves", "B", "MBU") if what == "memory" else ("computes", "FLOP", "MFU")
    share = amount / seconds / roof
    return ImpossibleMeasurementError(
        f"{name} would be {share:.0%}, which cannot be: the step {moves} at least {amount:.3g} "
        f"{unit}, which takes {machine.gpu.name} {amount / roof * 1e3:.3g} ms at {roof:.3g} "
        f"{unit}/s ({machine.gpu.source or 'no source'}), but {seconds * 1e3:.3g} ms were measured",
        "Check that the time is that of one step, that --batch, --context, --tp and the number "
        "formats are those of the run, that the GPU is the named one (clocks above the data "
        "sheet's: give --peak-tflops and --bandwidth-gbs), and that no token came from "
        "speculative decoding",
    )
