"""Pictures are let go by a thread: unmapping one costs the scheduler's thread milliseconds.

A picture's pixels lie in memory that is mapped for one request. When SGLang releases it, the last
reference goes, and the kernel takes the pages back in the middle of a step. Here the last reference
is dropped in a thread, which holds no lock of the interpreter while the kernel works.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import MultimodalInputs

RELEASE_FEATURES = MultimodalInputs.release_features
"""Upstream's own; it also gives the slices of device pools back, which stays where it is."""


@contextmanager
def released_aside() -> Iterator[None]:
    """Let host memory of pictures go in a thread inside; on leaving, all of it has gone."""
    held: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()

    def release_features(inputs: MultimodalInputs) -> None:
        features = [tensor for item in inputs.mm_items for tensor in _on_host(item.feature)]
        RELEASE_FEATURES(inputs)
        if features:
            held.put(features)

    def let_go() -> None:
        # `get` returns the only reference, and the next one replaces it.
        while (features := held.get()) is not None:
            features.clear()

    thread = threading.Thread(target=let_go, name="photon-release", daemon=True)
    thread.start()
    MultimodalInputs.release_features = release_features
    try:
        yield
    finally:
        MultimodalInputs.release_features = RELEASE_FEATURES
        held.put(None)
        thread.join()


def _on_host(feature: Any) -> list[torch.Tensor]:
    parts = feature if isinstance(feature, list | tuple) else (feature,)
    return [part for part in parts if isinstance(part, torch.Tensor) and part.is_cpu]
