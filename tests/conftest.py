"""What every test gets: a time limit, no GPU tests without a GPU, and nothing left running."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

import psutil
import pytest

SERVER_TEST_S = 400.0


@functools.cache
def cuda_works() -> bool:
    """Asked only when a GPU test is collected: importing torch takes seconds."""
    import torch

    return torch.cuda.is_available()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--schedules",
        type=int,
        metavar="N",
        help="random schedules for each configuration of the differential tests",
    )


def pytest_configure() -> None:
    """What somebody has exported must not decide what the tests see."""
    for name in list(os.environ):
        if name.startswith("SGLANG_P") and name != "SGLANG_PHOTON_CACHE":
            del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("server") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SERVER_TEST_S))
        if item.get_closest_marker("gpu") and not cuda_works():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def no_process_left() -> Iterator[None]:
    """Fails the run when a test leaves a process behind (and ends it)."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    children = psutil.Process().children(recursive=True)
    left = [child for child in children if child.pid not in before and runs(child)]
    for child in left:
        child.kill()
    assert not left, f"left running: {left}"


def runs(process: psutil.Process) -> bool:
    """Whether it still does something.

    Python's own helper for shared memory and semaphores lives as long as this process.
    """
    try:
        helper = "multiprocessing.resource_tracker" in " ".join(process.cmdline())
        return not helper and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
