"""Entry point of SGLang's plugin framework: `SGLANG_PHOTON=1 sglang serve ...`.

SGLang calls `load` in its main process and in every process that it starts. Installing the package
changes nothing: without the switch this returns at once. With it, an installation that fails ends
the process, since SGLang would otherwise only log the failure and serve unpatched.
"""

from __future__ import annotations

import os

from sglang_photon.config import SWITCH, PhotonConfig, truth
from sglang_photon.errors import PhotonError, UsageError, refuse


def load() -> None:
    """Install Photon's scheduler where `SGLANG_PHOTON` asks for it, or end the process."""
    try:
        if not truth(os.environ, SWITCH):
            return
        config = PhotonConfig.from_environment(os.environ)
        if config.stock:
            raise UsageError(
                f"{SWITCH}=1 asks for Photon, SGLANG_PHOTON_LOOP={config.loop} for stock SGLang",
                f"Unset {SWITCH} (for the blocking loop also pass --disable-overlap-schedule)",
            )
        _install(config)
    except PhotonError as error:
        refuse(error)


def _install(config: PhotonConfig) -> None:
    try:
        from sglang_photon.upstream import install

        install.install(config)
    except PhotonError:
        raise
    except Exception as error:
        # Whatever it is, SGLang would log it and serve unpatched.
        raise PhotonError(
            f"Photon cannot be installed into this SGLang ({type(error).__name__}: {error})",
            "Run `photon doctor`, which names what is missing",
        ) from error
