"""The three loops give the same answers, and the stock ones carry nothing of ours."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

import sglang_photon
from tests.server.asking import Answer, answer, mixed, stopping, streamed
from tests.server.plugins import Probed, install_probe, probe
from tests.server.servers import CLEAN, MODEL, Ending, Running

OURS = "sglang_photon.upstream.scheduler"
LOG_LINE = f"sglang-photon {sglang_photon.__version__}: loop "
STOPS = {"blocking": signal.SIGINT, "sglang": signal.SIGTERM}
"""The signals by which the two are stopped, both to the main process. Ctrl-C in a terminal reaches
all of them: SGLang's watchdog may then see a scheduler end before the server has, and kill it."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """Everything that is asked of one server while it runs."""

    answers: tuple[Answer, ...]
    stopped: dict[str, Answer]
    info: dict[str, Any]
    scheduler: Probed
    log: str
    ending: Ending


def stopped_streams(running: Running) -> dict[str, Answer]:
    """What streams with stop strings show; how it is cut into chunks depends on timing."""
    found = {name: streamed(running.client, ask) for name, (ask, _) in stopping().items()}
    return {name: replace(one, texts=("".join(one.texts),)) for name, one in found.items()}


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Record]:
    """The record of a loop: its server runs once, and has ended when the record is returned."""

    @functools.cache
    def made(loop: str) -> Record:
        folder = tmp_path_factory.mktemp(loop)
        plugin = folder / "plugin"
        arguments = ["--model-path", MODEL, "--photon-loop", loop]
        with Running(arguments=arguments, folder=folder, environ=install_probe(plugin)) as running:
            return Record(
                answers=tuple(answer(running.client, ask) for ask in mixed()),
                stopped=stopped_streams(running),
                info=running.get("/server_info"),
                scheduler=probe(plugin, running.schedulers()[0]),
                log=running.log,
                ending=running.stop(STOPS[loop]),
            )

    return made


@pytest.mark.parametrize("loop", STOPS)
def test_a_stock_loop_carries_no_patch_of_ours(loop: str, record: Callable[[str], Record]) -> None:
    stock = record(loop)
    assert "photon" not in stock.info
    assert stock.info["disable_overlap_schedule"] == (loop == "blocking")
    assert stock.scheduler.scheduler == "sglang.srt.managers.scheduler"
    assert OURS not in stock.scheduler.modules
    assert LOG_LINE not in stock.log
    assert "hook(s) to" not in stock.log


@pytest.mark.parametrize("loop", STOPS)
def test_a_signal_ends_the_server_and_leaves_nothing(
    loop: str, record: Callable[[str], Record]
) -> None:
    assert record(loop).ending == CLEAN


def test_auto_runs_our_scheduler_and_says_so(auto: Running) -> None:
    info = auto.get("/server_info")
    assert info["photon"]["loop"] == "photon"
    assert info["photon"]["version"] == sglang_photon.__version__
    found = probe(auto.folder / "plugin", auto.schedulers()[0])
    assert (found.scheduler, OURS in found.modules) == (OURS, True)
    assert LOG_LINE in auto.log


@pytest.mark.parametrize("loop", STOPS)
def test_answers_are_the_same_under_every_loop(
    loop: str, record: Callable[[str], Record], auto_answers: tuple[Answer, ...]
) -> None:
    assert record(loop).answers == auto_answers


def test_ov_22_a_stream_shows_nothing_of_its_stop_string(auto: Running) -> None:
    for name, (ask, text) in stopping().items():
        one = streamed(auto.client, ask)
        assert "".join(one.texts) == text, name
        assert one.finish_reasons == ("stop",)


@pytest.mark.parametrize("loop", STOPS)
def test_ov_22_streams_stop_alike_under_every_loop(
    loop: str, record: Callable[[str], Record], auto: Running
) -> None:
    assert record(loop).stopped == stopped_streams(auto)
