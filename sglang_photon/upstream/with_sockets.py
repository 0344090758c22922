"""The scheduler in this process, with the sockets that it has in a server; for benchmarks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from sglang_photon.upstream.in_process import in_process_scheduler

MODEL = "demo:random:qwen2.5-vl,hidden=64,layers=1,vision_layers=1,vocab=32768"
PICTURES = '{"image": {"min_pixels": 3136, "max_pixels": 12845056}}'
"""Qwen2.5-VL's own limits: the random models have smaller ones."""


@contextmanager
def scheduler_with_sockets(
    arguments: Sequence[str], *, loop: str
) -> Iterator[tuple[Any, Callable[[str], str]]]:
    """A scheduler that receives as in a server.

    Args:
        arguments: SGLang's, as for `in_process_scheduler`.
        loop: which loop it runs.

    Yields:
        The scheduler, and what makes an address of a word: `requests` is where it receives.
    """
    given = [*arguments, "--mm-feature-transport", "cpu", "--mm-process-config", PICTURES]
    with (
        in_process_scheduler(given, loop=loop) as scheduler,
        tempfile.TemporaryDirectory() as folder,
        zmq.Context() as context,
        context.socket(zmq.PULL) as requests,
        context.socket(zmq.DEALER) as rpc,
    ):

        def address(word: str) -> str:
            return f"ipc://{Path(folder) / word}"

        requests.bind(address("requests"))
        scheduler.recv_from_tokenizer = requests
        scheduler.ipc_channels.recv_from_rpc = rpc
        scheduler.init_request_receiver()
        yield scheduler, address
