"""A verdict in five lines."""

from __future__ import annotations

from sglang_photon.profiling.verdict import Verdict


def lines(verdict: Verdict) -> list[str]:
    """The five lines, and notes where there are any."""
    if verdict.bubbles is None:
        return [f"bubbles: cannot tell, {verdict.why_not}"]
    assert verdict.idle_interval is not None
    assert verdict.t_block_ms is not None
    assert verdict.t_pipe_ms is not None
    low, high = verdict.idle_interval
    word = "YES" if verdict.bubbles else "no"
    causes = "; ".join(cause.describe() for cause in verdict.causes[:3])
    kind = "measured" if verdict.t_block_measured else "estimated: device + host work"
    best = max(verdict.t_device_ms or 0.0, verdict.host_ms or 0.0)
    left = verdict.t_pipe_ms / best if best else 1.0
    expected = (
        "unknown" if verdict.expected_zombie_pct is None else f"{verdict.expected_zombie_pct:.2f} %"
    )
    return [
        (
            f"bubbles: {word}, the device was idle with rows runnable {verdict.idle_pct:.1f} % of "
            f"the time (95 %: {low:.1f} to {high:.1f}), {verdict.idle_ms_per_step:.3f} ms per "
            f"step; with nothing to run {verdict.unfed_pct:.1f} %"
        ),
        f"causes: {causes if verdict.bubbles else 'none above the limit'}",
        (
            f"steps: T_pipe {verdict.t_pipe_ms:.3f} ms (device {verdict.t_device_ms:.3f}, host "
            f"work {verdict.host_ms:.3f}), T_block {verdict.t_block_ms:.3f} ms ({kind}): "
            f"{verdict.t_block_ms / verdict.t_pipe_ms:.2f}x won, {left:.2f}x left"
        ),
        f"zombies: {verdict.zombie_pct:.2f} % of the rows, 1/L is {expected}",
        f"change: {'; '.join(verdict.advice)}",
        *(f"note: {note}" for note in verdict.notes),
    ]
