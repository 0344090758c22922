"""The answer of `photon roofline`, for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sglang_photon.profiling.roofline.analysis import Analysis, DecodePoint, Roof
from sglang_photon.profiling.roofline.measured import Measured
from sglang_photon.profiling.roofline.work import stored_bytes


def as_json(answer: Analysis) -> dict[str, Any]:
    """The answer as plain JSON values; what is not known is null."""
    gpu, roof, question = answer.machine.gpu, answer.roof, answer.question
    return {
        "gpu": gpu.name,
        "gpus": answer.machine.count,
        "gpu_source": gpu.source,
        "bandwidth_bytes_per_s": gpu.bandwidth,
        "peak_flop_per_s": gpu.peaks.get(roof.peak_form) if roof else None,
        "peak_format": roof.peak_form if roof else None,
        "family": answer.model.family,
        "params": answer.model.params,
        "text_params": answer.model.text_params,
        "active_params": answer.model.active_params,
        "weight_format": answer.formats.main.name,
        "kv_format": answer.formats.kv,
        "stored_weight_bytes": stored_bytes(answer.model, answer.formats),
        "batch": question.batch,
        "context": question.context,
        "prompt": question.prompt,
        "ridge_flop_per_byte": roof.ridge if roof else None,
        "decode_weight_bytes": answer.decode.weight_bytes,
        "decode_kv_bytes": answer.decode.kv_bytes,
        "decode_flop": sum(answer.decode.flop.values()),
        "decode_intensity_flop_per_byte": answer.decode.intensity,
        "decode_floor_ms": roof.decode.floor.seconds * 1e3 if roof else None,
        "decode_bound": roof.decode.floor.bound if roof else None,
        "decode_ceiling_tok_s": roof.decode.tokens_per_second if roof else None,
        "compute_bound_batch": roof.turning if roof else None,
        "rows_in_memory": answer.rows_in_memory,
        "prefill_flop": sum(answer.prefill.flop.values()),
        "prefill_floor_ms": roof.prefill.seconds * 1e3 if roof else None,
        "prefill_bound": roof.prefill.bound if roof else None,
        "grid": [_point(point) for point in roof.grid] if roof else [],
        "what_if": [_point(point) for point in roof.what_if] if roof else [],
        "measured": _measured(answer.measured),
        "notes": list(answer.notes),
    }


def _point(point: DecodePoint) -> dict[str, Any]:
    labelled = {"change": point.label} if point.label else {}
    return labelled | {
        "batch": point.batch,
        "context": point.context,
        "floor_ms": point.floor.seconds * 1e3,
        "tok_s": point.tokens_per_second,
        "bound": point.floor.bound,
        "fits": point.fits,
    }


def _measured(measured: Measured | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    return {
        "step_ms": measured.step_seconds * 1e3,
        "tok_s": measured.tokens_per_second,
        "bytes_per_s": measured.bytes_per_second,
        "flop_per_s": measured.flop_per_second,
        "mbu": measured.mbu,
        "mfu": measured.mfu,
        "floor_share": measured.floor_share,
        "note": measured.note,
    }


def as_text(answer: Analysis) -> str:
    """The answer in at most 79 columns, notes apart."""
    return "\n".join(line.rstrip() for line in _lines(answer)) + "\n"


def _lines(answer: Analysis) -> Iterator[str]:
    yield from _model(answer)
    yield from _gpu(answer)
    question, work, roof = answer.question, answer.decode, answer.roof
    yield ""
    yield f"Decode, batch {question.batch}, context {question.context}"
    yield _row("weights", f"{_gigabytes(work.weight_bytes)} per step")
    yield _row("KV cache", f"{_gigabytes(work.kv_bytes)} per step")
    yield _row("intensity", f"{work.intensity:.3g} FLOP/byte")
    if roof:
        yield from _decode(answer, roof)
    if answer.measured:
        yield from _reached(answer.measured)
    if roof:
        yield from _prefill(answer, roof)
        yield from _grid(roof.grid)
        yield from _changes(roof)
    for note in answer.notes:
        yield f"note: {note}"


def _model(answer: Analysis) -> Iterator[str]:
    model, formats = answer.model, answer.formats
    yield f"Model: {model.family or 'decoder'}"
    parts = f"{_billions(model.params)}"
    if model.vision:
        parts += f", of which {_billions(model.vision.params)} in the vision tower"
    yield _row("parameters", parts)
    if model.active_params != model.text_params:
        yield _row("per token", f"{_billions(model.active_params)} (table included)")
    forms = {formats.attention.name, formats.feed_forward.name, formats.experts.name}
    rest = f"; rest in {formats.plain.name}" if forms != {formats.plain.name} else ""
    size = _gigabytes(stored_bytes(model, formats))
    yield _row("weights", f"{formats.main.name}{rest}: {size}; KV cache in {formats.kv}")


def _gpu(answer: Analysis) -> Iterator[str]:
    gpu, count = answer.machine.gpu, answer.machine.count
    yield ""
    yield f"GPU: {gpu.name}" + (f" x {count}, shared without loss" if count > 1 else "")
    if gpu.bandwidth:
        yield _row("bandwidth", f"{gpu.bandwidth / 1e12:.4g} TB/s")
    if answer.roof:
        form = answer.roof.peak_form
        yield _row("dense peak", f"{gpu.peaks[form] / 1e12:.5g} TFLOP/s in {form}")
        yield _row("ridge point", f"{answer.roof.ridge:.0f} FLOP/byte")
    yield _row("source", gpu.source or "none: this GPU is not in the table")


def _decode(answer: Analysis, roof: Roof) -> Iterator[str]:
    point, context = roof.decode, answer.question.context
    bound = "arithmetic" if point.floor.bound == "compute" else "memory"
    yield _row("floor", f"{_ms(point.floor.seconds)} per step, bound by {bound}")
    yield _row(
        "ceiling",
        f"{_number(point.tokens_per_second)} tok/s, {_number(1 / point.floor.seconds)} per request",
    )
    if roof.turning is None:
        turning = f"no batch: at {context} tokens a row's KV cache outweighs its arithmetic"
    else:
        turning = f"from batch {roof.turning} on"
    yield _row("compute bound", turning)
    if answer.rows_in_memory is not None:
        yield _row("memory holds", f"{answer.rows_in_memory} rows of that context")


def _reached(measured: Measured) -> Iterator[str]:
    yield ""
    tokens = _number(measured.tokens_per_second)
    yield f"Measured: {_ms(measured.step_seconds)} per step, {tokens} tok/s"
    yield _row("MBU", f"{_share(measured.mbu)} ({measured.bytes_per_second / 1e9:.5g} GB/s)")
    yield _row("MFU", f"{_share(measured.mfu)} ({measured.flop_per_second / 1e12:.4g} TFLOP/s)")
    if measured.floor_share is not None:
        yield _row("of the floor", _share(measured.floor_share))
    if measured.note:
        yield _row("note", measured.note)


def _prefill(answer: Analysis, roof: Roof) -> Iterator[str]:
    yield ""
    bound = "arithmetic" if roof.prefill.bound == "compute" else "memory"
    steps = roof.prefill.seconds / roof.decode.floor.seconds
    yield f"Prefill of {answer.question.prompt} tokens"
    yield _row("floor", f"{_ms(roof.prefill.seconds)}, bound by {bound}: {steps:.1f} decode steps")


def _grid(grid: Sequence[DecodePoint]) -> Iterator[str]:
    batches = sorted({point.batch for point in grid})
    yield ""
    yield "Decode floor in ms per step, and tok/s"
    yield f"{'context':>9}" + "".join(f"{f'batch {batch}':>11}" for batch in batches)
    for context in sorted({point.context for point in grid}):
        row = [point for point in grid if point.context == context]
        yield f"{context:>9}" + "".join(
            f"{_number(point.floor.seconds * 1e3) + _mark(point):>11}" for point in row
        )
        yield " " * 9 + "".join(f"{_number(point.tokens_per_second):>11}" for point in row)
    yield "  (c: bound by arithmetic; !: does not fit in memory)"


def _changes(roof: Roof) -> Iterator[str]:
    yield ""
    yield "What a change would give"
    for point in roof.what_if:
        gain = point.tokens_per_second / roof.decode.tokens_per_second - 1
        fits = ", does not fit in memory" if point.fits is False else ""
        yield f"  {point.label:<36}{_ms(point.floor.seconds):>9}  {gain:+5.0%} tok/s{fits}"


def _mark(point: DecodePoint) -> str:
    return ("c" if point.floor.bound == "compute" else "") + ("!" if point.fits is False else "")


def _row(name: str, value: str) -> str:
    return f"  {name:<15}{value}"


def _ms(seconds: float) -> str:
    return f"{_number(seconds * 1e3)} ms"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _share(share: float | None) -> str:
    return "unknown" if share is None else f"{_number(share * 100)} %"


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"


def _billions(count: float) -> str:
    return f"{count / 1e9:.3f} billion" if count >= 1e8 else f"{count / 1e6:.3f} million"
