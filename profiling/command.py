"""`photon profile ...`: one word for each thing."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from sglang_photon.errors import PhotonError, UsageError, report
from sglang_photon.profiling.folder import Recording
from sglang_photon.profiling.phases import activity, scheduler_thread, shares
from sglang_photon.profiling.targets import ROLES, find_server, list_servers

USAGE = """\
usage: photon profile COMMAND [arguments]

  list      servers on this machine and their processes
  record    stacks and steps of a running server, into a folder with a report
  verdict   are there bubbles, and who makes them; exit code 0 no, 2 yes, 3 cannot tell
  compare   two recordings, before and after
  timeline  a recording as a trace for Perfetto or Chrome
  report    make a recording's report.html again
  gpu       what the GPU's own counters say, and what they cannot say

Each command explains itself with --help.
"""


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    words = list(argv)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if words else 2
    name, rest = words[0], words[1:]
    try:
        if name not in COMMANDS:
            raise UsageError(
                f"There is no command `photon profile {name}`", f"Choose: {', '.join(COMMANDS)}"
            )
        return COMMANDS[name](rest)
    except PhotonError as error:
        return report(error)


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    """Which server, and how to record it: shared by `record` and `verdict`."""
    which = parser.add_argument_group("which server (the only one running, if nothing is given)")
    which.add_argument("--port", type=int, help="the server that listens there")
    which.add_argument("--pid", type=int, help="one of its processes, or any Python process")
    how = parser.add_argument_group("how")
    how.add_argument("--seconds", type=float, default=10.0, help="for how long (10)")
    how.add_argument("--rate", type=int, default=100, help="stacks per second (100)")
    how.add_argument(
        "--role",
        nargs="+",
        choices=(*ROLES, "all"),
        default=["scheduler", "process"],
        help="whose stacks (the schedulers')",
    )
    how.add_argument("--native", action="store_true", help="frames of compiled code too; slower")
    how.add_argument("--gil", action="store_true", help="only threads that hold the GIL")
    how.add_argument("--no-idle", action="store_true", help="leave out threads that wait")
    how.add_argument(
        "--in-process",
        action="store_true",
        help="without the right to attach: the scheduler samples itself, biased by the GIL",
    )
    how.add_argument("--output", type=Path, metavar="FOLDER", help="new folder for the recording")


def record_from(
    options: argparse.Namespace, *, keep: bool, stacks_needed: bool = True
) -> Recording:
    """Record as the flags say, and write everything but the report.

    Args:
        options: of a parser with `add_target_flags`.
        keep: print where the recording is.
        stacks_needed: fail where no stacks can be taken.
    """
    from sglang_photon.profiling.outputs import write_outputs
    from sglang_photon.profiling.record import Options, record

    server = find_server(port=options.port, pid=options.pid)
    for pid, name in server.skipped:
        print(f"warning: process {pid} ({name}) is not Python and is left out", file=sys.stderr)
    wanted = Options(
        seconds=options.seconds,
        rate=options.rate,
        roles=options.role,
        native=options.native,
        gil=options.gil,
        idle=not options.no_idle,
        in_process=options.in_process,
        stacks_needed=stacks_needed,
    )
    folder = options.output or Path(tempfile.mkdtemp(prefix="photon-profile-"))
    try:
        recording = record(server, folder, wanted)
        write_outputs(recording)
    except BaseException:
        if options.output is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    span = recording.meta["span"]
    if keep:
        part = "interrupted, " if span["interrupted"] else ""
        print(f"{folder}: {part}{span['seconds']:.1f} s of {span['asked']:g} s asked")
    print(f"perturbation: {recording.meta['perturbation']['text']}")
    for seen in recording.parts:
        say_samples(seen.meta, recording)
        if seen.samples is not None and seen.samples.threads:
            thread = scheduler_thread(seen.samples)
            if thread is None:
                print(f"  {activity(seen.samples, seen.device).describe()}")
            else:
                phases, spots = shares(thread, seen.device)
                print(f"  phases: {phases}\n  hot spots: {spots}")
    return recording


def say_samples(entry: dict[str, object], recording: Recording) -> None:
    """One line about what was seen of a process."""
    samples = entry.get("samples")
    if "no stacks" in recording.meta["sampler"]:
        print(f"{entry['name']} (process {entry['pid']}): {recording.meta['sampler']}")
        return
    said = "no stacks: 100 % waiting" if samples == 0 else f"{samples} stacks"
    if entry.get("behind"):
        said += ", the rate was not kept: use a lower --rate"
    if entry.get("in_time") is False and "py-spy" in recording.meta["sampler"]:
        said += ", without priority: on busy cores, work is seen too rarely (run as root)"
    if entry.get("non_blocking") and "py-spy" in recording.meta["sampler"]:
        said += ", taken without stopping its threads"
    if "only threads with the GIL" in recording.meta["sampler"]:
        share = entry.get("gil_pct")
        said += ", GIL held " + ("unknown" if share is None else f"{share:.0f} % of the time")
    print(f"{entry['name']} (process {entry['pid']}): {said}")


def _list(argv: Sequence[str]) -> int:
    argparse.ArgumentParser(
        prog="photon profile list", description="Servers on this machine and their processes."
    ).parse_args(list(argv))
    servers = list_servers()
    if not servers:
        print("No SGLang server is running here.")
    for server in servers:
        print(f"server {server.root}, port {server.port}")
        for target in server.targets:
            python = "" if target.python is None else ".".join(map(str, target.python))
            print(f"  {target.name:24} {target.pid:8} Python {python}, {target.threads} threads")
    return 0


def _record(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="photon profile record",
        description="Stacks and step records of a running server, into a folder with a report.",
    )
    add_target_flags(parser)
    recording = record_from(parser.parse_args(list(argv)), keep=True)
    _write_report(recording)
    return 0


def _timeline(argv: Sequence[str]) -> int:
    from sglang_photon.profiling import timeline

    parser = argparse.ArgumentParser(
        prog="photon profile timeline",
        description="A recording as a trace for https://ui.perfetto.dev: CPU, lane, bubbles.",
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, metavar="FILE", help="FOLDER/timeline.json")
    options = parser.parse_args(list(argv))
    file = options.output or options.folder / "timeline.json"
    file.write_text(json.dumps(timeline.events(Recording.open(options.folder))))
    print(f"{file}: open it in https://ui.perfetto.dev")
    return 0


def _report(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="photon profile report", description="Make report.html of a recording again."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="compare with this one")
    parser.add_argument("--gpu", metavar="NAME", help="for the roofline, as in `photon roofline`")
    options = parser.parse_args(list(argv))
    before = None if options.before is None else Recording.open(options.before)
    _write_report(Recording.open(options.folder), before, gpu=options.gpu)
    return 0


def _write_report(
    recording: Recording, before: Recording | None = None, *, gpu: str | None = None
) -> None:
    from sglang_photon.profiling.report import write_report

    print(f"report: {write_report(recording, before=before, gpu=gpu)}")


def _module(name: str) -> Callable[[Sequence[str]], int]:
    """A command of its own module, imported when it is called."""

    def run(argv: Sequence[str]) -> int:
        module = importlib.import_module(f"sglang_photon.profiling.{name}")
        code: int = module.main(argv)
        return code

    return run


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "list": _list,
    "record": _record,
    "verdict": _module("verdict_command"),
    "compare": _module("compare"),
    "timeline": _timeline,
    "report": _report,
    "gpu": _module("gpu.command"),
}
