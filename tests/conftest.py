"""What every test gets: a time limit, no GPU tests without a GPU, and nothing left behind."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

SERVER_TEST_S = 400.0
SHARED_MEMORY = Path("/dev/shm")
OF_TOOLS = ("torchinductor_",)
"""What libraries keep in the temporary folder from one run to the next."""


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
        help="random schedules: for each configuration; in the soak, in all",
    )


def pytest_configure() -> None:
    """What somebody has exported must not decide what the tests see."""
    for name in list(os.environ):
        if name.startswith("SGLANG_P") and name != "SGLANG_PHOTON_CACHE":
            del os.environ[name]
    # A temporary folder for this run alone shows what it leaves there. pytest's own stays outside.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="pt-")


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("server") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SERVER_TEST_S))
        if item.get_closest_marker("gpu") and not cuda_works():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def nothing_left() -> Iterator[None]:
    """Fails the run when a test leaves a process (and ends it), a file, a socket or a segment."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    children = psutil.Process().children(recursive=True)
    left = [child for child in children if child.pid not in before and runs(child)]
    for child in left:
        child.kill()
    assert not left, f"left running: {left}"
    files = [p.name for p in Path(tempfile.gettempdir()).iterdir()]
    files = [name for name in files if not name.startswith(OF_TOOLS)]
    assert not files, f"left in the temporary folder: {sorted(files)[:20]} ({len(files)})"
    segments = own_segments()
    assert not segments, f"left in shared memory: {segments}"


def own_segments() -> list[str]:
    """Shared memory of this process: mapped, or with its number in its name.

    That of servers is looked for where they are stopped (`tests/server/servers.py`).
    """
    if not SHARED_MEMORY.is_dir():
        return []
    maps = Path("/proc/self/maps").read_text()
    number = str(os.getpid())
    return sorted(
        path.name
        for path in SHARED_MEMORY.iterdir()
        if number in path.name.split("_") or f"{path}\n" in maps
    )


def runs(process: psutil.Process) -> bool:
    """Whether it still does something.

    Python's own helper for shared memory and semaphores lives as long as this process.
    """
    try:
        helper = "multiprocessing.resource_tracker" in " ".join(process.cmdline())
        return not helper and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
