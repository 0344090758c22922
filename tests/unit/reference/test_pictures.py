from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from sglang_photon.reference.models.pictures import (
    COLOURS,
    GRID,
    NATIVE_SIZE,
    PAIR_TASKS,
    SCHEMAS,
    SHAPES,
    TASKS,
    Shape,
    ask,
    askable,
    describe,
    heldout,
    is_held_out,
    random_scene,
    render,
)

EVERY = [
    Shape(shape=shape, colour=colour, column=column, row=row)
    for shape, colour, column, row in itertools.product(SHAPES, COLOURS, range(GRID), range(GRID))
]
CIRCLE = Shape(shape="circle", colour="red", column=1, row=0)
STAR = Shape(shape="star", colour="blue", column=3, row=2)


def test_one_combination_in_eight_is_held_out() -> None:
    assert sum(is_held_out(shape) for shape in EVERY) == len(EVERY) // 8


def test_training_sees_every_pair_of_shape_colour_and_cell() -> None:
    trained = [shape for shape in EVERY if not is_held_out(shape)]
    cells = list(itertools.product(range(GRID), range(GRID)))
    assert {(s.shape, s.colour) for s in trained} == set(itertools.product(SHAPES, COLOURS))
    assert {(s.shape, (s.column, s.row)) for s in trained} == set(itertools.product(SHAPES, cells))
    assert {(s.colour, (s.column, s.row)) for s in trained} == set(
        itertools.product(COLOURS, cells)
    )


@pytest.mark.parametrize("held_out", [False, True])
def test_a_scene_keeps_to_its_side_of_the_split(held_out: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        scene = random_scene(rng, count=3, held_out=held_out)
        assert all(is_held_out(shape) == held_out for shape in scene)
        assert len({(s.column, s.row) for s in scene}) == 3
        assert len({s.name for s in scene}) == 3
        assert list(scene) == sorted(scene, key=lambda s: (s.row, s.column))


def test_heldout_is_deterministic_and_walks_through_the_tasks() -> None:
    first, second = list(heldout(16, 7)), list(heldout(16, 7))
    assert [e.task for e in first] == list(TASKS) * 2
    assert [(e.question, e.answer, e.scenes) for e in first] == [
        (e.question, e.answer, e.scenes) for e in second
    ]
    assert all(
        a.picture.tobytes() == b.picture.tobytes() for a, b in zip(first, second, strict=True)
    )
    assert [e.scenes for e in heldout(16, 8)] != [e.scenes for e in first]


def test_heldout_shows_only_held_out_combinations() -> None:
    for example in heldout(100, 1, tasks=(*TASKS, *PAIR_TASKS)):
        assert len(example.pictures) == (2 if example.task in PAIR_TASKS else 1)
        assert all(is_held_out(shape) for scene in example.scenes for shape in scene)


def test_size_changes_the_pixels_and_nothing_else() -> None:
    for small, large in zip(heldout(8, 3), heldout(8, 3, size=1024), strict=True):
        assert (small.picture.size, large.picture.size) == ((NATIVE_SIZE,) * 2, (1024, 1024))
        assert (small.question, small.answer) == (large.question, large.answer)
        shrunk = np.asarray(large.picture.resize((NATIVE_SIZE, NATIVE_SIZE)), dtype=float)
        assert np.abs(shrunk - np.asarray(small.picture, dtype=float)).mean() < 3


def test_the_plain_drawing_puts_the_colour_into_its_cell() -> None:
    picture = np.asarray(render((CIRCLE, STAR)))
    cell = NATIVE_SIZE // GRID
    assert tuple(picture[cell // 2, cell + cell // 2]) == COLOURS["red"]
    assert tuple(picture[2 * cell + cell // 2, 3 * cell + cell // 2]) == COLOURS["blue"]
    assert (picture[cell:, : 3 * cell] == 255).all()


def test_describe_lists_in_reading_order() -> None:
    assert describe((CIRCLE, STAR)) == "a red circle and a blue star"
    third = Shape(shape="square", colour="green", column=0, row=3)
    assert describe((CIRCLE, STAR, third)) == "a red circle, a blue star and a green square"
    assert describe(()) == "nothing"


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ("describe", "a red circle"),
        ("colour", "red"),
        ("shape", "circle"),
        ("where", "top left"),
        ("point", '{"x": 1, "y": 0}'),
        ("box", '{"x1": 1, "y1": 0, "x2": 2, "y2": 1}'),
    ],
)
def test_answers_about_one_shape(task: str, answer: str) -> None:
    assert ask(np.random.default_rng(0), (CIRCLE,), task).answer == answer


@pytest.mark.parametrize("task", sorted(SCHEMAS))
def test_json_answers_follow_their_schema_and_json_dumps(task: str) -> None:
    for example in heldout(50, 5, tasks=(task,)):
        value = json.loads(example.answer)
        assert list(value) == SCHEMAS[task]["required"]
        assert all(0 <= number <= GRID for number in value.values())
        assert json.dumps(value) == example.answer


def test_an_ambiguous_colour_is_not_asked() -> None:
    near = Shape(shape="circle", colour="blue", column=0, row=0)
    assert not askable((near, CIRCLE), "colour")
    assert askable((near, CIRCLE), "shape")
    assert askable((), "count")
    assert not askable((), "point")
