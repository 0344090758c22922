"""Two ranks of one model run the loop each, and answer as the blocking loop does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.asking import Answer, Ask, answers
from tests.server.servers import Running

REQUESTS = tuple(
    Ask(
        text=f"Question {number}: " + "word " * (7 * number),
        options={
            "max_tokens": 10 + 3 * number,
            "frequency_penalty": 0.5 if number % 3 == 0 else 0.0,
        },
    )
    for number in range(12)
)


def served_by(loop: str, folder: Path) -> tuple[Answer, ...]:
    """The answers of two ranks under a loop, asked all at once."""
    arguments = ["--model-path", "demo:random:qwen2", "--served-model-name", "demo", "--tp", "2"]
    with Running(arguments=[*arguments, "--photon-loop", loop], folder=folder) as running:
        assert len(running.schedulers()) == 2
        shown = running.get("/server_info").get("photon")
        assert (shown["loop"] if shown else "stock") == ("photon" if loop == "photon" else "stock")
        given = answers(running.client, REQUESTS, at_once=len(REQUESTS))
        ending = running.stop()
    # SGLang's ranks leave their message queue's segment, whatever the loop; `Running` clears it.
    # They meet on ports from which the kernel serves anybody, so those may be in use again.
    assert (ending.exit_code, ending.processes) == (0, ())
    return tuple(given)


@pytest.mark.timeout(600)
def test_two_ranks_answer_as_the_blocking_loop(tmp_path: Path) -> None:
    assert served_by("photon", tmp_path) == served_by("blocking", tmp_path)
