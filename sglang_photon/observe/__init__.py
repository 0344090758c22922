"""What the loop does with its time: a record of every step, and counters for Prometheus."""

from __future__ import annotations
