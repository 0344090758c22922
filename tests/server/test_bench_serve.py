"""`photon bench serve` on the demo model: two real servers, SGLang's own client, one report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from sglang_photon.bench.serving import FIGURES
from tests.server.servers import MODEL, ONE_THREAD

FEW = (
    "--bench-data",
    "image",
    "--bench-rounds",
    "1",
    "--bench-prompts",
    "4",
    "--bench-concurrency",
    "2",
)
SHORT = ("--bench-input-tokens", "16", "--bench-output-tokens", "6", "--bench-resolution", "64x64")


def test_stock_and_photon_are_compared(tmp_path: Path) -> None:
    out = tmp_path / "compared"
    command = [sys.executable, "-m", "sglang_photon", "bench", "serve", "--model-path", MODEL]
    done = subprocess.run(
        [*command, *FEW, *SHORT, "--bench-out", str(out)],
        capture_output=True,
        text=True,
        env={**os.environ, **ONE_THREAD},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "report.json").read_text())
    assert [cell["loop"] for cell in report["cells"]] == ["sglang", "photon"]
    assert all(cell["figures"][name] > 0 for cell in report["cells"] for name in FIGURES)
    assert all(cell["idle_pct"] is None for cell in report["cells"])
    assert list(report["equal"].values()) == [[4, 4]]
    text = (out / "report.md").read_text()
    assert text.strip() in done.stdout
    assert "loop photon" in (out / "round-1-photon" / "server.log").read_text()
    assert "loop photon" not in (out / "round-1-sglang" / "server.log").read_text()
