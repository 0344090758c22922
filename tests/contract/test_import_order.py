"""Our launcher must not change what SGLang's modules read while they load."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sglang_photon import reference

READ_AT_IMPORT = (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.multimodal.transport.cuda_ipc",
)
"""Stock SGLang imports these after it has resolved its arguments, which sets variables for them."""


@pytest.mark.timeout(180)
def test_nothing_is_imported_before_the_arguments_are_resolved() -> None:
    code = (
        "import sys, sglang_photon.upstream.server, sglang_photon.upstream.install\n"
        "from sglang.srt.plugins import load_plugins; load_plugins()\n"
        f"print([name for name in {READ_AT_IMPORT} if name in sys.modules])"
    )
    variables = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "SGLANG_PHOTON": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**variables, **reference.child_environment(variables)},
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )
    assert ended.stdout.splitlines()[-1] == "[]"
