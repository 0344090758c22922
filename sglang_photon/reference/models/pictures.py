"""The world of the demo model: pictures of coloured shapes, and what can be asked about them.

A *scene* is up to three shapes, each in its own cell of a 4 x 4 grid::

            x=0   1    2    3        lines of the grid run from 0 to 4 in both directions
          0+----+----+----+----+
      y=0  |    | ●  |    |    |     the circle's point is {"x": 1, "y": 0}: column, row
          1+----+----+----+----+     its box is {"x1": 1, "y1": 0, "x2": 2, "y2": 1}: grid lines
        1  |    |    |    |    |
          2+----+----+----+----+     "where" names a quarter: this circle is at the top left

``render`` draws a scene; ``ask`` makes a question about it whose answer is one exact string.
Some combinations of shape, colour and cell are *held out* (``is_held_out``): training never draws
them, although it shows every shape, colour, cell and every pair of them. ``heldout`` yields
questions about pictures made of held-out combinations only; tests and benchmarks measure on it.

This module needs numpy and Pillow, and no model.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from PIL import Image, ImageDraw

from sglang_photon.reference.models.wordings import WORDINGS

GRID = 4
"""Cells per side."""
MAX_SHAPES = 3
NATIVE_SIZE = 112
"""Side in pixels at which the model sees a square picture: 28 pixels, one image token, per cell."""

SHAPES = ("circle", "square", "triangle", "star")
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "yellow": (240, 200, 30),
    "purple": (150, 60, 190),
}
TASKS = ("describe", "colour", "shape", "count", "where", "point", "box", "exists")
"""Questions about one picture."""
PAIR_TASKS = ("pair describe", "pair question")
"""Questions about two pictures in one message."""

_COORDINATE = {"type": "integer", "minimum": 0, "maximum": GRID}


def _object_schema(names: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict.fromkeys(names, _COORDINATE),
        "required": list(names),
        "additionalProperties": False,
    }


SCHEMAS = {
    "point": _object_schema(("x", "y")),
    "box": _object_schema(("x1", "y1", "x2", "y2")),
}
"""JSON schema per task; the model's free answer is already of this form."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """One coloured shape; ``column`` and ``row`` count cells from the top left, from 0."""

    shape: str
    colour: str
    column: int
    row: int

    @property
    def name(self) -> str:
        """For example "red circle"."""
        return f"{self.colour} {self.shape}"

    @property
    def place(self) -> str:
        """The quarter of the picture, for example "top left"."""
        vertical = "top" if self.row < GRID // 2 else "bottom"
        return f"{vertical} {'left' if self.column < GRID // 2 else 'right'}"


Scene = tuple[Shape, ...]
"""Shapes in reading order, no two in one cell and no two of the same colour and shape."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """``answer`` is the one string that counts as right."""

    task: str
    text: str
    answer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A question with the picture (two for ``PAIR_TASKS``) it is about."""

    pictures: tuple[Image.Image, ...]
    scenes: tuple[Scene, ...]
    task: str
    question: str
    answer: str

    @property
    def picture(self) -> Image.Image:
        """The first picture."""
        return self.pictures[0]


def is_held_out(shape: Shape) -> bool:
    """Whether training never draws this combination of shape, colour and cell: one in eight.

    Of the 16 cells each pair of shape and colour misses two, and no cell misses more than three
    of its 20 pairs.
    """
    pair = SHAPES.index(shape.shape) * len(COLOURS) + list(COLOURS).index(shape.colour)
    return (3 * pair + shape.row * GRID + shape.column) % 8 == 0


def _combinations(*, held_out: bool) -> tuple[Shape, ...]:
    every = (
        Shape(shape=shape, colour=colour, column=column, row=row)
        for shape, colour, row, column in itertools.product(
            SHAPES, COLOURS, range(GRID), range(GRID)
        )
    )
    return tuple(shape for shape in every if is_held_out(shape) == held_out)


_TRAINED, _HELD_OUT = _combinations(held_out=False), _combinations(held_out=True)


def random_scene(rng: np.random.Generator, *, count: int, held_out: bool = False) -> Scene:
    """``count`` shapes, all from the trained combinations or all from the held-out ones."""
    pool = _HELD_OUT if held_out else _TRAINED
    scene: list[Shape] = []
    while len(scene) < count:
        shape = pool[int(rng.integers(len(pool)))]
        if any((s.column, s.row) == (shape.column, shape.row) for s in scene):
            continue
        if all(s.name != shape.name for s in scene):
            scene.append(shape)
    return tuple(sorted(scene, key=lambda s: (s.row, s.column)))


# --- drawing ------------------------------------------------------------------------------------


def _outline(shape: str, angle: float) -> list[tuple[float, float]]:
    """Corners on the unit circle, turned by ``angle`` radians."""
    if shape == "square":
        turns, radii = [0.125, 0.375, 0.625, 0.875], [1.1] * 4
    elif shape == "triangle":
        turns, radii = [0.0, 1 / 3, 2 / 3], [1.1] * 3
    else:
        turns, radii = [i / 10 for i in range(10)], [1.1, 0.45] * 5
    directions = [2 * math.pi * turn + angle for turn in turns]
    return [(r * math.sin(d), -r * math.cos(d)) for r, d in zip(radii, directions, strict=True)]


def _shade(rng: np.random.Generator | None) -> tuple[int, ...]:
    """A background: white without ``rng``, else mostly light, sometimes dark."""
    if rng is None:
        return (255, 255, 255)
    base = rng.integers(205, 256) if rng.random() < 0.85 else rng.integers(0, 60)
    tint = rng.integers(-8, 9, size=3)
    return tuple(int(value) for value in np.clip(base + tint, 0, 255))


def render(
    scene: Scene,
    *,
    size: int = NATIVE_SIZE,
    rng: np.random.Generator | None = None,
    smoothing: int = 4,
) -> Image.Image:
    """Draws a scene as an RGB picture of ``size`` x ``size`` pixels.

    ``rng`` varies sizes, positions within the cell, angles, colours and background a little;
    without it the drawing is the plain one. Edges are smoothed by drawing ``smoothing`` times as
    large and averaging.
    """
    canvas = Image.new("RGB", (size * smoothing, size * smoothing), _shade(rng))
    draw = ImageDraw.Draw(canvas)
    cell = size * smoothing / GRID
    for shape in scene:
        radius, dx, dy, angle, ink = 0.37, 0.0, 0.0, 0.0, np.array(COLOURS[shape.colour])
        if rng is not None:
            radius = float(rng.uniform(0.29, 0.42))
            dx, dy = rng.uniform(-0.07, 0.07, size=2)
            angle = float(rng.uniform(-0.15, 0.15))
            ink = np.clip(ink + rng.integers(-18, 19, size=3), 0, 255)
        x, y = (shape.column + 0.5 + dx) * cell, (shape.row + 0.5 + dy) * cell
        r, fill = radius * cell, tuple(int(value) for value in ink)
        if shape.shape == "circle":
            draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)
        else:
            corners = _outline(shape.shape, angle)
            draw.polygon([(x + r * cx, y + r * cy) for cx, cy in corners], fill=fill)
    return canvas.reduce(smoothing) if smoothing > 1 else canvas


# --- questions ----------------------------------------------------------------------------------

_ORDINALS = ("first", "second")
_NO_BLANKS: dict[str, str] = {}
_T = TypeVar("_T")


def _pick(rng: np.random.Generator, options: Sequence[_T]) -> _T:
    return options[int(rng.integers(len(options)))]


def describe(scene: Scene) -> str:
    """For example "a red circle, a blue star and a green square"."""
    names = [f"a {shape.name}" for shape in scene]
    if not names:
        return "nothing"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def point_answer(shape: Shape) -> str:
    """JSON of the cell: column ``x`` and row ``y``, each 0 to 3."""
    return json.dumps({"x": shape.column, "y": shape.row})


def box_answer(shape: Shape) -> str:
    """JSON of the grid lines around the cell, each 0 to 4."""
    x, y = shape.column, shape.row
    return json.dumps({"x1": x, "y1": y, "x2": x + 1, "y2": y + 1})


def _alone(scene: Scene, key: Callable[[Shape], str]) -> list[Shape]:
    """Shapes that no other shares ``key`` with."""
    keys = [key(shape) for shape in scene]
    return [shape for shape in scene if keys.count(key(shape)) == 1]


def _referring(rng: np.random.Generator, scene: Scene, task: str) -> tuple[Shape, str]:
    """A shape, and words that mean it alone without giving away its colour (or its shape)."""
    if len(scene) == 1 and rng.random() < 0.2:
        return scene[0], "the shape" if task == "colour" else "it"
    by_trait = _alone(scene, lambda s: s.shape if task == "colour" else s.colour)
    by_place = _alone(scene, lambda s: s.place)
    if by_place and (not by_trait or rng.random() < 0.3):
        one = _pick(rng, by_place)
        return one, f"the shape at the {one.place}"
    one = _pick(rng, by_trait or scene)
    return one, f"the {one.shape}" if task == "colour" else f"the {one.colour} one"


def _about_one(rng: np.random.Generator, scene: Scene, task: str) -> tuple[dict[str, str], str]:
    """Blanks of the wording and the answer, for a task about a single shape of the scene."""
    if task in ("colour", "shape"):
        one, it = _referring(rng, scene, task)
        return {"it": it}, one.colour if task == "colour" else one.shape
    one = _pick(rng, scene)
    answers = {"where": one.place, "point": point_answer(one), "box": box_answer(one)}
    name = "shape" if len(scene) == 1 and rng.random() < 0.2 else one.name
    return {"name": name}, answers[task]


def _count(rng: np.random.Generator, scene: Scene) -> tuple[dict[str, str], str]:
    kind = rng.random()
    if kind < 0.5:
        return {"things": "shapes"}, str(len(scene))
    here = rng.random() < 0.7 and len(scene) > 0
    if kind < 0.75:
        shape = _pick(rng, scene).shape if here else _pick(rng, SHAPES)
        return {"things": f"{shape}s"}, str(sum(s.shape == shape for s in scene))
    colour = _pick(rng, scene).colour if here else _pick(rng, tuple(COLOURS))
    return {"things": f"{colour} shapes"}, str(sum(s.colour == colour for s in scene))


def _exists(rng: np.random.Generator, scene: Scene) -> tuple[dict[str, str], str]:
    if scene and rng.random() < 0.5:
        name = _pick(rng, scene).name
    else:
        name = f"{_pick(rng, tuple(COLOURS))} {_pick(rng, SHAPES)}"
    return {"name": name}, "yes" if any(s.name == name for s in scene) else "no"


def askable(scene: Scene, task: str) -> bool:
    """Whether the scene has what the task asks about, without ambiguity."""
    if task == "colour":
        return bool(_alone(scene, lambda s: s.shape) or _alone(scene, lambda s: s.place))
    if task == "shape":
        return bool(_alone(scene, lambda s: s.colour) or _alone(scene, lambda s: s.place))
    return bool(scene) or task in ("describe", "count", "exists")


def ask(rng: np.random.Generator, scene: Scene, task: str) -> Question:
    """A question of one of ``TASKS`` about a scene that is ``askable``, in a random wording."""
    if task == "describe":
        blanks, answer = _NO_BLANKS, describe(scene)
    elif task == "count":
        blanks, answer = _count(rng, scene)
    elif task == "exists":
        blanks, answer = _exists(rng, scene)
    else:
        blanks, answer = _about_one(rng, scene, task)
    return Question(task=task, text=_pick(rng, WORDINGS[task]).format(**blanks), answer=answer)


def ask_pair(rng: np.random.Generator, scenes: tuple[Scene, Scene], task: str) -> Question:
    """A question of one of ``PAIR_TASKS``: describe both, or one of ``TASKS`` about one of them."""
    if task == "pair describe":
        answer = f"first: {describe(scenes[0])}; second: {describe(scenes[1])}"
        return Question(task=task, text=_pick(rng, WORDINGS[task]), answer=answer)
    which = int(rng.integers(2))
    tasks = [name for name in TASKS if askable(scenes[which], name)]
    question = ask(rng, scenes[which], _pick(rng, tasks))
    lower = question.text[0].lower() + question.text[1:]
    text = f"In the {_ORDINALS[which]} picture: {lower}"
    return Question(task=task, text=text, answer=question.answer)


def heldout(
    n: int, seed: int = 0, *, tasks: Sequence[str] = TASKS, size: int = NATIVE_SIZE
) -> Iterator[Example]:
    """``n`` examples on held-out combinations, the tasks in turn; the same for the same arguments.

    Each has its own picture of one to three shapes, drawn with small variations.
    """
    rng = np.random.default_rng(seed)
    for task in itertools.islice(itertools.cycle(tasks), n):
        wanted = 2 if task in PAIR_TASKS else 1
        scenes: list[Scene] = []
        while len(scenes) < wanted:
            scene = random_scene(rng, count=int(rng.integers(1, MAX_SHAPES + 1)), held_out=True)
            if task in PAIR_TASKS or askable(scene, task):
                scenes.append(scene)
        question = (
            ask_pair(rng, (scenes[0], scenes[1]), task)
            if task in PAIR_TASKS
            else ask(rng, scenes[0], task)
        )
        yield Example(
            pictures=tuple(render(scene, size=size, rng=rng) for scene in scenes),
            scenes=tuple(scenes),
            task=task,
            question=question.text,
            answer=question.answer,
        )
