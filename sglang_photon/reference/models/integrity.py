"""Is this model folder whole? Answered before a server starts on it.

A truncated weight file or a missing tokenizer makes a model loader fail with a traceback, minutes
into a start, or makes a model that answers nonsense. Every folder that Photon makes therefore
carries `manifest.json`: the size in bytes and the SHA-256 of each of its files.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

MANIFEST = "manifest.json"
"""Name of the list of sizes and digests inside a model folder."""


def write_manifest(folder: Path) -> None:
    """List every file directly inside `folder` with its size and SHA-256, and sync all to disk.

    Call it last: a folder without a manifest counts as unfinished.

    Raises:
        OSError: the folder cannot be read or written.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    for path in files:
        _sync(path)
    listing = {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in files}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": listing}, indent=1) + "\n", encoding="utf-8")
    _sync(manifest)
    _sync(folder)


def fault(folder: Path) -> str | None:
    """What is wrong with a folder made by `write_manifest`; None when every byte is as written."""
    try:
        listing = json.loads((folder / MANIFEST).read_bytes())["files"]
        expected = {str(name): (int(e["bytes"]), str(e["sha256"])) for name, e in listing.items()}
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is unreadable"
    for name, (size, digest) in expected.items():
        path = folder / name
        try:
            found = path.stat().st_size
            if found != size:
                return f"{name} has {found} bytes, not {size}"
            if sha256(path) != digest:
                return f"the content of {name} was changed"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file's content, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Ask the disk for `path` (a file or a folder) itself, so that a power cut cannot empty it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
