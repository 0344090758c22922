"""Part e: part d again under flashinfer, whose plan call runs on the host before every step."""

from __future__ import annotations

from importlib.util import find_spec

from sglang_photon.bench.gpu import served
from sglang_photon.bench.gpu.journal import Journal
from sglang_photon.bench.gpu.parts import CannotRunError
from sglang_photon.bench.gpu.settings import Settings

PART = "e"
NEEDED = ("sglang", "sgl_kernel", "flashinfer")


def run(settings: Settings, journal: Journal) -> None:
    """As part d.

    Raises:
        CannotRunError: there is no GPU, or SGLang is not fully installed.
    """
    absent = [package for package in NEEDED if find_spec(package) is None]
    if settings.rehearse or absent:
        raise CannotRunError(
            f"flashinfer needs a GPU and the packages {', '.join(NEEDED)}",
            "Run `pip install .` on a GPU machine, then this part again",
        )
    served.measure(settings, journal, part=PART, more=("--attention-backend", "flashinfer"))
