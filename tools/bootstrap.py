"""Make `.venv`, the environment of this checkout, or bring it up to date.

The problem: the two commands of the README must work in a fresh clone on a machine with nothing
but Python and make, must not fetch gigabytes of CUDA packages where no GPU could use them, must
repair what an interrupted run left, and must cost nothing when all is in place.

    python3 tools/bootstrap.py [--cuda {auto,0,1}] [--only-this-python]

Two kinds of environment:

    locked     no GPU: requirements/cpu.txt, a CPU build of torch first
    declared   with a GPU, or asked for with --cuda 1: what pyproject.toml declares

`.venv/photon-setup.json` records what was installed from what. It says "installing" until the last
step is done, so an interrupted run is seen and made again from scratch; when a requirement file
has changed since, the environment is updated in place.

Standard library only, and syntax that Python 3.8 reads, so that an old Python gets a sentence
instead of a syntax error.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STATE = VENV / "photon-setup.json"
LOG = VENV / "setup.log"
REQUIREMENTS = ROOT / "requirements"

# Every compiled package of the lock has wheels for these.
OLDEST, NEWEST = (3, 11), (3, 14)
SUPPORTED = "3.11 to 3.14"

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
HEARTBEAT_S = 20.0
NOISE = ("WARNING: Location", "WARNING: Retrying", "[notice]")
# Settings that would send packages somewhere else than into .venv.
STRAY = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONHOME", "PYTHONPATH")


class SetupError(Exception):
    """One line: what is wrong, and what to do."""


def say(text: str) -> None:
    """One line of progress."""
    print(f"setup: {text}", flush=True)


def supported(version: Sequence[int]) -> bool:
    """Whether the lock has wheels for this (major, minor)."""
    return OLDEST <= tuple(version[:2]) <= NEWEST


def probe(executable: str) -> tuple[int, int] | None:
    """The (major, minor) of an interpreter that can make environments, None if it cannot."""
    code = "import ensurepip, sys, venv; print(*sys.version_info[:2])"
    try:
        command = [executable, "-I", "-c", code]
        answer = subprocess.run(command, capture_output=True, check=True, timeout=20).stdout
        major, minor = answer.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def candidates(only_this: bool) -> Iterator[str]:
    """Interpreters to try, the running one first."""
    yield sys.executable
    if not only_this:
        for minor in range(OLDEST[1], NEWEST[1] + 1):
            path = shutil.which(f"python3.{minor}")
            if path:
                yield path


def choose_python(only_this: bool) -> tuple[str, tuple[int, int]]:
    """The interpreter that `.venv` is made with.

    Raises:
        SetupError: no supported interpreter, or none that can make environments.
    """
    for path in candidates(only_this):
        version = probe(path)
        if version is not None and supported(version):
            return path, version
    running = "{}.{}".format(*sys.version_info)
    if supported(sys.version_info[:2]):
        raise SetupError(
            f"Python {running} ({sys.executable}) comes without venv and ensurepip. Install them "
            f"(Debian, Ubuntu: apt install python{running}-venv) and run this again"
        )
    raise SetupError(
        f"Python {running} ({sys.executable}) is unsupported: sglang-photon runs on Python "
        f"{SUPPORTED}. Install one of these, or name it: make setup PYTHON=python3.11"
    )


def gpu_present() -> bool:
    """Whether a CUDA driver and a device are there (nvidia-smi would take a second to say)."""
    if not any(re.fullmatch(r"nvidia\d+|dxg", path.name) for path in Path("/dev").iterdir()):
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def digest(kind: str) -> str:
    """Identifies everything that the content of `.venv` follows from."""
    sha = hashlib.sha256(f"{kind}\0{ROOT}\0".encode())
    for path in (ROOT / "pyproject.toml", *sorted(REQUIREMENTS.glob("*.txt"))):
        sha.update(path.name.encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()


def read_state() -> dict[str, Any]:
    """What the last run wrote; empty when there is nothing to rely on."""
    try:
        state = json.loads(STATE.read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(**state: Any) -> None:
    """Replace the record in one move."""
    draft = STATE.with_suffix(".new")
    draft.write_text(json.dumps(state, indent=1) + "\n")
    draft.replace(STATE)


def wanted_kind(cuda: str, state: dict[str, Any]) -> str:
    """Locked or declared. An environment asked for with --cuda stays until asked otherwise."""
    if cuda != "auto":
        return "declared" if cuda == "1" else "locked"
    if state.get("asked"):
        return str(state.get("kind"))
    return "declared" if gpu_present() else "locked"


def run(command: Sequence[str], *, lock: int) -> bool:
    """Run a command, its output into the log, with a sign of life now and then.

    The lock's descriptor is handed down: should this process be killed, the next run waits for the
    orphan to end before it touches `.venv`.
    """
    environment = {k: v for k, v in os.environ.items() if k not in STRAY}
    environment.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_ROOT_USER_ACTION="ignore")
    start = time.monotonic()
    with LOG.open("a", encoding="utf-8", errors="replace") as log:
        print("$", *command, file=log, flush=True)
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=str(ROOT),
            pass_fds=(lock,),
        )
        try:
            while True:
                try:
                    return child.wait(timeout=HEARTBEAT_S) == 0
                except subprocess.TimeoutExpired:
                    last = (interesting_lines() or [""])[-1]
                    say(f"  {time.monotonic() - start:3.0f} s: {last[:90]}")
        except BaseException:
            child.terminate()
            child.wait()
            raise


def pip(*arguments: str, lock: int) -> bool:
    """`pip install` into `.venv`; whether it went well."""
    base = [str(PYTHON), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    return run([*base, *arguments], lock=lock)


def interesting_lines() -> list[str]:
    """The log without blank lines and without what pip says on every machine."""
    lines = LOG.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith(NOISE)]


def failed(what: str) -> SetupError:
    """Show pip's last errors, and return the one line to stop with."""
    lines = interesting_lines()
    errors = [line for line in lines if line.startswith("ERROR:")] or lines[-3:]
    for line in errors[-3:]:
        say("  " + line[:300])
    return SetupError(
        f"{what} could not be installed. The whole output is in {LOG}; run the same command again "
        "once the cause is gone"
    )


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Say what was done and how long it took."""
    start = time.monotonic()
    yield
    say(f"{what:<48} {time.monotonic() - start:4.0f} s")


def pin(package: str) -> str:
    """The version that requirements/cpu.txt gives a package."""
    for line in (REQUIREMENTS / "cpu.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        if name == package:
            return version.split()[0]
    raise SetupError(f"requirements/cpu.txt has no line for {package}. Put it back")


def cuda_build(requirement: str, lock: int) -> bool:
    """Whether pip's own choice for this pin is a wheel that asks for CUDA packages."""
    report = VENV / "look.json"
    look = ("--dry-run", "--no-deps", "--ignore-installed", "--report", str(report))
    if not pip(*look, requirement, lock=lock):
        return True
    (choice,) = json.loads(report.read_text())["install"]
    requires = choice["metadata"].get("requires_dist", [])
    return any(r.startswith(("nvidia-", "cuda-")) and "extra ==" not in r for r in requires)


def install_cpu_torch(lock: int) -> None:
    """A CPU build of torch: pip's sources first, then PyTorch's index, never a CUDA build.

    CPU builds carry the local version `+cpu`; asking for it by name keeps pip from fetching the
    half gigabyte of the CUDA build only to look at it.

    Raises:
        SetupError: there is none for this Python within reach.
    """
    torch, vision = pin("torch"), pin("torchvision")
    plain, cpu = f"torch=={torch}", f"torch=={torch}+cpu"
    with step(f"torch {torch}, CPU build"):
        if pip("--no-deps", cpu, lock=lock):
            return
        say(f"pip's sources have no {cpu}, trying {CPU_INDEX}")
        index = ("--retries", "1", "--timeout", "20", "--index-url", CPU_INDEX)
        if pip("--no-deps", *index, cpu, f"torchvision=={vision}+cpu", lock=lock):
            return
        if not cuda_build(plain, lock) and pip("--no-deps", plain, lock=lock):
            return
        version = ".".join(map(str, probe(str(PYTHON)) or ()))
        raise SetupError(
            f"no CPU build of torch {torch} for Python {version} within reach (pip's sources, "
            f"{CPU_INDEX}; details in {LOG}). Point pip at one (PIP_FIND_LINKS=FOLDER make setup), "
            "or take the CUDA build and its packages, about 11 GB: make setup CUDA=1"
        )


def install_or_stop(what: str, *arguments: str, lock: int) -> None:
    """One step of the installation.

    Raises:
        SetupError: pip failed.
    """
    with step(what):
        if not pip(*arguments, lock=lock):
            raise failed(what)


def install(kind: str, lock: int) -> None:
    """Fill `.venv`: every step does nothing when it is already done.

    The requirement files are complete, so pip resolves nothing (--no-deps).
    """
    cpu, demo, dev = (f"--requirement={REQUIREMENTS / n}.txt" for n in ("cpu", "demo", "dev"))
    project = f"--editable={ROOT}"
    if kind == "locked":
        install_cpu_torch(lock)
        install_or_stop("the locked packages", "--no-deps", cpu, demo, dev, lock=lock)
        here = ("--no-deps", "--no-build-isolation", project)
        install_or_stop("sglang-photon, editable", *here, lock=lock)
    else:
        install_or_stop("packages for demo and tests", "--no-deps", demo, dev, lock=lock)
        install_or_stop("sglang-photon, SGLang and CUDA packages", project, lock=lock)


def stale_reason(state: dict[str, Any], kind: str, version: tuple[int, int] | None) -> str:
    """Why `.venv` must be made from scratch; empty when it can be kept and updated."""
    if not VENV.is_dir() or not PYTHON.exists():
        return "incomplete" if VENV.exists() or VENV.is_symlink() else "missing"
    if state.get("state") == "installing":
        return "left half-made by an earlier run"
    if state and state.get("kind") != kind:
        return f"of the other kind ({state.get('kind')})"
    if state and state.get("root") != str(ROOT):
        return f"made for another folder ({state.get('root')})"
    found = probe(str(PYTHON))
    if found is None or not supported(found):
        return "made by an unsupported or removed Python"
    if version is not None and found != version:
        return "made by Python {}.{}".format(*found)
    return ""


def make_venv(executable: str, lock: int) -> None:
    """Put an empty environment in the place of whatever is there."""
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(str(VENV))
    VENV.mkdir()
    write_state(state="installing")
    if not run([executable, "-m", "venv", str(VENV)], lock=lock):
        raise failed("an empty environment")


def up_to_date(state: dict[str, Any], kind: str, only_this: bool) -> bool:
    """Whether there is nothing to do."""
    same = state.get("state") == "ready" and state.get("digest") == digest(kind)
    asked_python = not only_this or state.get("python") == list(sys.version_info[:2])
    return bool(same and asked_python and PYTHON.exists())


def setup(cuda: str, only_this: bool, lock: int) -> None:
    """Bring `.venv` to what the checkout asks for."""
    start = time.monotonic()
    state = read_state()
    kind = wanted_kind(cuda, state)
    if up_to_date(state, kind, only_this):
        return
    asked_version = sys.version_info[:2] if only_this else None
    reason = stale_reason(state, kind, asked_version)
    if reason:
        executable, version = choose_python(only_this)
        found = "{}.{}".format(*version)
        say(f".venv is {reason}: making it with Python {found} ({executable})")
        make_venv(executable, lock)
    else:
        say("updating .venv")
        write_state(state="installing")
    install(kind, lock)
    write_state(
        state="ready",
        kind=kind,
        asked=cuda != "auto",
        root=str(ROOT),
        python=list(probe(str(PYTHON)) or ()),
        digest=digest(kind),
    )
    say(f"ready in {time.monotonic() - start:.0f} s")


def locked_run(cuda: str, only_this: bool) -> None:
    """Run `setup` while no other run does."""
    with Path(__file__).open("rb") as own_source:
        try:
            fcntl.flock(own_source, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another setup of this checkout is running, waiting for it")
            fcntl.flock(own_source, fcntl.LOCK_EX)
        setup(cuda, only_this, own_source.fileno())


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0 when `.venv` is ready."""
    parser = argparse.ArgumentParser(description="Make .venv, or bring it up to date.")
    parser.add_argument("--cuda", choices=["auto", "0", "1"], default="auto")
    parser.add_argument("--only-this-python", action="store_true")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        locked_run(options.cuda, options.only_this_python)
    except SetupError as error:
        print(f"setup: {error}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; the next run makes .venv again.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
