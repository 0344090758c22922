"""`PhotonScheduler`: SGLang's scheduler, in a process of ours.

Imported only in processes that have SGLang's scheduler loaded: SGLang loads plugins in its main and
detokenizer processes too, which must not pay for this import.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from sglang.srt.managers.scheduler import Scheduler

import sglang_photon
from sglang_photon.config import PhotonConfig

logger = logging.getLogger(__name__)

LOOP_REASON = "the two-slot loop is not in this release"


class PhotonScheduler(Scheduler):
    """The scheduler that SGLang constructs once the plugin has replaced its class.

    SGLang's plugin framework rebinds the module attribute `Scheduler` everywhere, in this module
    too: use `super()`, never the name.
    """

    def __init__(self, server_args: Any, port_args: Any) -> None:
        self.photon_config = PhotonConfig.from_environment(os.environ)
        super().__init__(server_args, port_args)

    def get_init_info(self) -> dict[str, Any]:
        """Upstream's handshake, and which loop runs; the server shows it under `/server_info`."""
        return {**super().get_init_info(), "photon": self.photon_state()}

    def photon_state(self) -> dict[str, str]:
        """Version of this package, the loop in use and why it was chosen."""
        loop = "sglang" if self.enable_overlap else "blocking"
        return {"version": sglang_photon.__version__, "loop": loop, "reason": LOOP_REASON}

    def run_event_loop(self) -> None:
        """Say which loop runs, then run it until shutdown."""
        state = self.photon_state()
        logger.info(
            "sglang-photon %s: loop %s, because %s",
            state["version"],
            state["loop"],
            state["reason"],
        )
        super().run_event_loop()
