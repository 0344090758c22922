"""Where demo models that are made on this machine are kept.

Making a model takes seconds and may need the network, so it is done once. Several servers may start
at the same moment, a start may be killed half-way, and a disk may lose a file. Hence:

    look (no lock, no write) -> whole? use it
        -> lock -> look again -> make it in a staging folder beside -> manifest -> rename -> use it

A reader sees a whole model or none. A damaged one is replaced, and a line says why. A finished
model in a read-only folder can be used, since looking writes nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sglang_photon.errors import UsageError
from sglang_photon.reference.models.integrity import fault, write_manifest

VARIABLE = "SGLANG_PHOTON_CACHE"
"""Environment variable that names the cache folder."""

LOCK_WAIT_S = 900.0
"""How long a start waits for another one that makes the same model, in seconds."""

Progress = Callable[[str], None]
"""Takes one line, without a line end, that says what is being done."""

Build = Callable[[Path, Path], None]
"""Makes a model: `build(target, scratch)` fills `target`; `scratch` is deleted afterwards."""


def to_stderr(line: str) -> None:
    """The default `Progress`: one line on standard error, at once."""
    print(f"photon: {line}", file=sys.stderr, flush=True)


def default_root() -> Path:
    """`$SGLANG_PHOTON_CACHE`, or `sglang-photon` in the user's XDG cache folder."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "sglang-photon"
    except RuntimeError as error:
        raise UsageError(
            "there is no home folder to keep demo models in",
            f"Set {VARIABLE} to a folder that can be written",
        ) from error


class ModelCache:
    """A folder of finished models, one sub-folder each.

    Args:
        root: the folder. None: `default_root()`.
        progress: told what is made, replaced or waited for.
    """

    def __init__(self, *, root: Path | None = None, progress: Progress = to_stderr) -> None:
        """Touch nothing yet: the folder is made when the first model is."""
        self.root = (root if root is not None else default_root()).absolute()
        self._progress = progress

    def folder(self, key: str, *, label: str, build: Build) -> Path:
        """The finished model `key`, made by `build` if it is missing or damaged.

        Args:
            key: a file name that changes whenever the content would.
            label: what people call the model, for the progress lines.
            build: see `Build`. What it raises as `UsageError` passes through.

        Raises:
            UsageError: the cache folder cannot be written, or another start holds it for too long.
        """
        final = self.root / key
        if final.is_dir() and fault(final) is None:
            return final
        with self._refuse_unwritable(), self._locked(key, label):
            # Another start may have finished it while this one waited.
            damage = fault(final) if final.is_dir() else None
            if damage is None and final.is_dir():
                return final
            if damage is not None:
                self._progress(f"the cached {label} is damaged ({damage}); making it again")
            self._make(final, build)
        return final

    def _make(self, final: Path, build: Build) -> None:
        prefix = f".{final.name}.making-"
        for leftover in self.root.glob(
            f"{prefix}*"
        ):  # of a start that was killed: the lock is ours
            shutil.rmtree(leftover, ignore_errors=True)
        stage = Path(tempfile.mkdtemp(prefix=prefix, dir=self.root))
        try:
            target, scratch = stage / "model", stage / "scratch"
            target.mkdir()
            scratch.mkdir()
            build(target, scratch)
            for path in target.iterdir():
                # safetensors keeps its file from everybody else; a cache may be shared.
                path.chmod(target.stat().st_mode & 0o666)
            write_manifest(target)
            if final.exists():
                # Moved, not emptied: a running server may still map the old weights.
                final.rename(stage / "replaced")
            target.rename(final)
        finally:
            shutil.rmtree(stage, ignore_errors=True)

    @contextmanager
    def _locked(self, key: str, label: str) -> Iterator[None]:
        from filelock import FileLock, Timeout

        self.root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.root / f".{key}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            self._progress(f"another start is making {label}; waiting for it")
            try:
                lock.acquire(timeout=LOCK_WAIT_S, poll_interval=0.2)
            except Timeout as error:
                raise UsageError(
                    f"another process has held {lock.lock_file} for {LOCK_WAIT_S:.0f} seconds",
                    f"Stop that process, or set {VARIABLE} to another folder",
                ) from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _refuse_unwritable(self) -> Iterator[None]:
        # safetensors reports a full disk by an exception of its own that is no OSError.
        from safetensors import SafetensorError

        try:
            yield
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(
                f"the cache folder {self.root} cannot be written ({reason})",
                f"Set {VARIABLE} to a folder that can be written and has room",
            ) from error
