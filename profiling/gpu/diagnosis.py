"""From counters and what the server says to one sentence about the GPU, or to "unknown"."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sglang_photon.profiling.gpu.fields import BY_KEY
from sglang_photon.profiling.gpu.readings import Readings

BUSY = "busy"
STARVED_BY_HOST = "starved by the host"
STARVED_OF_REQUESTS = "starved of requests"
MEMORY_BOUND = "memory bound as expected"
STALLED = "stalled"
UNKNOWN = "unknown"

FEWEST_SAMPLES = 10
ACTIVE = 0.85
"""An engine that is active for less of the time has gaps worth looking for."""

MEMORY = 0.45
"""Of the memory's cycles; decoding reaches 0.5 to 0.8, where 0.8 is about what memory can do."""

ARITHMETIC = 0.35
NEAR_IDLE_POWER = 0.3
"""Of the power limit; an idle GPU draws 10 to 20 % of it."""


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """What the server says meanwhile; None where it does not.

    Attributes:
        tokens_per_second: generated.
        running: requests that are being decoded.
    """

    tokens_per_second: float | None = None
    running: float | None = None


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """One GPU's.

    Attributes:
        verdict: one of the words above.
        because: what it rests on, or what is missing.
        confidence: "high" or "low".
        warnings: flagged values, too few samples.
    """

    verdict: str
    because: str
    confidence: str
    warnings: tuple[str, ...]

    def describe(self) -> str:
        """One line."""
        sure = "" if self.confidence == "high" else " (low confidence)"
        return f"{self.verdict}{sure}, because {self.because}"


def diagnose(
    readings: Readings, server: ServerState, *, power_limit: float = math.nan
) -> Diagnosis:
    """Judge one GPU.

    Args:
        readings: its own.
        server: at the same time.
        power_limit: in W, not a number where it is not known.
    """
    warnings = [f"{key}: {what}, left out" for key, what in readings.invalid.items()]
    if 0 < len(readings.samples) < FEWEST_SAMPLES:
        warnings.append(f"only {len(readings.samples)} samples: a swing may look like a state")
    verdict, because, confidence = _judge(readings, server, power_limit)
    if readings.samples and len(readings.samples) < FEWEST_SAMPLES:
        confidence = "low"
    return Diagnosis(
        verdict=verdict, because=because, confidence=confidence, warnings=tuple(warnings)
    )


def _judge(readings: Readings, server: ServerState, power_limit: float) -> tuple[str, str, str]:
    engine, util = readings.mean("engine"), readings.mean("util")
    active = util if engine is None else engine
    if active is None:
        why = "; ".join(readings.why_missing) or "no counter of activity was read"
        return UNKNOWN, why, "low"
    name = BY_KEY["util" if engine is None else "engine"].name
    confidence = "low" if engine is None else "high"
    said = f"{name} is {active:.0%}"
    power = readings.mean("power")
    if server.running and server.tokens_per_second == 0 and active >= ACTIVE:
        low = power is not None and power < NEAR_IDLE_POWER * power_limit
        drawn = f", power is near idle ({power:.0f} W)" if low else ""
        text = f"{said} while {server.running:g} requests run and no token comes{drawn}"
        return STALLED, text, "high" if low else "low"
    if active < ACTIVE:
        if server.running is None:
            return UNKNOWN, f"{said}, and whether requests run is not known", "low"
        if server.running == 0:
            return STARVED_OF_REQUESTS, f"{said} and no request runs", confidence
        return STARVED_BY_HOST, f"{said} while {server.running:g} requests run", confidence
    return _when_active(readings, said)


def _when_active(readings: Readings, said: str) -> tuple[str, str, str]:
    """The engine has no gaps: what is it busy with?"""
    dram, tensor, sm = (readings.mean(key) for key in ("dram", "tensor", "sm"))
    if dram is None or tensor is None:
        missing = " and ".join(
            BY_KEY[key].name for key in ("dram", "tensor") if readings.mean(key) is None
        )
        reasons = "; ".join([*readings.why_missing, *readings.invalid.values()])
        why = f" ({reasons})" if reasons else ""
        return UNKNOWN, f"{said}, which does not say with what: {missing} is missing{why}", "low"
    if tensor >= ARITHMETIC:
        return BUSY, f"{said}, the tensor pipes {tensor:.0%}, memory {dram:.0%}", "high"
    if dram >= MEMORY:
        text = f"memory moves data {dram:.0%} of the cycles and the tensor pipes {tensor:.0%}"
        return MEMORY_BOUND, f"{text}: decoding waits for weights and KV cache", "high"
    filled = "" if sm is None else f", SMs have a warp {sm:.0%} of the time"
    little = f"memory {dram:.0%}, tensor pipes {tensor:.0%}{filled}"
    return BUSY, f"{said}, with kernels that use little of it ({little}): batch more", "low"
