"""`photon profile gpu`: the GPU's own counters, read honestly."""

from __future__ import annotations
