"""Everything `photon roofline` says about one model on one GPU, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sglang_photon.profiling.roofline.architecture import read_model
from sglang_photon.profiling.roofline.ceiling import Floor, Machine, turning_batch
from sglang_photon.profiling.roofline.config_file import text_section
from sglang_photon.profiling.roofline.formats import FORMS, Form, Formats, read_formats
from sglang_photon.profiling.roofline.measured import CACHE_BYTES, Measured, measure
from sglang_photon.profiling.roofline.shapes import ModelShape
from sglang_photon.profiling.roofline.work import (
    Work,
    decode_work,
    kv_bytes,
    prefill_work,
    stored_bytes,
)

GRID_BATCHES = (1, 8, 32, 128, 256)
GRID_CONTEXTS = (1024, 8192, 32768)
SMALLER = 0.75
"""Only formats that are smaller by a quarter or more are worth proposing."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        batch: rows of the decode step.
        context: cached tokens of each row.
        prompt: tokens of the prefill.
        image_tokens: how many of them come from images.
        weights: format of the weights, in place of the checkpoint's.
        kv: format of the KV cache, in place of the checkpoint's.
        step_seconds: a measured decode step, or None.
    """

    batch: int = 1
    context: int = 1024
    prompt: int = 1024
    image_tokens: int = 0
    weights: str | None = None
    kv: str | None = None
    step_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class DecodePoint:
    """The floor of one decode step.

    Attributes:
        label: what it is; empty in the grid.
        batch: rows.
        context: cached tokens of each row.
        floor: seconds.
        fits: weights and KV cache fit in memory; None where its size is not known.
    """

    label: str = ""
    batch: int
    context: int
    floor: Floor
    fits: bool | None

    @property
    def tokens_per_second(self) -> float:
        """The ceiling of all rows together."""
        return self.batch / self.floor.seconds


@dataclass(frozen=True, kw_only=True)
class Roof:
    """What needs both roofs of the GPU to be known.

    Attributes:
        ridge: FLOP per byte.
        peak_form: format that peak belongs to.
        decode: the decode step asked for.
        prefill: floor of the prefill asked for.
        turning: smallest batch whose decode step is bound by arithmetic; None: no batch is.
        grid: decode steps against batch and context.
        what_if: the same decode step after a change.
    """

    ridge: float
    peak_form: str
    decode: DecodePoint
    prefill: Floor
    turning: int | None
    grid: tuple[DecodePoint, ...]
    what_if: tuple[DecodePoint, ...]


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The answer.

    Attributes:
        question: what was asked.
        model: the shape of the model.
        formats: of its parts.
        machine: the GPU or GPUs.
        decode: work of the decode step.
        prefill: work of the prefill.
        rows_in_memory: rows of that context that fit; None where the memory is not known.
        roof: floors; None where the GPU is not known.
        measured: the measured step beside the roof, or None.
        notes: what was assumed.
    """

    question: Question
    model: ModelShape
    formats: Formats
    machine: Machine
    decode: Work
    prefill: Work
    rows_in_memory: int | None
    roof: Roof | None
    measured: Measured | None
    notes: tuple[str, ...]


def analyse(config: Mapping[str, Any], machine: Machine, question: Question) -> Analysis:
    """Answer a question about a model (its parsed config.json) on a machine.

    Raises:
        UsageError: the configuration cannot be used.
        ImpossibleMeasurementError: the measured step is faster than the hardware.
    """
    model = read_model(config)
    formats = read_formats(
        config,
        text_section(config)[0],
        dtype=model.dtype,
        layers=len(model.layers),
        weights=question.weights,
        kv=question.kv,
    )
    decode = decode_work(model, formats, batch=question.batch, context=question.context)
    prefill = prefill_work(
        model, formats, tokens=question.prompt, image_tokens=question.image_tokens
    )
    return Analysis(
        question=question,
        model=model,
        formats=formats,
        machine=machine,
        decode=decode,
        prefill=prefill,
        rows_in_memory=_rows(machine, model, formats, question.context),
        roof=_roof(machine, model, formats, question, prefill) if machine.is_known else None,
        measured=(
            measure(machine, decode, batch=question.batch, step_seconds=question.step_seconds)
            if question.step_seconds is not None
            else None
        ),
        notes=(*model.notes, *_notes(machine, model, formats)),
    )


def _roof(
    machine: Machine, model: ModelShape, formats: Formats, question: Question, prefill: Work
) -> Roof:
    batches = sorted({*GRID_BATCHES, question.batch})
    contexts = sorted({*GRID_CONTEXTS, question.context})
    form = formats.main.compute
    return Roof(
        ridge=machine.ridge(form),
        peak_form=machine.computes_in(form),
        decode=_point(machine, model, formats, question.batch, question.context),
        prefill=machine.floor(prefill),
        turning=turning_batch(machine, model, formats, context=question.context),
        grid=tuple(
            _point(machine, model, formats, batch, context)
            for context in contexts
            for batch in batches
        ),
        what_if=tuple(_what_if(machine, model, formats, question)),
    )


def _what_if(
    machine: Machine, model: ModelShape, formats: Formats, question: Question
) -> list[DecodePoint]:
    """The decode step with smaller weights, a smaller cache, both, and twice the rows."""
    batch, context = question.batch, question.context
    smaller = [
        form
        for name, form in FORMS.items()
        if name in ("fp8", "int4", "nvfp4")
        and form.bits < SMALLER * formats.main.bits
        and (name != "nvfp4" or "fp4" in machine.gpu.peaks)
        and (name != "fp8" or "fp8" in machine.gpu.peaks)
    ]
    choices = [(f"weights in {form.name}", _with_weights(formats, form), batch) for form in smaller]
    if formats.kv_size > 1:
        choices.append(("KV cache in fp8", replace(formats, kv="fp8"), batch))
        choices += [
            (
                f"weights in {form.name}, KV cache in fp8",
                replace(_with_weights(formats, form), kv="fp8"),
                batch,
            )
            for form in smaller[:1]
        ]
    choices.append(("twice the batch", formats, 2 * batch))
    return [
        _point(machine, model, changed, rows, context, label) for label, changed, rows in choices
    ]


def _with_weights(formats: Formats, form: Form) -> Formats:
    return replace(formats, attention=form, feed_forward=form, experts=form)


def _point(
    machine: Machine,
    model: ModelShape,
    formats: Formats,
    batch: int,
    context: int,
    label: str = "",
) -> DecodePoint:
    rows = _rows(machine, model, formats, context)
    work = decode_work(model, formats, batch=batch, context=context)
    return DecodePoint(
        label=label,
        batch=batch,
        context=context,
        floor=machine.floor(work),
        fits=None if rows is None else batch <= rows,
    )


def _rows(machine: Machine, model: ModelShape, formats: Formats, context: int) -> int | None:
    per_row = kv_bytes(model, formats, max(context, 1), everything=True)
    return machine.rows_in_memory(stored_bytes(model, formats), per_row)


def _notes(machine: Machine, model: ModelShape, formats: Formats) -> list[str]:
    notes = []
    if any(layer.feed_forward.experts for layer in model.layers):
        notes.append(
            "experts read per step are those that even random routing would choose; skewed "
            "routing reads fewer"
        )
    form = formats.main.compute
    if machine.gpu.peaks and form != "bf16" and machine.computes_in(form) == "bf16":
        notes.append(
            f"no {form} peak of {machine.gpu.name} is in the table: products of "
            f"{formats.main.name} weights are counted at the {machine.computes_in(form)} peak"
        )
    bytes_read = decode_work(model, formats, batch=1, context=1).bytes
    if bytes_read <= CACHE_BYTES:
        notes.append(
            "a model this small may stay in the GPU's cache: its memory floor need not hold"
        )
    return notes
