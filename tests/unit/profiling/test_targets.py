"""Which server is meant."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from sglang_photon.errors import UsageError
from sglang_photon.observe.ring import StepRing
from sglang_photon.profiling import targets
from sglang_photon.profiling.record import Options, _command_of
from sglang_photon.profiling.targets import NoServerError, Server, find_server


def server(root: int, port: int) -> Server:
    return Server(root=root, targets=(), skipped=(), port=port)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    found: Sequence[Server] = request.param
    monkeypatch.setattr(targets, "list_servers", lambda: list(found))


@pytest.mark.parametrize("servers", [[server(1, 30000), server(2, 30001)]], indirect=True)
@pytest.mark.usefixtures("servers")
def test_between_two_servers_it_does_not_guess() -> None:
    with pytest.raises(
        NoServerError, match=r"2 servers are running\. Choose one: --pid 1 \(port 3"
    ):
        find_server(port=None, pid=None)
    assert find_server(port=30001, pid=None).root == 2


@pytest.mark.parametrize("servers", [[server(1, 30000)]], indirect=True)
@pytest.mark.usefixtures("servers")
def test_the_only_one_is_taken() -> None:
    assert find_server(port=None, pid=None).root == 1
    with pytest.raises(NoServerError, match="No SGLang server is running on port 5"):
        find_server(port=5, pid=None)


def test_a_process_that_is_not_there() -> None:
    with pytest.raises(NoServerError, match="There is no process"):
        find_server(port=None, pid=1 << 30)


def test_a_process_that_keeps_steps_is_a_scheduler() -> None:
    ring = StepRing()
    found = find_server(port=None, pid=os.getpid())
    own = next(target for target in found.targets if target.pid == os.getpid())
    assert ring.shared
    assert own.role == "scheduler"
    assert own.python == sys.version_info[:2]
    with pytest.raises(UsageError, match="has no detokenizer"):
        found.chosen(["detokenizer"])


def test_what_is_not_python_is_skipped() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            found = find_server(port=None, pid=os.getpid())
            assert (child.pid, "sleep") in found.skipped
        finally:
            child.kill()


def test_secrets_of_a_command_line_are_left_out() -> None:
    program = [sys.executable, "-c", "print(flush=True); input()"]
    command = [*program, "--api-key", "abc", "--admin-api-key=def", "--tp", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        kept = _command_of(child.pid)
        child.communicate(b"\n")
    assert kept[3:] == ["--api-key", "...", "--admin-api-key=...", "--tp", "1"]
    assert _command_of(1 << 30) == []


@pytest.mark.parametrize(("seconds", "rate"), [(0, 100), (1, 0), (1, 5000)])
def test_times_and_rates_have_limits(seconds: float, rate: int) -> None:
    with pytest.raises(UsageError, match="rate from 1 to 1000"):
        Options(seconds=seconds, rate=rate)
