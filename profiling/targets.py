"""Which processes to look at: a server's, by their roles.

SGLang gives its processes titles (`sglang::scheduler_TP0`, `sglang::detokenizer`); the process that
started them is the HTTP server with the tokenizer manager. A process id that belongs to no server
is taken as it is, with the Python processes below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from sglang_photon.errors import PhotonError, UsageError
from sglang_photon.observe.reader import NoStepsError, StepReader

TITLE = "sglang::"
ROLES = ("scheduler", "tokenizer", "detokenizer", "controller", "process")
PYTHON = re.compile(r"(?:libpython|/python)(\d+)\.(\d+)")


class NoServerError(PhotonError):
    """No server, several, or not the one that was meant."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Target:
    """One process.

    Attributes:
        pid: its number here.
        role: one of `ROLES`.
        name: for file names and people: the role, and the rank where there is one.
        python: its Python's version; None when it runs none.
        threads: how many threads it has.
    """

    pid: int
    role: str
    name: str
    python: tuple[int, int] | None
    threads: int


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server's processes.

    Attributes:
        root: its main process.
        targets: all its Python processes.
        skipped: processes below it that are not Python: pid and name.
        port: where it listens; None for a process that is no server.
    """

    root: int
    targets: tuple[Target, ...]
    skipped: tuple[tuple[int, str], ...]
    port: int | None

    def chosen(self, roles: Sequence[str]) -> tuple[Target, ...]:
        """The processes of some roles.

        Raises:
            UsageError: there is none of them.
        """
        found = tuple(t for t in self.targets if t.role in roles or "all" in roles)
        if not found:
            have = sorted({target.role for target in self.targets})
            raise UsageError(
                f"Process {self.root} has no {' or '.join(roles)}",
                f"Choose with --role from: {', '.join(have) or 'none, it runs no Python'}",
            )
        return found


def find_server(*, port: int | None, pid: int | None) -> Server:
    """The server that is meant.

    Args:
        port: it listens there.
        pid: one of its processes, or any Python process.

    Raises:
        NoServerError: none is found, or several are and none was named.
    """
    if pid is not None:
        try:
            return describe(_root(psutil.Process(pid)))
        except psutil.NoSuchProcess:
            raise NoServerError(
                f"There is no process {pid}", "See `photon profile list` for servers"
            ) from None
    servers = list_servers()
    if port is not None:
        servers = [server for server in servers if server.port == port]
    if len(servers) == 1:
        return servers[0]
    where = f" on port {port}" if port is not None else ""
    if not servers:
        raise NoServerError(
            f"No SGLang server is running{where}",
            "Start one, or name a process with --pid",
        )
    list_ = ", ".join(f"--pid {server.root} (port {server.port})" for server in servers)
    raise NoServerError(f"{len(servers)} servers are running{where}", f"Choose one: {list_}")


def list_servers() -> list[Server]:
    """Every server of this machine that this user may see."""
    roots: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if _title(process).startswith(TITLE):
                root = _root(process)
                roots[root.pid] = root
        except psutil.Error:
            continue
    return [describe(root) for root in roots.values()]


def describe(root: psutil.Process) -> Server:
    """A process and everything below it, with roles."""
    family = [root, *root.children(recursive=True)]
    is_server = any(_title(process).startswith(TITLE) for process in family)
    targets: list[Target] = []
    skipped: list[tuple[int, str]] = []
    for process in family:
        try:
            target = _target(process, main=is_server and process.pid == root.pid)
            if target.python is None:
                skipped.append((process.pid, process.name()))
            elif not _is_helper(process):
                targets.append(target)
        except psutil.Error:
            continue
    return Server(
        root=root.pid,
        targets=tuple(_with_unique_names(targets)),
        skipped=tuple(skipped),
        port=_port(root) if is_server else None,
    )


def python_of(pid: int, *, proc: Path = Path("/proc")) -> tuple[int, int] | None:
    """The version of the Python that a process runs; None when it runs none."""
    try:
        files = [str((proc / str(pid) / "exe").readlink())]
        files += (proc / str(pid) / "maps").read_text().splitlines()
    except OSError:
        return None
    versions = [match for line in files if (match := PYTHON.search(line))]
    return (int(versions[0][1]), int(versions[0][2])) if versions else None


def _target(process: psutil.Process, *, main: bool) -> Target:
    title = _title(process)
    role = "tokenizer" if main else "process"
    name = ""
    if title.startswith(TITLE):
        word = title.removeprefix(TITLE).split()[0]
        kind, _, name = word.partition(":")
        if kind.startswith("scheduler"):
            role, name = "scheduler", kind.removeprefix("scheduler")
        elif kind.startswith("detokenizer"):
            role, name = "detokenizer", kind.removeprefix("detokenizer")
        elif kind.startswith("tokenizer"):
            role = "tokenizer"
        else:
            role = "controller"
    elif not main and _keeps_steps(process.pid):
        role = "scheduler"
    return Target(
        pid=process.pid,
        role=role,
        name=role + re.sub(r"\W+", "-", f"-{name}" if name else ""),
        python=python_of(process.pid),
        threads=process.num_threads(),
    )


def _with_unique_names(targets: Iterable[Target]) -> list[Target]:
    found = list(targets)
    names = [target.name for target in found]
    return [
        target
        if names.count(target.name) == 1
        else Target(
            pid=target.pid,
            role=target.role,
            name=f"{target.name}-{target.pid}",
            python=target.python,
            threads=target.threads,
        )
        for target in found
    ]


def _keeps_steps(pid: int) -> bool:
    try:
        StepReader.of_process(pid)
    except NoStepsError:
        return False
    return True


def _root(process: psutil.Process) -> psutil.Process:
    """The main process of the server that a process belongs to; itself where there is no server."""
    if not _title(process).startswith(TITLE):
        return process
    for parent in process.parents():
        if not _title(parent).startswith(TITLE):
            return parent
    return process


def _title(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


def _is_helper(process: psutil.Process) -> bool:
    """Python's own processes for shared memory and semaphores."""
    return "multiprocessing.resource_tracker" in _title(process)


def _port(root: psutil.Process) -> int | None:
    """The port of the server's HTTP: named by its arguments, else the first that it listens on."""
    words = root.cmdline()
    for index, word in enumerate(words):
        if word == "--port" and index + 1 < len(words) and words[index + 1].isdigit():
            return int(words[index + 1])
        if word.startswith("--port=") and word[7:].isdigit():
            return int(word[7:])
    try:
        listening = [c for c in root.net_connections(kind="tcp") if c.status == "LISTEN"]
    except psutil.Error:
        return None
    return min((c.laddr.port for c in listening), default=None)
