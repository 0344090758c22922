"""The version gate: exactly one SGLang release, decided without importing it."""

from __future__ import annotations

from importlib import metadata

from sglang_photon.errors import PhotonError

WANTED = "0.5.23"


def installed_version() -> str | None:
    """The installed SGLang's version, or None where it is not installed."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return None


def check_version(*, allow_other: bool = False) -> str:
    """Refuse any SGLang but the one whose internals this package was built against.

    Args:
        allow_other: accept another release (`--photon-allow-version`); signatures stay checked.

    Raises:
        PhotonError: SGLang is missing, or it is another release.
    """
    found = installed_version()
    if found is None:
        raise PhotonError("SGLang is not installed", f"Run: pip install sglang=={WANTED}")
    if found != WANTED and not allow_other:
        raise PhotonError(
            f"SGLang {found} is installed, this release of sglang-photon is built for {WANTED}",
            f"Run: pip install sglang=={WANTED}, or start with --photon-allow-version",
        )
    return found
