"""The start-up hook: reaches child processes, stays out of the way of all others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sglang_photon import reference

REPORT = (
    "import sys; print([type(f).__name__ for f in sys.meta_path][0],"
    " *[m for m in ('torch', 'sglang', 'sglang_photon') if m in sys.modules])"
)
SPAWN = f"""
import multiprocessing

def child():
    {REPORT}

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
"""


def python(code: str, *path: Path, **environ: str) -> str:
    """What a fresh Python prints that has the site folder, then `path`, on PYTHONPATH."""
    clean = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    clean["PYTHONPATH"] = os.pathsep.join(map(str, [reference.SITE_FOLDER, *path]))
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout.strip()


def test_wanted_installs_without_importing_torch() -> None:
    for switch in ("SGLANG_USE_CPU_ENGINE", "SGLANG_PHOTON_REFERENCE_OPS"):
        assert python(REPORT, **{switch: "1"}) == "ReferenceFinder sglang_photon"


def test_unwanted_imports_nothing() -> None:
    assert "ReferenceFinder" not in python(REPORT)
    assert "sglang_photon" not in python(REPORT, SGLANG_USE_CPU_ENGINE="0")


def test_spawned_processes_inherit_it(tmp_path: Path) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(SPAWN)
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    assert python(code, SGLANG_USE_CPU_ENGINE="1") == "ReferenceFinder sglang_photon"


def test_a_python_without_the_package_is_not_disturbed(tmp_path: Path) -> None:
    (tmp_path / "sglang_photon.py").write_text("raise ImportError('not here')\n")
    assert python("print('fine')", tmp_path, SGLANG_USE_CPU_ENGINE="1") == "fine"


def test_the_hidden_sitecustomize_runs_once(tmp_path: Path) -> None:
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text("import sys\nsys.hidden_runs = getattr(sys, 'hidden_runs', 0) + 1\n")
    code = "import sys, sitecustomize; print(sys.hidden_runs, sitecustomize.__file__)"
    expected = f"1 {hidden}"
    assert python(code, tmp_path) == expected
    assert python(code, tmp_path, reference.SITE_FOLDER, SGLANG_USE_CPU_ENGINE="1") == expected


def test_the_folder_is_no_package() -> None:
    assert sorted(path.name for path in reference.SITE_FOLDER.glob("*.py")) == ["sitecustomize.py"]
