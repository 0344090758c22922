from __future__ import annotations

import pytest

from sglang_photon.config import LOOPS, PhotonConfig, truth
from sglang_photon.errors import UsageError


def parse(*argv: str, **environ: str) -> tuple[PhotonConfig, list[str]]:
    return PhotonConfig.from_command_line(argv, environ)


def test_without_anything_the_loop_is_auto_and_no_argument_is_taken() -> None:
    argv = ["--model-path", "demo", "--port", "1"]
    assert parse(*argv) == (PhotonConfig(loop="auto", allow_version=False), argv)


@pytest.mark.parametrize("argv", [("--photon-loop", "blocking"), ("--photon-loop=blocking",)])
def test_flags_are_taken_out_in_both_spellings(argv: tuple[str, ...]) -> None:
    config, rest = parse("--tp", "2", *argv, "--port=1")
    assert config.loop == "blocking"
    assert rest == ["--tp", "2", "--port=1"]


def test_a_flag_wins_over_the_environment() -> None:
    config, _ = parse("--photon-loop", "sglang", SGLANG_PHOTON_LOOP="blocking")
    assert config.loop == "sglang"
    assert parse(SGLANG_PHOTON_LOOP="blocking")[0].loop == "blocking"


def test_an_empty_variable_is_none() -> None:
    assert parse(SGLANG_PHOTON_LOOP="", SGLANG_PHOTON_ALLOW_VERSION="")[0] == PhotonConfig()


def test_a_child_reads_from_its_environment_what_the_launcher_wrote() -> None:
    config = PhotonConfig(loop="sglang", shutdown_limit=7.5, allow_version=True)
    assert PhotonConfig.from_environment(config.to_environment()) == config


@pytest.mark.parametrize(("loop", "switch"), [("auto", "1"), ("sglang", "0"), ("blocking", "0")])
def test_only_photons_own_loops_switch_the_plugin_on(loop: str, switch: str) -> None:
    assert PhotonConfig(loop=loop).to_environment()["SGLANG_PHOTON"] == switch
    assert PhotonConfig(loop=loop).stock == (switch == "0")


def test_a_stock_loop_that_is_measured_has_a_scheduler_of_ours() -> None:
    config = PhotonConfig(loop="blocking", meter="on")
    assert config.stock_loop
    assert not config.stock
    assert config.to_environment()["SGLANG_PHOTON"] == "1"


def test_an_unknown_flag_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match=r"no flag --photon-lop\. Did you mean --photon-loop\?"):
        parse("--photon-lop=sglang")


def test_an_unknown_flag_far_from_all_lists_them() -> None:
    with pytest.raises(
        UsageError, match="--photon-loop, --photon-lane, --photon-prefill-overlap, --photon-"
    ):
        parse("--photon-xyzzy")


def test_a_flag_without_its_value_is_refused() -> None:
    with pytest.raises(UsageError, match="--photon-loop: expected one argument"):
        parse("--photon-loop")


@pytest.mark.parametrize(
    ("argv", "environ"), [(["--photon-loop", "fast"], {}), ([], {"SGLANG_PHOTON_LOOP": "fast"})]
)
def test_an_unknown_loop_is_refused_with_the_choices(
    argv: list[str], environ: dict[str, str]
) -> None:
    with pytest.raises(UsageError, match=", ".join(LOOPS)):
        PhotonConfig.from_command_line(argv, environ)


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("0", False), ("", False)])
def test_truth_reads_yes_and_no(text: str, value: bool) -> None:
    assert truth({"V": text}, "V") is value


def test_truth_refuses_anything_else() -> None:
    with pytest.raises(UsageError, match=r"V is 'maybe'\. Set it to 1 or 0"):
        truth({"V": "maybe"}, "V")


def test_the_shutdown_limit_is_a_number_of_seconds() -> None:
    assert parse()[0].shutdown_limit == 20
    assert parse("--photon-shutdown-limit", "0")[0].shutdown_limit == 0
    assert parse(SGLANG_PHOTON_SHUTDOWN_LIMIT="7.5")[0].shutdown_limit == 7.5
    for wrong in ("-1", "inf", "nan"):
        with pytest.raises(UsageError, match="Give seconds, 0 or more"):
            parse("--photon-shutdown-limit", wrong)
    with pytest.raises(UsageError, match="Set it to a number of seconds"):
        parse(SGLANG_PHOTON_SHUTDOWN_LIMIT="soon")
