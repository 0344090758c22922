"""Whether SGLang's plugin framework would find ours, decided without importing SGLang."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from sglang_photon.errors import PhotonError

PLUGIN_GROUP = "sglang.srt.plugins"
PLUGIN_NAME = "photon"


def check_plugin_is_found(environ: Mapping[str, str]) -> None:
    """Refuse to start servers whose child processes would not load the plugin.

    Raises:
        PhotonError: the package has no metadata (a bare source folder on the path), or
            `SGLANG_PLUGINS` leaves it out.
    """
    if not metadata.entry_points(group=PLUGIN_GROUP, name=PLUGIN_NAME):
        raise PhotonError(
            "SGLang cannot find the photon plugin: this package is imported but not installed",
            "Run: pip install . in the project's folder",
        )
    allowed = {name.strip() for name in environ.get("SGLANG_PLUGINS", "").split(",")} - {""}
    if allowed and PLUGIN_NAME not in allowed:
        raise PhotonError(
            f"SGLANG_PLUGINS={environ['SGLANG_PLUGINS']} leaves the photon plugin out",
            f"Add {PLUGIN_NAME} to SGLANG_PLUGINS or unset it",
        )
