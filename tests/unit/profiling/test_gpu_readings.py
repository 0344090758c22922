"""The GPU's counters, in the tools' own formats, and what may be concluded from them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_photon.profiling.gpu.command import main
from sglang_photon.profiling.gpu.diagnosis import ServerState, diagnose
from sglang_photon.profiling.gpu.fields import FIELDS, Field, explain, find
from sglang_photon.profiling.gpu.nvml import read_nvml
from sglang_photon.profiling.gpu.readings import Readings, Sample, parse_dmon, parse_exporter
from sglang_photon.profiling.gpu.server import parse_server

HEAD = """\
#Entity   GPUTL        GRACT        SMACT        TENSO        DRAMA        POWER        SMCLK
ID                                                                         W            MHz
"""
RUNNING = ServerState(tokens_per_second=900.0, running=8.0)


def dmon(*rows: str, entity: str = "GPU 0", head: str = HEAD) -> Readings:
    return parse_dmon(head + "".join(f"{entity}     {row}\n" for row in rows))


def repeated(row: str, count: int = 20, **kwargs: str) -> Readings:
    return dmon(*[row] * count, **kwargs)


def test_gu_01_full_utilisation_without_progress_is_stalled() -> None:
    readings = repeated("100 1.000 0.021 0.000 0.001 92.1 1980")
    found = diagnose(readings, ServerState(tokens_per_second=0.0, running=3.0), power_limit=700)
    assert (found.verdict, found.confidence) == ("stalled", "high")
    assert "power is near idle (92 W)" in found.because
    without_limit = diagnose(readings, ServerState(tokens_per_second=0.0, running=3.0))
    assert (without_limit.verdict, without_limit.confidence) == ("stalled", "low")


def test_gu_03_more_than_everything_on_mig_is_flagged_and_left_out() -> None:
    readings = repeated(
        "N/A 0.990 1.400 0.020 0.610 310 1980",
        entity="GPU-I 3",
    )
    assert readings.mig
    assert readings.values("sm")[0] == 1.4, "not clipped"
    assert readings.mean("sm") is None, "not averaged in"
    found = diagnose(readings, RUNNING)
    assert any("140% is impossible" in warning for warning in found.warnings)
    assert any("MIG" in warning for warning in found.warnings)
    assert found.verdict == "memory bound as expected"


def test_gu_04_a_missing_column_is_unknown_and_never_0() -> None:
    readings = repeated("97 N/A N/A N/A N/A 250 1980")
    assert readings.mean("engine") is None
    assert readings.mean("dram") is None
    found = diagnose(readings, RUNNING)
    assert (found.verdict, found.confidence) == ("unknown", "low")
    assert "DCGM_FI_PROF_DRAM_ACTIVE" in found.because


def test_gu_04_the_fallback_is_less_sure() -> None:
    readings = repeated("41 N/A N/A N/A N/A 250 1980")
    found = diagnose(readings, RUNNING)
    assert (found.verdict, found.confidence) == ("starved by the host", "low")
    assert "DCGM_FI_DEV_GPU_UTIL is 41%" in found.because


def test_gu_04_a_refused_watch_says_why() -> None:
    readings = parse_dmon(
        "Error setting watches. Result: -33: This request is serviced by a module"
    )
    found = diagnose(readings, RUNNING)
    assert found.verdict == "unknown"
    assert "profiling module is not loaded" in found.because


def test_gu_04_no_gpu_at_all() -> None:
    class NoDriverError(Exception):
        pass

    def refuse() -> None:
        raise NoDriverError("NVML Shared Library Not Found")

    readings, limit = read_nvml(
        seconds=0, every_s=0, module=SimpleNamespace(nvmlInit=refuse, NVMLError=NoDriverError)
    )
    found = diagnose(readings, RUNNING)
    assert math.isnan(limit)
    assert found.verdict == "unknown"
    assert "there is no NVIDIA GPU or driver here" in found.because


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.key)
def test_gu_05_every_field_explains_itself(field: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--explain", field.key]) == 0
    text = capsys.readouterr().out
    assert str(field.number) in text
    assert field.meaning in text
    assert field.cannot in text
    assert find(str(field.number)) is find(field.name) is field
    assert isinstance(field, Field)
    assert explain(field) == text.strip()


def test_gu_05_an_unknown_field_lists_the_known() -> None:
    from sglang_photon.errors import UsageError

    with pytest.raises(UsageError, match="all, util, engine, sm, tensor, dram, power, clock"):
        main(["--explain", "nonsense"])


@pytest.mark.parametrize("count", [10, 100], ids=["1 Hz", "10 Hz"])
@pytest.mark.parametrize(
    ("rows", "server", "verdict"),
    [
        (
            ("100 1.000 0.60 0.05 0.40 400 1980", "0 0.050 0.02 0.00 0.01 150 1980"),
            RUNNING,
            "starved by the host",
        ),
        (("98 0.990 0.90 0.08 0.66 520 1980",), RUNNING, "memory bound as expected"),
        (
            ("20 0.200 0.10 0.02 0.10 180 1980", "0 0.000 0.00 0.00 0.00 110 1980"),
            ServerState(tokens_per_second=0.0, running=0.0),
            "starved of requests",
        ),
    ],
)
def test_gu_07_swings_have_one_of_three_causes(
    rows: tuple[str, ...], server: ServerState, verdict: str, count: int
) -> None:
    found = diagnose(dmon(*(rows[n % len(rows)] for n in range(count))), server)
    assert (found.verdict, found.confidence) == (verdict, "high")
    assert found.warnings == ()


def test_gu_07_too_few_samples_warn() -> None:
    found = diagnose(repeated("98 0.990 0.90 0.08 0.66 520 1980", count=9), RUNNING)
    assert found.confidence == "low"
    assert found.warnings == ("only 9 samples: a swing may look like a state",)


@pytest.mark.parametrize(
    ("row", "verdict", "said"),
    [
        ("99 0.990 0.95 0.62 0.35 690 1900", "busy", "the tensor pipes 62%"),
        ("99 0.990 0.20 0.04 0.12 210 1980", "busy", "batch more"),
    ],
)
def test_a_busy_gpu_is_busy_with_something(row: str, verdict: str, said: str) -> None:
    found = diagnose(repeated(row), RUNNING)
    assert found.verdict == verdict
    assert said in found.describe()


def test_idle_without_knowing_the_load_is_unknown() -> None:
    found = diagnose(repeated("30 0.300 0.20 0.02 0.10 200 1980"), ServerState())
    assert found.verdict == "unknown"
    assert "whether requests run is not known" in found.because


EXPORTER = """\
# HELP DCGM_FI_PROF_GR_ENGINE_ACTIVE Ratio of time the graphics engine is active.
# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA H100"} 100
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-1",device="nvidia0"} 0.981
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-1",device="nvidia0"} 0.9
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-1",device="nvidia0"} 0.07
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-1",device="nvidia0"} 0.7
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1",device="nvidia0"} 530.5
DCGM_FI_DEV_SM_CLOCK{gpu="1",UUID="GPU-2",device="nvidia1"} 18446744073709551615
DCGM_FI_PROF_SM_ACTIVE{gpu="1",GPU_I_ID="2",device="nvidia1"} 0.3
"""


def test_a_dcgm_exporters_pages() -> None:
    readings = parse_exporter([EXPORTER] * 12)
    assert readings.gpus() == ["0", "1", "1/2"]
    assert readings.of("0").mean("dram") == pytest.approx(0.7)
    assert readings.of("0").mean("util") == pytest.approx(1.0)
    assert readings.of("1").mean("clock") is None, "blank values are large numbers"
    assert diagnose(readings.of("0"), RUNNING).verdict == "memory bound as expected"


def test_nvml_says_what_it_does_not_know() -> None:
    class LackingError(Exception):
        pass

    def lacking(*_: object) -> None:
        raise LackingError

    module = SimpleNamespace(
        NVMLError=LackingError,
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=100),
        nvmlDeviceGetPowerUsage=lambda handle: 95_000,
        nvmlDeviceGetClockInfo=lacking,
    )
    readings, limit = read_nvml(seconds=0.0, every_s=0.0, module=module)
    assert limit == 700.0
    assert readings.samples == [Sample(gpu="0", values={"util": 1.0, "power": 95.0})]
    found = diagnose(readings, ServerState(tokens_per_second=0.0, running=1.0), power_limit=limit)
    assert found.verdict == "stalled"
    assert "install DCGM" in diagnose(readings, RUNNING).because


def test_the_servers_own_figures_are_summed_over_ranks() -> None:
    page = (
        'sglang:gen_throughput{tp_rank="0"} 100.5\n'
        'sglang:gen_throughput{tp_rank="1"} 99.5\n'
        'sglang:num_running_reqs{tp_rank="0"} 3.0\n'
    )
    assert parse_server(page) == ServerState(tokens_per_second=200.0, running=3.0)
    assert parse_server("") == ServerState()


def test_the_command_on_a_recorded_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "dmon.txt"
    table.write_text(HEAD + "GPU 0 98 0.990 0.90 0.62 N/A 520 1980\n" * 12)
    assert main(["--dmon", str(table), "--json", str(tmp_path / "out.json")]) == 3
    text = capsys.readouterr().out
    assert "GPU 0: unknown" in text
    assert "dram     unknown  DCGM_FI_PROF_DRAM_ACTIVE 1005" in text
    assert json.loads((tmp_path / "out.json").read_text())["0"]["verdict"] == "unknown"
    table.write_text(HEAD + "GPU 0 98 0.990 0.90 0.62 0.30 520 1980\n" * 12)
    assert main(["--dmon", str(table)]) == 0
