"""Photon's scheduler in Ray actors.

SGLang's Ray engine runs each scheduler in an actor, whose process never loads plugins. Here the
actor class is replaced, in the process that creates the actors, by one that loads them first. After
that an actor goes through the same install, and the same proof, as any scheduler process.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import ray
from sglang.srt.ray.scheduler_actor import SchedulerActor

from sglang_photon.config import PhotonConfig

PACKAGE = "sglang.srt.ray"
ACTOR = "SchedulerActor"


def install(config: PhotonConfig) -> None:
    """Have SGLang's Ray engine create Photon's actors, in whichever modules it is loaded."""
    actor = photon_actor(config)
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGE) and hasattr(module, ACTOR):
            setattr(module, ACTOR, actor)


def photon_actor(config: PhotonConfig) -> Any:
    """A Ray actor class that loads SGLang's plugins before it constructs its scheduler.

    Args:
        config: travels to the actor with its class: a remote node does not share our environment.
    """
    environment = config.to_environment()
    upstream_actor = SchedulerActor.__ray_metadata__.modified_class

    class PhotonSchedulerActor(upstream_actor):  # type: ignore[misc, valid-type]
        def __init__(self, **arguments: Any) -> None:
            os.environ.update(environment)
            # The plugin acts only where the scheduler's module is loaded.
            importlib.import_module("sglang.srt.managers.scheduler")
            from sglang.srt.plugins import load_plugins

            load_plugins()
            super().__init__(**arguments)

    return ray.remote(PhotonSchedulerActor)
