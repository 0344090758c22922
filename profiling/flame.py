"""Flame graphs: one tree of calls, drawn as SVG or handed to the report as JSON.

A box is as wide as the time that was spent under it. A differential graph is drawn with the widths
of the second recording, red where a call takes a larger share than before, blue where a smaller.
"""

from __future__ import annotations

import html
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang_photon.profiling.samples import Samples

ROW = 17
WIDTH = 1200
NARROWEST = 0.5
"""Pixels below which a box is not drawn."""

TEXT_PX = 6.6


@dataclass(slots=True)
class Node:
    """A call, below its callers.

    Attributes:
        name: what is shown.
        value: time under it.
        before: the same in the recording that it is compared with.
        children: by name.
    """

    name: str
    value: float = 0.0
    before: float = 0.0
    children: dict[str, Node] = field(default_factory=dict)

    def add(self, names: Iterable[str], value: float, before: float = 0.0) -> None:
        """Count one stack."""
        node = self
        node.value += value
        node.before += before
        for name in names:
            node = node.children.setdefault(name, Node(name))
            node.value += value
            node.before += before

    def to_json(self, *, smallest: float) -> dict[str, Any]:
        """For the report; calls below `smallest` are left out."""
        found: dict[str, Any] = {"n": self.name, "v": round(self.value, 6)}
        if self.before:
            found["b"] = round(self.before, 6)
        children = [
            child.to_json(smallest=smallest)
            for child in sorted(self.children.values(), key=lambda node: node.name)
            if child.value >= smallest
        ]
        if children:
            found["c"] = children
        return found


def tree(samples: Samples, *, name: str = "all") -> Node:
    """All stacks of a process, in seconds; each thread stands below its own box."""
    root = Node(name)
    for thread in samples.threads:
        for interval in thread.intervals:
            names = [frame.label() for frame in interval.stack]
            root.add(
                [f"thread {thread.tid}", *names] if len(samples.threads) > 1 else names,
                interval.seconds,
            )
    return root


def difference(before: Mapping[str, int], after: Mapping[str, int]) -> Node:
    """A tree with both recordings' shares, from collapsed stacks."""
    root = Node("all")
    totals = (sum(before.values()) or 1, sum(after.values()) or 1)
    for line in {**before, **after}:
        root.add(line.split(";"), after.get(line, 0) / totals[1], before.get(line, 0) / totals[0])
    return root


def svg(root: Node, *, title: str, unit: str = "s") -> str:
    """Draw it; boxes have tooltips, and need no script."""
    boxes = list(_boxes(root, x=0.0, depth=0, scale=WIDTH / root.value if root.value else 0.0))
    rows = max((depth for _, _, _, depth in boxes), default=0) + 1
    height = rows * ROW + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        'font-family="monospace" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-size="14">',
        f"{html.escape(title)}</text>",
    ]
    for node, x, width, depth in boxes:
        y = height - (depth + 1) * ROW - 6
        share = node.value / root.value * 100
        tip = f"{node.name}: {node.value:.3f} {unit}, {share:.1f} %"
        label = html.escape(_cut(node.name, width))
        parts.append(
            f'<g><title>{html.escape(tip)}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
            f'height="{ROW - 1}" fill="{_colour(node, root)}" rx="1"/>'
            f'<text x="{x + 3:.1f}" y="{y + 12}">{label}</text></g>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _boxes(
    node: Node, *, x: float, depth: int, scale: float
) -> Iterator[tuple[Node, float, float, int]]:
    width = node.value * scale
    if width < NARROWEST:
        return
    yield node, x, width, depth
    for child in sorted(node.children.values(), key=lambda found: found.name):
        yield from _boxes(child, x=x, depth=depth + 1, scale=scale)
        x += child.value * scale


def _colour(node: Node, root: Node) -> str:
    if root.before:
        change = node.value / root.value - node.before / root.before
        strength = min(1.0, abs(change) * 8)
        faded = round(235 - 135 * strength)
        return f"rgb(235,{faded},{faded})" if change > 0 else f"rgb({faded},{faded},235)"
    # The same function has the same colour in every picture.
    seed = zlib.crc32(node.name.encode())
    return f"rgb({205 + seed % 50},{110 + seed // 50 % 110},{40 + seed // 7000 % 50})"


def _cut(text: str, width: float) -> str:
    fits = int((width - 4) / TEXT_PX)
    return "" if fits < 3 else text if len(text) <= fits else text[: fits - 1] + "…"
