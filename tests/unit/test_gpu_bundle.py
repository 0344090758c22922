"""`make gpu-bundle`: what it takes along, and what it leaves out."""

from __future__ import annotations

import csv
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import gpu_bundle

ROOT = Path(gpu_bundle.__file__).resolve().parent.parent


def wheel(folder: Path) -> Path:
    """A wheel of two modules and one file too many."""
    path = folder / "thing-1.0-py3-none-any.whl"
    content = {
        "thing/__init__.py": "",
        "thing/kept.py": "VALUE = 7\n",
        "thing/test/large.py": "x = 0\n" * 1000,
        "thing-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n",
        "thing-1.0.dist-info/WHEEL": (
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
        "thing-1.0.dist-info/RECORD": "thing/test/large.py,,\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    return path


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    found = (line.partition(";")[0].strip() for line in lines if "==" in line and line[0] != "#")
    return dict(line.split("==") for line in found)


def test_a_slim_wheel_installs_and_lists_what_it_holds(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    gpu_bundle.slim(path, ["thing/test/"])
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        record = archive.read("thing-1.0.dist-info/RECORD").decode()
    assert "thing/test/large.py" not in names
    assert {row[0] for row in csv.reader(record.splitlines())} == names
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", str(site), str(path)], check=True)
    code = "import thing.kept; assert thing.kept.VALUE == 7"
    subprocess.run([sys.executable, "-c", code], cwd=site, check=True)


def test_too_much_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"1")
    (tmp_path / "large").write_bytes(b"1" * 2000)
    assert gpu_bundle.check_size(tmp_path, limit=2001) == 2001
    with pytest.raises(gpu_bundle.BundleError, match="the largest file is large"):
        gpu_bundle.check_size(tmp_path, limit=2000)


def test_what_travels_is_what_is_tested_here() -> None:
    here, along = pins("cpu.txt"), pins("gpu-bundle.txt")
    assert along
    assert {name: here.get(name) for name in along} == along


def test_nothing_is_dropped_that_is_not_there() -> None:
    """A renamed folder upstream would let the bundle grow unseen."""
    site = Path(next(path for path in sys.path if (Path(path) / "sglang").is_dir()))
    for beginning in gpu_bundle.DROPPED:
        parent, _, stem = beginning.rstrip("/").rpartition("/")
        assert list((site / parent).glob(f"{stem}*")), beginning
