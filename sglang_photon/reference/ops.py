"""The kernels of `sgl_kernel` that dense models use, in plain torch, for any device.

They are for a CUDA machine that has torch but no kernel wheel. Each has the signature and the
in-place semantics of its namesake: it computes in float32 and rounds once, on the way out.

What a CUDA run of Qwen2.5-VL calls there (read in SGLang 0.5.23; not seen on a GPU yet):

* `rmsnorm`, `fused_add_rmsnorm`: every norm, of the text model and of the vision tower
  (`layers/layernorm.py`), unless ``SGLANG_FORCE_FUSED_OP_BACKEND=torch`` sends norms, activations
  and rotary embedding through upstream's own plain-torch code. `child_environment` sets that
  variable, because activations and 1-D rotary embedding are otherwise compiled at run time, which
  needs nvcc; `silu_and_mul` is only used for widths that the compiled kernel does not take.
* M-RoPE is a Triton kernel; the vision tower's rotary embedding goes through torch.compile.
* `top_k_renorm_prob`, `top_p_renorm_prob`: imported by `layers/sampler.py`; called by the
  flashinfer sampler only, so ``--sampling-backend pytorch`` does without.
* `is_arch_support_pdl`: called by the Triton attention backend when it starts.
* `weak_ref_tensor`: called while CUDA graphs are captured piecewise.
* Attention itself needs ``--attention-backend triton`` and ``--mm-attention-backend sdpa``.
"""

# The names of parameters belong to the signatures, also those that only a real kernel needs.
# ruff: noqa: A002, ARG001

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Tensor = torch.Tensor


def _normalise(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """`x` [..., H] float32 divided by its root mean square over H, times `gain` [H] float32."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * gain


def _into(out: Tensor | None, value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if out is None else out.copy_(value)


def rmsnorm(
    input: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    out: Tensor | None = None,
    enable_pdl: bool | None = None,
) -> Tensor:
    """Root-mean-square norm of `input` [..., H] with `weight` [H]; into `out` if given."""
    return _into(out, _normalise(input.float(), weight.float(), eps), input.dtype)


def gemma_rmsnorm(
    input: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    out: Tensor | None = None,
    enable_pdl: bool | None = None,
) -> Tensor:
    """As `rmsnorm`, with a gain of ``1 + weight``."""
    return _into(out, _normalise(input.float(), 1.0 + weight.float(), eps), input.dtype)


def _add_and_normalise(x: Tensor, residual: Tensor, gain: Tensor, eps: float) -> None:
    total = x.float() + residual.float()
    residual.copy_(total)
    x.copy_(_normalise(total, gain, eps))


def fused_add_rmsnorm(
    input: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """In place: ``residual += input``, then `input` becomes the norm of that sum."""
    _add_and_normalise(input, residual, weight.float(), eps)


def gemma_fused_add_rmsnorm(
    input: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """As `fused_add_rmsnorm`, with a gain of ``1 + weight``."""
    _add_and_normalise(input, residual, 1.0 + weight.float(), eps)


def _gated(activation: Callable[[Tensor], Tensor], x: Tensor, out: Tensor | None) -> Tensor:
    gate, up = x.float().chunk(2, dim=-1)
    return _into(out, activation(gate) * up, x.dtype)


def silu_and_mul(input: Tensor, out: Tensor | None = None) -> Tensor:
    """``silu(a) * b`` for `input` [..., 2D] = a ‖ b; [..., D], into `out` if given."""
    return _gated(functional.silu, input, out)


def gelu_and_mul(input: Tensor, out: Tensor | None = None) -> Tensor:
    """``gelu(a) * b`` for `input` [..., 2D] = a ‖ b; [..., D], into `out` if given."""
    return _gated(functional.gelu, input, out)


def gelu_tanh_and_mul(input: Tensor, out: Tensor | None = None) -> Tensor:
    """As `gelu_and_mul`, with gelu's tanh approximation."""
    return _gated(lambda gate: functional.gelu(gate, approximate="tanh"), input, out)


def gelu_quick(input: Tensor, out: Tensor | None = None) -> Tensor:
    """``x * sigmoid(1.702 x)``, elementwise; into `out` if given."""
    x = input.float()
    return _into(out, x * torch.sigmoid(1.702 * x), input.dtype)


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool = True,
) -> None:
    """Rotates `query` and `key` in place.

    Args:
        positions: [T] integers.
        query: [T, heads * head_size] or [T, heads, head_size]; rows may be strided.
        key: like `query`, with its own number of heads; or None.
        head_size: elements per head; only the first R of them are rotated.
        cos_sin_cache: [max_position, R]: R/2 cosines, then R/2 sines.
        is_neox: pairs are (i, i + R/2); otherwise (2i, 2i + 1).
    """
    cos, sin = cos_sin_cache[positions.flatten()].float().unsqueeze(1).chunk(2, dim=-1)
    half = cos.shape[-1]
    for tensor in (query, key):
        if tensor is None:
            continue
        rotated = tensor.view(positions.numel(), -1, head_size)[..., : 2 * half]
        if is_neox:
            first, second = rotated[..., :half], rotated[..., half:]
        else:
            first, second = rotated[..., ::2], rotated[..., 1::2]
        a, b = first.float(), second.float()
        turned = a * cos - b * sin, b * cos + a * sin
        first.copy_(turned[0])
        second.copy_(turned[1])


def _per_row(value: Tensor | float, probs: Tensor) -> Tensor:
    column = torch.as_tensor(value, device=probs.device).reshape(-1, 1)
    return column.expand(probs.shape[0], 1)


def top_k_renorm_prob(probs: Tensor, top_k: Tensor | int) -> Tensor:
    """`probs` [B, V] with all but the `top_k` ([B] or one number) largest zero; rows sum to 1.

    Entries as large as the smallest kept one are kept too. The result is float32.
    """
    probs = probs.float()
    ordered = probs.sort(dim=-1, descending=True).values
    last = (_per_row(top_k, probs).long() - 1).clamp(0, probs.shape[-1] - 1)
    kept = probs.masked_fill(probs < ordered.gather(-1, last), 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)


def top_p_renorm_prob(probs: Tensor, top_p: Tensor | float) -> Tensor:
    """`probs` [B, V] cut to the smallest set whose sum reaches `top_p`; rows sum to 1; float32."""
    probs = probs.float()
    ordered, order = probs.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    kept = ordered.masked_fill(before >= _per_row(top_p, probs), 0.0)
    # The likeliest token stays whatever `top_p` is.
    kept[..., 0] = ordered[..., 0]
    result = torch.zeros_like(probs).scatter_(-1, order, kept)
    return result / result.sum(dim=-1, keepdim=True)


def weak_ref_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself: it lives longer than a weak reference would keep it, which is correct."""
    return tensor


def is_arch_support_pdl() -> bool:
    """Whether kernels may overlap their launches (programmatic dependent launch): never here."""
    return False


KERNELS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        fused_add_rmsnorm,
        gelu_and_mul,
        gelu_quick,
        gelu_tanh_and_mul,
        gemma_fused_add_rmsnorm,
        gemma_rmsnorm,
        is_arch_support_pdl,
        rmsnorm,
        rotary_embedding,
        silu_and_mul,
        top_k_renorm_prob,
        top_p_renorm_prob,
        weak_ref_tensor,
    )
}
