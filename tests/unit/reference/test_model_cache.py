"""The cache of made models: whole or absent, made once, damaged ones replaced."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sglang_photon.errors import UsageError
from sglang_photon.reference.models import cache as cache_module
from sglang_photon.reference.models.cache import ModelCache, default_root
from sglang_photon.reference.models.integrity import fault


class Recipe:
    """A build function that counts how often it ran."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, target: Path, scratch: Path) -> None:
        self.runs += 1
        (scratch / "download").write_bytes(b"raw")
        (target / "weights").write_bytes(b"weights" * 100)
        (target / "weights").chmod(0o600)
        (target / "config.json").write_text("{}")


def entries(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir() if not p.name.endswith(".lock"))


def test_a_model_is_made_once_and_completely(tmp_path: Path) -> None:
    recipe, said = Recipe(), list[str]()
    cache = ModelCache(root=tmp_path / "deep" / "cache", progress=said.append)
    first = cache.folder("m", label="demo:m", build=recipe)
    assert cache.folder("m", label="demo:m", build=recipe) == first
    assert recipe.runs == 1
    assert fault(first) is None
    assert sorted(p.name for p in first.iterdir()) == ["config.json", "manifest.json", "weights"]
    assert entries(cache.root) == ["m"]
    assert (first / "weights").stat().st_mode & 0o777 == first.stat().st_mode & 0o666
    assert said == []


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("weights", b"weights", "weights has 7 bytes, not 700"),
        ("weights", b"WEIGHTS" * 100, "the content of weights was changed"),
        ("weights", None, "weights cannot be read"),
        ("manifest.json", b"", "manifest.json is unreadable"),
        ("manifest.json", None, "manifest.json is missing"),
    ],
)
def test_a_damaged_model_is_made_again(
    tmp_path: Path, name: str, content: bytes | None, text: str
) -> None:
    recipe, said = Recipe(), list[str]()
    cache = ModelCache(root=tmp_path, progress=said.append)
    path = cache.folder("m", label="demo:m", build=recipe) / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert fault(cache.folder("m", label="demo:m", build=recipe)) is None
    assert recipe.runs == 2
    assert len(said) == 1
    assert text in said[0]
    assert "making it again" in said[0]
    assert entries(tmp_path) == ["m"]


def test_a_failed_making_leaves_nothing(tmp_path: Path) -> None:
    def fails(target: Path, scratch: Path) -> None:
        (target / "weights").write_bytes(b"half")
        raise UsageError("no network", "Find one")

    cache = ModelCache(root=tmp_path)
    with pytest.raises(UsageError, match="no network"):
        cache.folder("m", label="demo:m", build=fails)
    assert entries(tmp_path) == []


def test_a_killed_making_is_cleared_away_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os, pathlib\n"
        "from sglang_photon.reference.models.cache import ModelCache\n"
        "def build(target, scratch):\n"
        "    (target / 'weights').write_bytes(b'half')\n"
        "    os._exit(9)\n"
        f"ModelCache(root=pathlib.Path({str(tmp_path)!r})).folder('m', label='m', build=build)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert len(entries(tmp_path)) == 1
    recipe = Recipe()
    assert fault(ModelCache(root=tmp_path).folder("m", label="demo:m", build=recipe)) is None
    assert entries(tmp_path) == ["m"]
    assert recipe.runs == 1


def test_starts_at_the_same_time_make_it_once(tmp_path: Path) -> None:
    recipe, waiting = Recipe(), threading.Event()
    said: list[str] = []

    def build(target: Path, scratch: Path) -> None:
        assert waiting.wait(20)  # the other start stands at the lock
        recipe(target, scratch)

    def hears(line: str) -> None:
        said.append(line)
        waiting.set()

    folders: list[Path] = []

    def start() -> None:
        cache = ModelCache(root=tmp_path, progress=hears)
        folders.append(cache.folder("m", label="demo:m", build=build))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert folders == [tmp_path / "m"] * 2
    assert recipe.runs == 1
    assert said == ["another start is making demo:m; waiting for it"]


def test_a_start_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from filelock import FileLock

    monkeypatch.setattr(cache_module, "LOCK_WAIT_S", 0.0)
    with FileLock(tmp_path / ".m.lock"), pytest.raises(UsageError, match="has held") as caught:
        ModelCache(root=tmp_path, progress=lambda line: None).folder(
            "m", label="demo:m", build=Recipe()
        )
    assert "SGLANG_PHOTON_CACHE" in caught.value.remedy


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    roots = [file, file / "below", Path("/proc/photon")]
    if os.geteuid() != 0:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o555)
        roots.append(locked)
    for root in roots:
        with pytest.raises(UsageError, match="cannot be written") as caught:
            ModelCache(root=root).folder("m", label="demo:m", build=Recipe())
        assert str(root) in caught.value.problem
        assert "SGLANG_PHOTON_CACHE" in caught.value.remedy


def test_using_a_finished_model_writes_nothing(tmp_path: Path) -> None:
    ModelCache(root=tmp_path).folder("m", label="demo:m", build=Recipe())
    (tmp_path / ".m.lock").unlink()
    before = tmp_path.stat().st_mtime_ns
    ModelCache(root=tmp_path).folder("m", label="demo:m", build=Recipe())
    assert tmp_path.stat().st_mtime_ns == before


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("SGLANG_PHOTON_CACHE", raising=False)
    assert default_root() == Path("/home/ada/.cache/sglang-photon")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_root() == Path("/xdg/sglang-photon")
    monkeypatch.setenv("SGLANG_PHOTON_CACHE", "~/models")
    assert default_root() == Path("/home/ada/models")
