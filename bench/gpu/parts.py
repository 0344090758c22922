"""The parts of the check: what each is, and how long it may take."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from sglang_photon.bench.gpu.journal import Journal
from sglang_photon.bench.gpu.settings import Settings
from sglang_photon.errors import PhotonError

CANNOT = 3
"""Exit code of a part that said why it cannot run here."""


class CannotRunError(PhotonError):
    """A part that has nothing to run on; the others go on."""

    exit_code = CANNOT


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part.

    Attributes:
        letter: as `--parts` names it.
        title: as the report names it.
        module: of this package; its `run` does it.
        limit_s: after so many seconds it is ended.
    """

    letter: str
    title: str
    module: str
    limit_s: float

    def run(self, settings: Settings, journal: Journal) -> None:
        """Do it, in this process."""
        importlib.import_module(f"sglang_photon.bench.gpu.{self.module}").run(settings, journal)


PARTS = {
    part.letter: part
    for part in (
        Part(letter="a", title="The machine", module="facts", limit_s=60),
        Part(letter="b", title="Lanes and slots, without SGLang", module="lanes", limit_s=120),
        Part(letter="c", title="CUDA IPC between two processes", module="handles", limit_s=60),
        Part(letter="d", title="SGLang, three loops", module="served", limit_s=270),
        Part(letter="f", title="Where the scheduler's thread is", module="sampled", limit_s=90),
        Part(letter="e", title="SGLang under flashinfer", module="planned", limit_s=270),
    )
}
"""In the order in which they run: what is cheap and always possible comes first."""
