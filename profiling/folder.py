"""A recording on disk: one folder that explains itself.

meta.json                 when, what, how; the machine, the server, the perturbation
NAME.trace.json           stacks in time order, as py-spy wrote them
NAME.stacks.txt           collapsed stacks, a count for each millisecond
NAME.speedscope.json      for https://www.speedscope.app
NAME.flame.svg            a flame graph
NAME.steps.npy            step records of a scheduler
timeline.json             all of it on one time line, for https://ui.perfetto.dev
report.html               for people
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sglang_photon.errors import UsageError
from sglang_photon.observe.reader import Records
from sglang_photon.profiling import samples as stacks
from sglang_photon.profiling.phases import Device
from sglang_photon.profiling.samples import Samples

META = "meta.json"
VERSION = 1


@dataclass(frozen=True)
class Part:
    """What was recorded of one process.

    Attributes:
        folder: where.
        meta: its entry in `meta.json`.
    """

    folder: Path
    meta: dict[str, Any]

    @property
    def name(self) -> str:
        """Of the process: its role, and more where needed."""
        return str(self.meta["name"])

    @property
    def role(self) -> str:
        """What the process does in the server."""
        return str(self.meta["role"])

    @functools.cached_property
    def samples(self) -> Samples | None:
        """Its stacks; None where none were taken."""
        path = self.folder / f"{self.name}.trace.json"
        if not path.exists():
            return None
        return stacks.load(path, offset=self.meta["offset"])

    @functools.cached_property
    def steps(self) -> Records | None:
        """Its step records; None where it keeps none."""
        path = self.folder / f"{self.name}.steps.npy"
        return np.load(path, allow_pickle=False) if path.exists() else None

    @property
    def facts(self) -> dict[str, Any]:
        """What the scheduler says about itself."""
        return dict(self.meta.get("facts", {}))

    @property
    def reasons(self) -> list[str]:
        """Sentences that its step records refer to by number, from 1."""
        return list(self.meta.get("reasons", []))

    @property
    def device(self) -> Device:
        """What its forwards run on."""
        lane = self.facts.get("lane")
        return Device(
            on_cpu=self.facts.get("device", "cpu" if lane in ("inline", "thread") else "") == "cpu",
            simulated=lane == "sim",
        )


@dataclass(frozen=True)
class Recording:
    """One folder.

    Attributes:
        path: where it is.
        meta: `meta.json`.
    """

    path: Path
    meta: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> Recording:
        """Read a folder.

        Raises:
            UsageError: it is no recording, or one of another version.
        """
        try:
            meta = json.loads((path / META).read_text())
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{path} is no recording ({error})", "Name a folder of `photon profile record`"
            ) from error
        if meta.get("version") != VERSION:
            raise UsageError(
                f"{path} is a recording of version {meta.get('version')}", "Record again"
            )
        return cls(path, meta)

    @functools.cached_property
    def parts(self) -> list[Part]:
        """Its processes."""
        return [Part(self.path, meta) for meta in self.meta["parts"]]

    @property
    def scheduler(self) -> Part | None:
        """The first rank's scheduler."""
        return next((part for part in self.parts if part.role == "scheduler"), None)

    @property
    def span(self) -> tuple[float, float]:
        """From when to when, in seconds of `time.perf_counter`."""
        return self.meta["span"]["start"], self.meta["span"]["end"]


def write_meta(path: Path, meta: dict[str, Any]) -> Recording:
    """Write `meta.json` and return the recording."""
    (path / META).write_text(json.dumps({"version": VERSION, **meta}, indent=1) + "\n")
    return Recording.open(path)
