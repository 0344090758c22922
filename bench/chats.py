"""Clients that chat about pictures, in a process of their own: as one is answered, the next asks.

They replay recorded messages. All pictures of a run share one file of pixels in shared memory under
many names, since a tokenizer process on few cores could not write them as fast as the device that
is simulated would take them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess

import zmq

from sglang_photon.bench.feeder import SHARED_MEMORY, Message, Segment


def start(requests: str, answers: str, messages: Sequence[Message], *, at_once: int) -> BaseProcess:
    """Ask from another process, which ends with its last question.

    Args:
        requests: address of the scheduler's socket.
        answers: address on which each answered request is told, by one empty message.
        messages: the questions.
        at_once: how many are asked before the first answer.
    """
    process = get_context("spawn").Process(
        target=ask, args=(requests, answers, list(messages), at_once), daemon=True
    )
    process.start()
    return process


def ask(requests: str, answers: str, messages: Sequence[Message], at_once: int) -> None:
    """Ask `at_once` questions, then one for each answer."""
    largest = max(s.nbytes for m in messages for s in m.segments)
    base = Segment(name=f"sgl_shm_mm_{os.getpid()}_00000000", nbytes=largest, stamp=0)
    base.write(os.urandom(largest))
    try:
        with (
            zmq.Context() as context,
            context.socket(zmq.PUSH) as out,
            context.socket(zmq.PULL) as told,
        ):
            out.connect(requests)
            told.bind(answers)
            for number, message in enumerate(messages):
                if number >= at_once:
                    told.recv()
                for segment in message.segments:
                    os.link(SHARED_MEMORY / base.name, SHARED_MEMORY / segment.name)
                out.send(message.frame)
    finally:
        (SHARED_MEMORY / base.name).unlink()
