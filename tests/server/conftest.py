"""Fixtures of the server tests.

Starting a server is what these tests pay for: one serves all tests that only ask. It starts at its
first use and runs to the end, so tests that start servers of their own come before it; on a machine
with few cores two servers at a time are slower than one after the other.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.server.asking import Answer, answer, mixed
from tests.server.plugins import install_probe, install_slow_pictures
from tests.server.servers import CLEAN, MODEL, Running

SHARED = "auto"
PHOTON_SERVE = (str(Path(sys.executable).with_name("photon")), "serve")
"""The console script; the other servers start by `python -m sglang_photon.launch_server`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and put those on the shared server last of all."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.server)
    items.sort(key=lambda item: SHARED in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def auto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The demo model under `--photon-loop auto`; its end must leave nothing behind."""
    folder = tmp_path_factory.mktemp("auto")
    environ = install_probe(folder / "plugin")
    paths = [environ["PYTHONPATH"], install_slow_pictures(folder / "slow")["PYTHONPATH"]]
    environ["PYTHONPATH"] = os.pathsep.join(paths)
    arguments = ["--model-path", MODEL]
    with Running(
        arguments=arguments, folder=folder, environ=environ, launcher=PHOTON_SERVE
    ) as running:
        yield running
        ending = running.stop(signal.SIGTERM)
    assert ending == CLEAN, f"left behind; log:\n{running.server.log_tail()}"


@pytest.fixture(scope="session")
def auto_answers(auto: Running) -> tuple[Answer, ...]:
    """The answers to the mixed requests, each asked alone."""
    return tuple(answer(auto.client, ask) for ask in mixed())


@pytest.fixture
def client(auto: Running) -> openai.OpenAI:
    """A client of the shared server."""
    return auto.client
