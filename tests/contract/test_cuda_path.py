"""What SGLang runs on a CUDA machine without compiled kernels, as far as a CPU can show it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.timeout(400)
def test_a_bare_cuda_machine_serves_text_and_pictures() -> None:
    """Every import and every Triton kernel of that path; the kernels are interpreted."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.pretend_cuda", "photon"],
        capture_output=True,
        text=True,
        env={**inherited, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("tokens ")]
    assert [len(row) for row in rows] == [12, 12]
