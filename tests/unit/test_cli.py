from __future__ import annotations

import socket

import pytest

import sglang_photon
from sglang_photon import launch_server
from sglang_photon.arguments import ArgumentList
from sglang_photon.cli import COMMANDS, main
from sglang_photon.errors import PhotonError, UsageError, refuse


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {command} " in listed for command in COMMANDS)


def test_an_unknown_command_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bake"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.strip() == sglang_photon.__version__


def test_refuse_ends_the_process_with_the_errors_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        refuse(PhotonError("it broke", "mend it"))
    assert ended.value.code == 1
    assert capsys.readouterr().err == "sglang-photon: error: it broke. mend it\n"


def test_a_port_that_is_listened_on_is_refused_and_a_free_one_is_not() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        with pytest.raises(UsageError, match=f"127.0.0.1:{port}.*--port"):
            launch_server._check_port(ArgumentList(["--port", port]))
    launch_server._check_port(ArgumentList(["--port", port]))


@pytest.mark.parametrize("port", ["70000", "-1"])
def test_a_port_out_of_range_is_refused(port: str) -> None:
    with pytest.raises(UsageError, match="--port"):
        launch_server._check_port(ArgumentList(["--port", port]))


def test_two_loops_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["demo", "--photon-loop", "sglang", "--disable-overlap-schedule"]
    assert launch_server.main(argv) == 2
    assert "Use --photon-loop blocking" in capsys.readouterr().err
