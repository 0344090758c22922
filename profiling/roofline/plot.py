"""The roofline as a drawing: an SVG without scripts or fonts of its own, light or dark."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from sglang_photon.errors import UsageError
from sglang_photon.profiling.roofline.analysis import GRID_BATCHES, Analysis, Roof
from sglang_photon.profiling.roofline.work import Work, decode_work

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 48, 56
STYLE = """\
svg{background:#fff;color:#1a1a1a;font:13px system-ui,sans-serif}
text{fill:currentColor} .grid{stroke:#8884;stroke-width:1} .roof{fill:none;stroke:currentColor;
stroke-width:2} .decode{fill:#0a6ebd} .prefill{fill:#b3541e} .measured{fill:#c2185b}
.small{font-size:11px}
@media (prefers-color-scheme:dark){svg{background:#16181d;color:#e6e6e6} .decode{fill:#6cb8f5}
.prefill{fill:#f0a070} .measured{fill:#ff7eb0}}"""


@dataclass(frozen=True, kw_only=True)
class _Mark:
    """A point: FLOP per byte, FLOP/s, its class in the style sheet and its label."""

    intensity: float
    speed: float
    kind: str
    label: str


class _Axes:
    """Logarithmic axes that hold all points and the ridge."""

    def __init__(self, *, intensities: list[float], speeds: list[float]) -> None:
        self.decades_x = _decades(intensities)
        self.decades_y = _decades(speeds)

    def x(self, value: float) -> float:
        low, high = self.decades_x
        return LEFT + (math.log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.decades_y
        share = (math.log10(value) - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def draw(answer: Analysis) -> str:
    """The drawing of an answer.

    Raises:
        UsageError: the GPU is not known, so there is no roof to draw.
    """
    roof = answer.roof
    if roof is None:
        raise UsageError(
            f"There is no roof to draw: {answer.machine.gpu.name} is not known",
            "Give --bandwidth-gbs and --peak-tflops, or a --gpu of the table",
        )
    marks = list(_marks(answer, roof))
    bandwidth = answer.machine.bandwidth
    peak = roof.ridge * bandwidth
    axes = _Axes(
        intensities=[mark.intensity for mark in marks] + [roof.ridge * 4],
        speeds=[mark.speed for mark in marks] + [peak * 1.5],
    )
    start, end = (10.0**decade for decade in axes.decades_x)
    roof_line = " ".join(
        f"{axes.x(at):.1f},{axes.y(max(min(at * bandwidth, peak), 10.0 ** axes.decades_y[0])):.1f}"
        for at in (max(start, 10.0 ** axes.decades_y[0] / bandwidth), roof.ridge, end)
    )
    title = f"{answer.model.family or 'decoder'} on {answer.machine.gpu.name}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>Roofline: {escape(title)}</title><style>{STYLE}</style>",
            f'<text x="{LEFT}" y="28">{escape(title)}: ridge at {roof.ridge:.0f} FLOP/byte</text>',
            *_grid_lines(axes),
            f'<polyline class="roof" points="{roof_line}"/>',
            *(_dot(axes, mark) for mark in marks),
            "</svg>\n",
        ]
    )


def _marks(answer: Analysis, roof: Roof) -> Iterator[_Mark]:
    question = answer.question
    for batch in sorted({*GRID_BATCHES, question.batch}):
        work = decode_work(answer.model, answer.formats, batch=batch, context=question.context)
        floor = answer.machine.floor(work).seconds
        yield _mark(work, floor, "decode", f"batch {batch}")
    yield _mark(answer.prefill, roof.prefill.seconds, "prefill", f"prefill {question.prompt}")
    if answer.measured:
        yield _mark(answer.decode, answer.measured.step_seconds, "measured", "measured")


def _mark(work: Work, seconds: float, kind: str, label: str) -> _Mark:
    flop = sum(work.flop.values())
    return _Mark(intensity=work.intensity, speed=flop / seconds, kind=kind, label=label)


def _dot(axes: _Axes, mark: _Mark) -> str:
    x, y = axes.x(mark.intensity), axes.y(mark.speed)
    late = x > WIDTH - 110
    return (
        f'<circle class="{mark.kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
        f'<text class="small" x="{x + (-9 if late else 9):.1f}" y="{y + 14:.1f}" '
        f'text-anchor="{"end" if late else "start"}">{escape(mark.label)}</text>'
    )


def _grid_lines(axes: _Axes) -> Iterator[str]:
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for decade in range(axes.decades_x[0], axes.decades_x[1] + 1):
        x = axes.x(10.0**decade)
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{floor}"/>'
        yield f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle">{10.0**decade:g}</text>'
    for decade in range(axes.decades_y[0], axes.decades_y[1] + 1):
        y = axes.y(10.0**decade)
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
        label = f"{10.0 ** (decade - 12):g}"
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    yield f'<text x="{WIDTH / 2}" y="{HEIGHT - 14}" text-anchor="middle">FLOP per byte</text>'
    yield f'<text x="12" y="{TOP - 6}">TFLOP/s</text>'


def _decades(values: list[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)
