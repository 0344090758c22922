"""What is taken in when; nothing is lost, doubled or overtaken."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_photon.ingest.intake import COSTLY_S, PATIENCE_S, Intake
from tests.unit.ingest.clock import Clock

DECODE_S, PREPARE_S = 1e-3, 2e-3
NEVER = float("-inf")
PLENTY = 1.0


class Desk:
    """An intake that writes down what happens. Frames are words; `control ...` is no request."""

    def __init__(self, *, alone: bool = True, cheap: bool = False) -> None:
        self.clock = Clock()
        self.log: list[str] = []
        self.unwritten: set[str] = set()
        self.costs = (1e-5, 1e-5) if cheap else (DECODE_S, PREPARE_S)
        self.intake: Intake[str, str] = Intake(
            decode=self.decode,
            prepare=self.prepare if alone else None,
            preparable=lambda message: not message.startswith("control"),
            release=lambda: self.log.append("release"),
            ready=lambda message: message not in self.unwritten,
            now=self.clock,
        )

    def decode(self, frame: str) -> str:
        self.clock.pass_by(self.costs[0])
        self.log.append(f"decode {frame}")
        return frame

    def prepare(self, message: str) -> None:
        self.clock.pass_by(self.costs[1])
        self.log.append(f"prepare {message}")

    def put(self, *frames: str) -> None:
        self.intake.put((frame, 1000) for frame in frames)

    def take(self, slack: float = NEVER, attainable: float = PLENTY) -> list[str]:
        return self.intake.take(slack=slack, attainable=attainable)

    def work(self, slack: float, attainable: float = PLENTY) -> None:
        self.intake.work(slack=slack, attainable=attainable)

    def learnt(self) -> Desk:
        """Knows what a request costs."""
        self.put("first")
        self.work(PLENTY)
        self.log.clear()
        return self


def test_with_nothing_in_flight_everything_is_taken_at_once() -> None:
    desk = Desk()
    desk.put("a", "control b", "c")
    assert desk.take(float("inf")) == ["a", "control b", "c"]
    assert not desk.intake.pending
    assert desk.intake.stats.at_once == 3


def test_a_stage_waits_for_slack_of_its_usual_cost() -> None:
    desk = Desk().learnt()
    desk.put("a")
    assert desk.take(DECODE_S + PREPARE_S / 2) == []
    desk.work(DECODE_S * 0.9)
    assert desk.log == []
    desk.work(DECODE_S * 1.1)
    assert desk.log == ["decode a"]
    desk.work(PREPARE_S * 1.1)
    assert desk.log == ["decode a", "prepare a", "release"]
    assert not desk.intake.pending
    assert desk.take() == []


def test_a_message_waits_for_no_longer_than_patience() -> None:
    desk = Desk().learnt()
    desk.put("a")
    desk.clock.pass_by(PATIENCE_S * 0.9)
    assert desk.take() == []
    desk.clock.pass_by(PATIENCE_S * 0.2)
    assert desk.take() == ["a"]
    assert desk.intake.stats.overdue == 1


def test_what_never_fits_is_done_right_after_a_launch() -> None:
    desk = Desk().learnt()
    desk.put("a")
    assert desk.take(0.0, attainable=DECODE_S / 2) == []
    desk.work(0.0, attainable=DECODE_S / 2)
    assert desk.log == ["decode a", "prepare a", "release"]


def test_a_host_without_any_slack_takes_everything_at_once() -> None:
    desk = Desk().learnt()
    desk.put("a")
    assert desk.take(-1.0, attainable=-1.0) == ["a"]


def test_a_burst_is_released_together() -> None:
    desk = Desk().learnt()
    desk.put("a", "b", "c")
    desk.work(DECODE_S + PREPARE_S + 1e-4)
    assert desk.log == ["decode a", "prepare a"]
    assert desk.take() == []
    desk.work(PLENTY)
    assert desk.log[2:] == ["decode b", "prepare b", "decode c", "prepare c", "release"]


def test_a_burst_waits_for_no_longer_than_patience() -> None:
    desk = Desk().learnt()
    desk.put("a", "b")
    desk.work(DECODE_S + PREPARE_S + 1e-4)
    desk.clock.pass_by(PATIENCE_S)
    assert desk.take() == ["b"]
    assert desk.log == ["decode a", "prepare a", "decode b", "release"]


def test_cheap_requests_are_not_held_for_others() -> None:
    desk = Desk(cheap=True).learnt()
    assert sum(desk.costs) < COSTLY_S
    desk.put("a", "b")
    desk.work(1.5e-5)
    assert desk.log == ["decode a"]
    desk.work(1.5e-5)
    assert desk.log == ["decode a", "prepare a", "release"]


def test_a_message_that_is_no_request_is_left_to_the_caller_in_its_turn() -> None:
    desk = Desk().learnt()
    desk.put("a", "control b", "c")
    desk.work(PLENTY)
    assert desk.log == ["decode a", "prepare a", "decode control b", "decode c", "release"]
    assert desk.take(PLENTY) == ["control b", "c"]


def test_where_ranks_must_agree_requests_are_only_decoded_here() -> None:
    desk = Desk(alone=False)
    desk.put("a", "b")
    desk.work(PLENTY)
    assert desk.log == ["decode a", "decode b"]
    assert desk.take(0.0) == ["a", "b"]


def test_a_burst_is_taken_together_where_ranks_must_agree() -> None:
    desk = Desk(alone=False)
    desk.put("first")
    assert desk.take(PLENTY) == ["first"]
    desk.intake.took(PREPARE_S)
    desk.put("a", "b")
    assert desk.take(DECODE_S + PREPARE_S + 1e-4) == []
    assert desk.take(2 * (DECODE_S + PREPARE_S)) == ["a", "b"]


def test_a_request_whose_data_is_not_there_lets_others_pass() -> None:
    desk = Desk().learnt()
    desk.unwritten = {"a"}
    desk.put("a", "b")
    desk.work(PLENTY)
    assert desk.log == ["decode a", "decode b", "prepare b", "release"]
    assert desk.intake.pending
    assert desk.take(float("inf")) == []
    desk.unwritten = set()
    desk.put("c")
    assert desk.take(float("inf")) == ["a", "c"]


def test_what_is_no_request_waits_for_data_but_not_for_ever() -> None:
    desk = Desk().learnt()
    desk.unwritten = {"a"}
    desk.put("a", "control b", "c")
    assert desk.take(float("inf")) == []
    desk.clock.pass_by(PATIENCE_S)
    assert desk.take(float("inf")) == ["control b", "c"]
    desk.unwritten = set()
    assert desk.take(float("inf")) == ["a"]


@settings(deadline=None, derandomize=True)
@given(
    ticks=st.lists(
        st.tuples(
            st.integers(min_value=0, max_value=3),
            st.booleans(),
            st.floats(min_value=-1e-3, max_value=8e-3),
            st.floats(min_value=-1e-3, max_value=4e-3),
        ),
        max_size=40,
    ),
    alone=st.booleans(),
)
@pytest.mark.timeout(120)
def test_everything_arrives_once_and_in_order(
    ticks: list[tuple[int, bool, float, float]], alone: bool
) -> None:
    desk = Desk(alone=alone)
    eligible: list[str] = []
    held: list[str] = []
    sent = 0

    def settle(taken: list[str]) -> None:
        for line in desk.log:
            if line.startswith("prepare "):
                held.append(line.removeprefix("prepare "))
            elif line == "release":
                eligible.extend(held)
                held.clear()
        desk.log.clear()
        assert not (taken and held), "something overtakes"
        eligible.extend(taken)

    for count, control, work_slack, take_slack in ticks:
        frames = [f"{'control ' if control else ''}{sent + i}" for i in range(count)]
        sent += count
        desk.put(*frames)
        settle(desk.take(take_slack, attainable=7e-3))
        desk.work(work_slack, attainable=7e-3)
        settle([])
        desk.clock.pass_by(1e-3)
    settle(desk.take(float("inf")))
    assert [int(message.removeprefix("control ")) for message in eligible] == list(range(sent))
    assert not desk.intake.pending
