"""What clients receive does not depend on when their requests are taken in."""

from __future__ import annotations

import pickle
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import zmq
from sglang.srt.managers.io_struct import AbortReq, TokenizedGenerateReqInput
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_photon.reference.models import names
from sglang_photon.slots.sim import RealClock, SimLane
from sglang_photon.upstream.hash_body import HashBody
from sglang_photon.upstream.requests import tokenized
from sglang_photon.upstream.row_stream import PackedTokens
from sglang_photon.upstream.with_sockets import scheduler_with_sockets
from tests.differential.rig import assert_balanced, seen

MODEL = "demo:random:qwen2,hidden=64,layers=1,vocab=1024"
REQUESTS = 40
STEP_S = 8e-3


def request(scheduler: Any, number: int) -> TokenizedGenerateReqInput:
    chance = random.Random(number)
    params = SamplingParams(temperature=0.0, max_new_tokens=chance.randint(2, 24), ignore_eos=True)
    params.normalize(scheduler.tokenizer)
    prompt = [chance.randrange(1024) for _ in range(chance.randint(1, 400))]
    return tokenized(rid=f"r{number}", ids=prompt, params=params)


def send(address: str, messages: Sequence[Any]) -> None:
    """In bursts and alone, with commands in between that find no request."""
    chance = random.Random(1)
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(address)
        for message in messages:
            socket.send(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
            if chance.random() < 0.2:
                socket.send(pickle.dumps(AbortReq(rid="nobody")))
            if chance.random() < 0.3:
                time.sleep(chance.random() * 0.02)


def play(loop: str) -> tuple[dict[str, Any], Any]:
    arguments = [
        *("--model-path", names.resolve(MODEL).path),
        *("--max-total-tokens", "16384", "--max-running-requests", "8"),
    ]
    with scheduler_with_sockets(arguments, loop=loop) as (scheduler, address):
        torch.set_num_threads(1)
        HashBody.install(scheduler.tp_worker.model_runner)
        scheduler.lane_factory = lambda: SimLane(step_time=lambda kind: STEP_S, clock=RealClock())
        messages = [request(scheduler, number) for number in range(REQUESTS)]
        sent: list[Any] = []
        ended: set[str] = set()

        def receive_output(output: Any, recv_obj: Any = None) -> None:
            sent.append(output.received() if isinstance(output, PackedTokens) else output)
            if hasattr(output, "finished_reasons"):
                pairs = zip(output.rids, output.finished_reasons, strict=True)
                ended.update(rid for rid, reason in pairs if reason is not None)
            scheduler.gracefully_exit = len(ended) == REQUESTS

        scheduler.ipc_channels.send_to_detokenizer.send_output = receive_output
        sender = threading.Thread(target=send, args=(address("requests"), messages))
        sender.start()
        scheduler.run_event_loop()
        sender.join()
        assert_balanced(scheduler)
        stats = scheduler.photon_inbox.intake.stats if loop == "photon" else None
    return seen(sent), stats


@pytest.mark.timeout(180)
def test_requests_that_waited_for_slack_are_answered_as_by_the_blocking_loop() -> None:
    expected, _ = play("blocking")
    found, stats = play("photon")
    assert stats.in_slack + stats.overdue > 0
    assert stats.fetched >= REQUESTS
    assert set(found) == set(expected) == {f"r{number}" for number in range(REQUESTS)}
    for rid, client in expected.items():
        assert found[rid].tokens == client.tokens, rid
        assert found[rid].finish == client.finish, rid
