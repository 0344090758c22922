"""Which loop a configuration gets, and that every reason is one sentence of its own."""

from __future__ import annotations

import dataclasses

import pytest

from sglang_photon.loop.eligibility import REASONS, LoopFacts, choose_loop


def test_an_ordinary_configuration_gets_the_two_slot_loop() -> None:
    assert choose_loop(LoopFacts()).loop == "photon"


def test_without_overlap_the_blocking_loop_runs() -> None:
    choice = choose_loop(LoopFacts(overlap=False, speculative=True))
    assert (choice.loop, choice.reason) == ("blocking", "--disable-overlap-schedule is set")


@pytest.mark.parametrize("fact", REASONS)
def test_each_fact_alone_sends_to_sglangs_loop_and_says_why(fact: str) -> None:
    choice = choose_loop(LoopFacts(**{fact: True}))
    assert (choice.loop, choice.reason) == ("sglang", REASONS[fact])


def test_every_fact_has_a_reason_of_its_own() -> None:
    facts = {field.name for field in dataclasses.fields(LoopFacts)} - {"overlap"}
    assert facts == set(REASONS)
    assert len(set(REASONS.values())) == len(REASONS)


def test_asked_for_by_name_it_runs_on_a_device_that_nobody_measured() -> None:
    assert choose_loop(LoopFacts(unmeasured_device=True), insist=True).loop == "photon"
    both = LoopFacts(unmeasured_device=True, speculative=True)
    assert choose_loop(both, insist=True).reason == REASONS["speculative"]
