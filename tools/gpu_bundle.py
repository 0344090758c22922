"""`make gpu-bundle`: one folder for a GPU machine without network, and nothing in it is too much.

    python tools/gpu_bundle.py [--out FOLDER]

The folder holds this package as a wheel, SGLang's wheel without what `bench/gpu_check.py` never
loads, the wheels of requirements/gpu-bundle.txt, and `check.py`, which installs them into a
temporary folder and runs the check. The machine brings Python 3.12, torch, torchvision, triton and
transformers. Carry the folder over, and there:

    python3 check.py

The last line printed here is the folder's path.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "requirements" / "gpu-bundle.txt"
STARTER = ROOT / "tools" / "gpu_bundle_check.py"
DEFAULT = ROOT / "build" / "gpu-bundle"
LIMIT = 60 << 20

PYTHON = "3.12"
# pip takes each of these for itself: a newer one does not include an older one.
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(39, 16, -1)),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
)
DROPPED = (
    "sglang/multimodal_gen/",
    "sglang/test/",
    # Compiled parts of SGLang's HTTP server, gRPC server, benchmark client and image loader.
    "sglang/srt/rust_extensions/_server.",
    "sglang/srt/rust_extensions/_grpc.",
    "sglang/srt/rust_extensions/_bench.",
    "sglang/srt/rust_extensions/_multimodal.",
)
"""Of SGLang's wheel: what the check never loads, by the beginning of its name."""


class BundleError(Exception):
    """One line: what is wrong, and what to do."""


def main(argv: Sequence[str]) -> int:
    """Make the folder; 0 when it is complete and small enough."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=DEFAULT, help="folder, made anew")
    options = parser.parse_args(list(argv))
    try:
        build(options.out)
    except BundleError as error:
        print(f"gpu-bundle: {error}", file=sys.stderr)
        return 1
    print(options.out.resolve())
    return 0


def build(out: Path) -> None:
    """Fill the folder.

    Raises:
        BundleError: a wheel cannot be had, or it is all too large.
    """
    shutil.rmtree(out, ignore_errors=True)
    wheels = out / "wheels"
    wheels.mkdir(parents=True)
    _download(wheels)
    (sglang,) = wheels.glob("sglang-*.whl")
    whole = sglang.stat().st_size
    slim(sglang, DROPPED)
    print(f"SGLang's wheel: {_mib(whole)} whole, {_mib(sglang.stat().st_size)} in the bundle")
    _own_wheel(wheels)
    shutil.copy(STARTER, out / "check.py")
    check_size(out, limit=LIMIT)


def slim(wheel: Path, dropped: Sequence[str]) -> None:
    """Take files out of a wheel, and out of its list of files.

    Args:
        wheel: rewritten in place, under its name.
        dropped: beginnings of the names that go.
    """
    draft = wheel.with_suffix(".draft")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as new:
        kept = [name for name in old.namelist() if not name.startswith(tuple(dropped))]
        record = next(name for name in kept if name.endswith(".dist-info/RECORD"))
        rows = io.StringIO()
        writer = csv.writer(rows, lineterminator="\n")
        for name in kept:
            if name == record or name.endswith("/"):
                continue
            content = old.read(name)
            new.writestr(old.getinfo(name), content, zipfile.ZIP_DEFLATED, 9)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            writer.writerow([name, f"sha256={digest.decode()}", len(content)])
        writer.writerow([record, "", ""])
        new.writestr(record, rows.getvalue())
    draft.replace(wheel)


def check_size(folder: Path, *, limit: int) -> int:
    """The bytes of a folder's files.

    Raises:
        BundleError: they are more than the limit.
    """
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    total = sum(sizes.values())
    if total > limit:
        largest = max(sizes, key=lambda path: sizes[path])
        raise BundleError(
            f"{_mib(total)} are more than {_mib(limit)}; the largest file is {largest.name}. "
            f"Drop something in {LIST.name} or in DROPPED"
        )
    print(f"{len(sizes)} files, {_mib(total)} of {_mib(limit)}")
    return total


def _download(wheels: Path) -> None:
    where = [flag for name in PLATFORMS for flag in ("--platform", name)]
    which = ("--python-version", PYTHON, "--implementation", "cp", "--only-binary=:all:")
    _pip("download", "--no-deps", *which, *where, "--dest", str(wheels), "-r", str(LIST))


def _own_wheel(wheels: Path) -> None:
    """Build this package's wheel from a copy: setuptools leaves its scratch where it builds."""
    with tempfile.TemporaryDirectory(prefix="photon-bundle-") as scratch:
        source = Path(scratch) / "source"
        skipped = shutil.ignore_patterns(
            ".*", "build", "dist", "__pycache__", "tests", "*.egg-info"
        )
        shutil.copytree(ROOT, source, symlinks=True, ignore=skipped)
        _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source))


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    if subprocess.run(command, check=False).returncode:
        raise BundleError(f"pip {arguments[0]} failed, see above. Is a package index in reach?")


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
