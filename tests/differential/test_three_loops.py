"""One scheduler, three loops in turn: each is what it is called, and all give the same tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sglang_photon.bench.gpu import model_folder
from sglang_photon.bench.gpu.trace import Window
from sglang_photon.upstream.in_process import QUIET
from sglang_photon.upstream.three_loops import Ask, ThreeLoops

TEXT = Ask(prompt=12, side=0, tokens=40, stream=True)
IMAGE = Ask(prompt=12, side=112, tokens=40, stream=False)


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeLoops]:
    model = model_folder.write(tmp_path_factory.mktemp("loops") / "model", small=True)
    arguments = ["--model-path", str(model), "--disable-radix-cache"]
    arguments += ["--max-running-requests", "4", "--max-total-tokens", "2048"]
    with ThreeLoops.open(arguments, defaults=(*QUIET, ("--load-format", "dummy"))) as made:
        torch.set_num_threads(1)
        yield made


def tokens(loops: ThreeLoops, loop: str, ask: Ask) -> list[list[int]]:
    loops.use(loop)
    loops.rewind()
    outcome = loops.steady(ask, batch=3, warm=2, steps=10, traced=4, probe=Window(device="cpu"))
    assert outcome.steps >= 10
    assert outcome.wall_s > 0
    assert 0 < outcome.plan_s < outcome.wall_s
    return outcome.tokens


@pytest.mark.parametrize("ask", [TEXT, IMAGE], ids=["text", "image"])
def test_every_loop_gives_the_blocking_loops_tokens(loops: ThreeLoops, ask: Ask) -> None:
    expected = tokens(loops, "blocking", ask)
    assert [len(row) for row in expected] == [ask.tokens] * 3
    assert tokens(loops, "sglang", ask) == expected
    assert tokens(loops, "photon", ask) == expected
    assert tokens(loops, "blocking", ask) == expected


def test_each_loop_is_what_it_is_called(loops: ThreeLoops) -> None:
    scheduler = loops.scheduler
    tokens(loops, "photon", TEXT)
    assert scheduler.photon_loop.stats.steps > 10
    tokens(loops, "sglang", TEXT)
    assert scheduler.photon_loop is None
    assert scheduler.enable_overlap
    assert scheduler.enable_skip_finishing_decode  # Set by SGLang's overlap loop alone.
    tokens(loops, "blocking", TEXT)
    assert not scheduler.enable_overlap
    assert not scheduler.enable_skip_finishing_decode


def test_a_picture_that_comes_late_is_timed(loops: ThreeLoops) -> None:
    for loop in ("blocking", "sglang", "photon"):
        loops.use(loop)
        taken = loops.first_token_s(IMAGE, beside=TEXT, batch=3, warm=2)
        assert taken is not None
        assert taken > 0
