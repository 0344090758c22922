"""`python3 check.py [arguments of photon bench gpu]`: the GPU check, from the folder it lies in.

Needs a Python 3.12 with torch, torchvision, triton and transformers, and no network: the wheels
beside this file are installed into a temporary folder, which is removed afterwards. Figures are
printed, and appended to gpu_check.jsonl in the current folder; a second run goes on from there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
INSTALL = ("install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--no-warn-conflicts")


def main() -> int:
    """Install and run; the check's exit code."""
    wheels = sorted(map(str, (HERE / "wheels").glob("*.whl")))
    with tempfile.TemporaryDirectory(prefix="photon-gpu-site-") as site:
        pip = [sys.executable, "-m", "pip", *INSTALL, "--target", site, *wheels]
        code = subprocess.run(pip, check=False).returncode
        if code:
            return code
        path = os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))
        check = [sys.executable, "-m", "sglang_photon.bench.gpu_check", *sys.argv[1:]]
        return subprocess.run(check, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
