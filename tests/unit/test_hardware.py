from __future__ import annotations

import pytest

from sglang_photon import hardware
from sglang_photon.arguments import ArgumentList

CORES = [0, 1, 2, 3, 4]


def test_a_cpu_server_gets_the_flags_it_needs_and_says_so() -> None:
    arguments = ArgumentList(["--model-path", "m"])
    plan = hardware.plan_cpu(arguments, {}, CORES)
    assert arguments.value("--device") == "cpu"
    assert arguments.value("--attention-backend") == "torch_native"
    assert arguments.value("--max-total-tokens") == str(hardware.CPU_POOL_TOKENS)
    assert plan.environment == {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}
    assert "--device cpu" in plan.chosen
    assert "TORCHDYNAMO_DISABLE=1" in plan.chosen


def test_what_was_given_stays_and_is_not_announced() -> None:
    arguments = ArgumentList(["--max-total-tokens", "64", "--attention-backend", "intel_amx"])
    plan = hardware.plan_cpu(arguments, {"TORCHDYNAMO_DISABLE": "0"}, CORES)
    assert arguments.value("--max-total-tokens") == "64"
    assert arguments.value("--attention-backend") == "intel_amx"
    assert "TORCHDYNAMO_DISABLE" not in plan.environment
    assert plan.chosen == ("--device cpu", "SGLANG_USE_CPU_ENGINE=1")


@pytest.mark.parametrize(
    ("argv", "binding"),
    [
        (["--tp", "2"], "0,1|2,3"),
        (["--dp-size", "2", "--tp", "2"], "0|1|2|3"),
        (["--tp", "8"], None),
        ([], None),
    ],
)
def test_several_ranks_share_the_cores(argv: list[str], binding: str | None) -> None:
    plan = hardware.plan_cpu(ArgumentList(argv), {}, CORES)
    assert plan.environment.get("SGLANG_CPU_OMP_THREADS_BIND") == binding


@pytest.mark.parametrize(
    ("argv", "environ", "accelerator", "on_cpu"),
    [
        ([], {}, False, True),
        ([], {}, True, False),
        (["--device", "cpu"], {}, True, True),
        (["--device=cuda"], {}, False, False),
        ([], {"SGLANG_USE_CPU_ENGINE": "1"}, True, True),
    ],
)
def test_who_decides_on_the_device(
    argv: list[str],
    environ: dict[str, str],
    accelerator: bool,
    on_cpu: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "accelerator_is_available", lambda: accelerator)
    assert hardware.serves_on_cpu(ArgumentList(argv), environ) is on_cpu
