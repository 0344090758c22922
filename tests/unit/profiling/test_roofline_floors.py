"""The worked examples, checked by hand, and readings GU-06 and GU-08."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_photon.errors import UsageError
from sglang_photon.profiling.roofline.analysis import Analysis, Question, Roof, analyse
from sglang_photon.profiling.roofline.ceiling import Machine
from sglang_photon.profiling.roofline.config_file import load
from sglang_photon.profiling.roofline.gpus import TABLE, find_gpu, measured_gpu
from sglang_photon.profiling.roofline.measured import ImpossibleMeasurementError

CONFIGS = Path(__file__).resolve().parents[3] / "tests/fixtures/configs"
LLAMA_BYTES = 8.03e9 * 2
LLAMA_KV = 32 * 2 * 8 * 128 * 2


def ask(
    name: str = "llama-3.1-8b", gpu: str | None = "H100", count: int = 1, **asked: Any
) -> Analysis:
    machine = Machine(gpu=measured_gpu(gpu), count=count)
    return analyse(load(CONFIGS / f"{name}.json"), machine, Question(**asked))


def roof_of(answer: Analysis) -> Roof:
    assert answer.roof is not None
    return answer.roof


def test_the_ridge_of_an_h100() -> None:
    assert roof_of(ask()).ridge == pytest.approx(989e12 / 3.35e12)
    assert round(roof_of(ask()).ridge) == 295


def test_the_decode_floor_of_llama_on_an_h100() -> None:
    point = roof_of(ask(context=1)).decode
    assert point.floor.seconds * 1e3 == pytest.approx(16.06e9 / 3.35e12 * 1e3, rel=1e-3)
    assert round(point.floor.seconds * 1e3, 1) == 4.8
    assert point.tokens_per_second == pytest.approx(208.6, abs=0.1)
    assert point.floor.bound == "memory"


def test_one_request_uses_a_third_of_a_percent_of_the_arithmetic() -> None:
    floor = roof_of(ask(context=1)).decode.floor
    assert floor.compute / floor.seconds == pytest.approx(0.003, abs=0.0005)


def test_the_intensity_of_a_short_context_is_the_batch() -> None:
    for batch in (1, 40, 256):
        assert ask(batch=batch, context=1).decode.intensity == pytest.approx(batch, rel=0.01)


def test_the_prefill_floor_of_llama_on_an_h100() -> None:
    roof = roof_of(ask(context=1, prompt=2000))
    assert roof.prefill.seconds * 1e3 == pytest.approx(2 * 8.03e9 * 2000 / 989e12 * 1e3, rel=1e-3)
    assert round(roof.prefill.seconds * 1e3) == 32
    assert 6 < roof.prefill.seconds / roof.decode.floor.seconds < 7


def test_attention_takes_over_in_a_long_prefill() -> None:
    # By hand: products with weights (no tables), 4 FLOP per pair and value of 32 heads of 128.
    tokens = 131072
    table = 128256 * 4096
    products = 2 * (8.03e9 - 2 * table) * tokens + 2 * table
    attention = 32 * 4 * 4096 * tokens * (tokens + 1) / 2
    flop = sum(ask(prompt=tokens).prefill.flop.values())
    assert flop == pytest.approx(products + attention, rel=1e-3)
    assert attention > products


def test_the_cache_is_part_of_the_floor() -> None:
    answer = ask(batch=32, context=4096)
    assert answer.decode.kv_bytes == 32 * 4096 * LLAMA_KV
    expected = (LLAMA_BYTES + 32 * 4096 * LLAMA_KV) / 3.35e12
    assert roof_of(answer).decode.floor.seconds == pytest.approx(expected, rel=1e-3)


def test_the_batch_where_decode_turns() -> None:
    assert roof_of(ask(context=1)).turning == 296
    turning = roof_of(ask(context=128)).turning
    assert turning is not None
    assert roof_of(ask(context=128, batch=turning)).decode.floor.bound == "compute"
    assert roof_of(ask(context=128, batch=turning - 1)).decode.floor.bound == "memory"


def test_a_long_context_never_turns() -> None:
    assert roof_of(ask(context=8192)).turning is None


def test_experts_move_the_turn_far_out() -> None:
    """A mixture reads nearly all experts long before it computes much with each."""
    dense, mixture = roof_of(ask(context=1)), roof_of(ask("qwen3-30b-a3b", context=1))
    assert dense.turning is not None
    assert mixture.turning is not None
    assert mixture.turning > 5 * dense.turning


def test_a_mixture_reads_few_experts_for_one_row_and_all_for_many() -> None:
    one, many = ask("qwen3-30b-a3b", batch=1), ask("qwen3-30b-a3b", batch=4096)
    assert one.decode.weight_bytes == pytest.approx(one.model.active_params * 2)
    assert many.decode.weight_bytes == pytest.approx(many.model.text_params * 2, rel=1e-3)


def test_the_vision_tower_is_left_alone_in_decode_and_works_in_prefill() -> None:
    text = ask("qwen2.5-vl-3b", prompt=1500)
    image = ask("qwen2.5-vl-3b", prompt=1500, image_tokens=1300)
    assert text.decode.weight_bytes == pytest.approx(3.086e9 * 2, rel=1e-3)
    tower = 2 * image.model.vision.params * 1300 * 4 if image.model.vision else 0
    more = sum(image.prefill.flop.values()) - sum(text.prefill.flop.values())
    assert more == pytest.approx(tower)


def test_eight_gpus_share_the_work() -> None:
    one, eight = roof_of(ask("deepseek-v3")), roof_of(ask("deepseek-v3", count=8))
    assert eight.decode.floor.seconds == pytest.approx(one.decode.floor.seconds / 8)
    assert eight.ridge == one.ridge
    assert one.decode.fits is False


def test_quantised_weights_have_their_own_peak() -> None:
    answer = ask("deepseek-v3", gpu="H200", count=8)
    assert roof_of(answer).peak_form == "fp8"
    assert roof_of(answer).ridge == pytest.approx(1979 / 4.8)


def test_a_format_without_units_is_widened_and_told() -> None:
    answer = ask("deepseek-v3", gpu="A100")
    assert roof_of(answer).peak_form == "bf16"
    assert any("no fp8 peak" in note for note in answer.notes)


def test_four_bit_weights_read_a_quarter_and_compute_in_sixteen() -> None:
    answer = ask("llama-3.1-8b-awq", context=1)
    tables = 2 * 128256 * 4096
    expected = (8.03e9 - tables) * (4 + 20 / 128) / 8 + tables * 2
    assert answer.decode.weight_bytes == pytest.approx(expected, rel=1e-3)
    assert roof_of(answer).peak_form == "bf16"


def test_mxfp4_meets_eight_bits_where_there_are_four_bit_units() -> None:
    assert roof_of(ask("gpt-oss-20b", gpu="B200")).peak_form == "fp8"
    hopper = ask("gpt-oss-20b", gpu="H100")
    assert roof_of(hopper).peak_form == "bf16"
    assert any("mxfp4" in note for note in hopper.notes)
    assert not any("weights" in point.label for point in roof_of(hopper).what_if)


def test_what_a_change_would_give() -> None:
    roof = roof_of(ask(batch=8, context=4096))
    gains = {point.label: point for point in roof.what_if}
    assert gains["weights in fp8"].floor.seconds < roof.decode.floor.seconds
    assert gains["weights in int4"].floor.seconds < gains["weights in fp8"].floor.seconds
    assert gains["twice the batch"].tokens_per_second > roof.decode.tokens_per_second
    assert "weights in nvfp4" not in gains
    assert "weights in nvfp4" in {point.label for point in roof_of(ask(gpu="B200")).what_if}


# GU-08: a decode step is read as bandwidth.
@pytest.mark.parametrize(("batch", "step_ms"), [(1, 6.0), (256, 60.0)])
def test_gu_08_bandwidth_of_a_known_step(batch: int, step_ms: float) -> None:
    answer = ask(batch=batch, context=1000, step_seconds=step_ms / 1e3)
    by_hand = (LLAMA_BYTES + batch * 1000 * LLAMA_KV) / (step_ms / 1e3)
    assert answer.measured is not None
    assert answer.measured.bytes_per_second == pytest.approx(by_hand, rel=0.02)
    assert answer.measured.mbu == pytest.approx(by_hand / 3.35e12, rel=0.02)
    assert answer.measured.tokens_per_second == pytest.approx(batch / step_ms * 1e3)
    if batch == 1:
        assert roof_of(answer).decode.floor.bound == "memory"


# GU-06: no share of a peak without a dense peak and its source, none above 100 %.
def test_gu_06_a_known_device_uses_the_dense_peak() -> None:
    answer = ask(batch=64, context=1000, step_seconds=0.02)
    assert answer.measured is not None
    by_hand = 64 * (2 * 8.03e9 + 4 * 4096 * 32 * 1000) / 0.02 / 989e12
    assert answer.measured.mfu == pytest.approx(by_hand, rel=0.01)
    assert "data sheet" in answer.machine.gpu.source


def test_gu_06_an_unknown_device_has_no_mfu() -> None:
    answer = ask(gpu="Imaginary 9000", step_seconds=0.01)
    assert answer.roof is None
    assert answer.measured is not None
    assert answer.measured.mfu is None
    assert answer.measured.mbu is None
    assert answer.measured.bytes_per_second == pytest.approx(16.19e9 / 0.01, rel=0.01)
    assert "no MBU and no MFU" in answer.measured.note


@pytest.mark.parametrize(("batch", "step_ms", "share"), [(1, 2.0, "MBU"), (4096, 8.0, "MFU")])
def test_gu_06_more_than_everything_is_an_error(batch: int, step_ms: float, share: str) -> None:
    with pytest.raises(ImpossibleMeasurementError) as caught:
        ask(batch=batch, context=1, step_seconds=step_ms / 1e3)
    assert f"{share} would be" in caught.value.problem
    assert "cannot be" in caught.value.problem
    assert "data sheet" in caught.value.problem
    assert "--batch" in caught.value.remedy


def test_the_token_table_alone_makes_no_measurement_impossible() -> None:
    """The table counts in the floor, as everywhere, but a step may skip it."""
    floor = roof_of(ask(context=1)).decode.floor.seconds
    measured = ask(context=1, step_seconds=floor * 0.97).measured
    assert measured is not None
    assert measured.mbu is not None
    assert measured.mbu < 1
    assert "token table" in measured.note


def test_what_fits_in_a_cache_makes_no_measurement_impossible() -> None:
    """256 MB may be read faster than the memory: no share, and no error."""
    answer = ask("smolvlm-256m", gpu="L4", context=1, weights="nvfp4", step_seconds=1e-4)
    assert answer.measured is not None
    assert answer.measured.mbu is None
    assert "cache" in answer.measured.note
    assert any("cache" in note for note in answer.notes)


def test_measured_values_replace_the_data_sheet() -> None:
    gpu = measured_gpu("H100", bandwidth=3e12)
    assert gpu.bandwidth == 3e12
    assert gpu.peaks["bf16"] == 989e12
    assert "measured bandwidth" in gpu.source
    own = measured_gpu(None, bandwidth=1e12, peak=1e14)
    assert Machine(gpu=own).ridge("bf16") == 100


def test_half_a_roof_gives_half_the_answer() -> None:
    machine = Machine(gpu=measured_gpu("Imaginary 9000", bandwidth=4e12))
    answer = analyse(load(CONFIGS / "llama-3.1-8b.json"), machine, Question(step_seconds=0.01))
    assert answer.measured is not None
    assert answer.measured.mbu == pytest.approx(0.405, abs=0.001)
    assert answer.measured.mfu is None
    with pytest.raises(UsageError, match="--peak-tflops"):
        machine.ridge("bf16")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("h100", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H200", "H200-SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
    ],
)
def test_names_that_tools_print(name: str, found: str) -> None:
    gpu = find_gpu(name)
    assert gpu is not None
    assert gpu.name == found


@pytest.mark.parametrize("name", ["H100 MIG 1g.10gb", "H10", "RTX 4090 D", "B300X", ""])
def test_a_name_that_only_resembles_is_not_taken(name: str) -> None:
    assert find_gpu(name) is None


def test_every_row_of_the_table_is_complete_and_dated() -> None:
    for gpu in TABLE:
        assert gpu.bandwidth
        assert gpu.memory
        assert gpu.peaks["bf16"] > 0
        assert any(f"20{year}" in gpu.source for year in range(18, 30)), gpu.name
        # Dense rates never shrink with the width of the numbers.
        assert gpu.peaks.get("fp8", 1e99) >= gpu.peaks["bf16"]
