"""Samples that a scheduler takes of itself, when its server is asked for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.managers.io_struct import ProfileReq, ProfileReqType

from sglang_photon.errors import PhotonError, UsageError
from sglang_photon.observe.reader import NoStepsError
from sglang_photon.observe.ring import StepRing
from sglang_photon.profiling.folder import Recording
from sglang_photon.profiling.inside import ACTIVITY
from sglang_photon.profiling.record import Options, record
from sglang_photon.profiling.targets import Server, Target
from sglang_photon.upstream.metering import STACKS, with_stacks

HANDLE = with_stacks(lambda request: "upstream")


def asking(**fields: Any) -> ProfileReq:
    return ProfileReq(activities=[STACKS], **fields)


def test_other_profile_requests_are_upstreams() -> None:
    assert STACKS == ACTIVITY
    assert HANDLE(ProfileReq(activities=["CPU"])) == "upstream"
    assert HANDLE(ProfileReq()) == "upstream"
    assert HANDLE(asking(req_type=ProfileReqType.STOP_PROFILE)) == "upstream"


@pytest.mark.parametrize("prefix", [None, "", "fast"])
def test_a_request_that_nobody_would_make_is_refused(prefix: str | None, tmp_path: Path) -> None:
    answer = HANDLE(asking(profile_prefix=prefix, output_dir=str(tmp_path)))
    assert not answer.success
    assert not HANDLE(asking(profile_prefix="9/s for 1 s", output_dir="/no/such")).success


@pytest.fixture
def server() -> Iterator[Server]:
    """This process as scheduler and server: its control channel hands requests to the handler."""

    class Control(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            allowed = self.headers.get("Authorization") == "Bearer key"
            good = allowed and HANDLE(ProfileReq(**body)).success
            self.send_response(200 if good else 401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    http = HTTPServer(("127.0.0.1", 0), Control)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    own = Target(pid=os.getpid(), role="scheduler", name="scheduler", python=(3, 11), threads=1)
    yield Server(root=os.getpid(), targets=(own,), skipped=(), port=http.server_port)
    http.shutdown()
    thread.join()
    http.server_close()


OPTIONS = Options(seconds=0.3, rate=200, in_process=True, baseline_s=0.0, quiet=True)


def test_a_recording_from_inside_is_labelled(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = StepRing()
    assert ring.shared
    monkeypatch.setenv("PHOTON_API_KEY", "key")
    made = record(server, tmp_path, OPTIONS)
    assert "biased" in Recording.open(made.path).meta["sampler"]
    (part,) = made.parts
    assert part.samples is not None
    assert part.samples.end - part.samples.start == pytest.approx(0.3, abs=0.3)
    functions = {frame.function for _, i in part.samples for frame in i.stack}
    assert "serve_forever" in functions


def test_without_the_servers_key_it_is_refused(server: Server, tmp_path: Path) -> None:
    ring = StepRing()
    assert ring.shared
    with pytest.raises(PhotonError, match="PHOTON_API_KEY"):
        record(server, tmp_path, OPTIONS)


def test_a_stock_scheduler_is_never_asked(server: Server, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stock:
        own = Target(pid=stock.pid, role="scheduler", name="s", python=(3, 11), threads=1)
        asked = Server(root=stock.pid, targets=(own,), skipped=(), port=server.port)
        with pytest.raises(NoStepsError, match="--photon-meter on"):
            record(asked, tmp_path, OPTIONS)
        stock.communicate(b"\n")


def test_a_process_without_a_port_has_no_control_channel(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no HTTP port"):
        record(Server(root=1, targets=server.targets, skipped=(), port=None), tmp_path, OPTIONS)
