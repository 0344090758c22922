"""Reference operations against formulas written another way, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from sglang_photon.reference import ops

DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
EPS = 1e-5

Unary = Callable[[float], float]


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def assert_near(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


def norm64(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """sqrt(H) x / |(x, sqrt(H eps))|, the same thing as a geometric length."""
    rows = x.double()
    width = x.shape[-1]
    length = torch.hypot(rows.norm(dim=-1, keepdim=True), torch.tensor(math.sqrt(width * EPS)))
    return math.sqrt(width) * rows / length * gain.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "shift"), [("rmsnorm", 0.0), ("gemma_rmsnorm", 1.0)])
def test_norm_returns_and_fills_out(name: str, shift: float, dtype: torch.dtype) -> None:
    x, weight = random(5, 96, dtype=dtype), random(96, dtype=dtype, seed=1)
    kept, out = x.clone(), torch.empty_like(x)
    function = ops.KERNELS[name]
    result = function(x, weight, EPS)
    assert_near(result, norm64(x, weight.double() + shift), dtype)
    assert function(x, weight, EPS, out=out, enable_pdl=True) is out
    assert torch.equal(out, result)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "shift"), [("fused_add_rmsnorm", 0.0), ("gemma_fused_add_rmsnorm", 1.0)]
)
def test_add_and_norm_work_in_place(name: str, shift: float, dtype: torch.dtype) -> None:
    x, residual = random(5, 96, dtype=dtype), random(5, 96, dtype=dtype, seed=1)
    weight = random(96, dtype=dtype, seed=2)
    total = x.double() + residual.double()
    assert ops.KERNELS[name](x, residual, weight, EPS) is None
    assert_near(residual, total, dtype)
    assert_near(x, norm64(total, weight.double() + shift), dtype)


def silu(value: float) -> float:
    return value / (1.0 + math.exp(-value))


def gelu(value: float) -> float:
    return value * 0.5 * math.erfc(-value / math.sqrt(2.0))


def gelu_tanh(value: float) -> float:
    inner = math.sqrt(2.0 / math.pi) * (value + 0.044715 * value**3)
    return value * (1.0 - 1.0 / (math.exp(2.0 * inner) + 1.0))


def gelu_quick(value: float) -> float:
    return value / (1.0 + math.exp(-1.702 * value))


def each(function: Unary, x: torch.Tensor) -> torch.Tensor:
    values = [function(value) for value in x.double().flatten().tolist()]
    return torch.tensor(values, dtype=torch.float64).reshape(x.shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "activation"),
    [("silu_and_mul", silu), ("gelu_and_mul", gelu), ("gelu_tanh_and_mul", gelu_tanh)],
)
def test_gated_activation(name: str, activation: Unary, dtype: torch.dtype) -> None:
    x = 2 * random(3, 4, 22, dtype=dtype)
    out = torch.empty(3, 4, 11, dtype=dtype)
    result = ops.KERNELS[name](x)
    assert_near(result, each(activation, x[..., :11]) * x[..., 11:].double(), dtype)
    assert ops.KERNELS[name](x, out) is out
    assert torch.equal(out, result)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_quick_keeps_the_width(dtype: torch.dtype) -> None:
    x = 2 * random(7, 9, dtype=dtype)
    assert_near(ops.gelu_quick(x, torch.empty_like(x)), each(gelu_quick, x), dtype)


def rotated64(
    x: torch.Tensor, positions: torch.Tensor, rotary: int, *, is_neox: bool
) -> torch.Tensor:
    """Rotation as a product of complex numbers; the head's tail is passed through."""
    head = x.double()[..., :rotary]
    pairs = head.unflatten(-1, (2, -1)).mT if is_neox else head.unflatten(-1, (-1, 2))
    frequencies = 1.0 / 100.0 ** (torch.arange(0, rotary, 2, dtype=torch.float64) / rotary)
    angles = torch.outer(positions.double(), frequencies)[:, None, :]
    turned = torch.view_as_real(
        torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles)
    )
    turned = turned.mT.flatten(-2) if is_neox else turned.flatten(-2)
    return torch.cat([turned, x.double()[..., rotary:]], dim=-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("rotary", [16, 8])
def test_rotary_embedding_in_place_on_strided_rows(
    dtype: torch.dtype, is_neox: bool, rotary: int
) -> None:
    tokens, query_heads, key_heads, head = 5, 4, 2, 16
    packed = random(tokens, (query_heads + 2 * key_heads) * head, dtype=dtype)
    query, key, value = packed.split([query_heads * head, key_heads * head, key_heads * head], -1)
    before_query = query.reshape(tokens, query_heads, head).clone()
    before_key = key.reshape(tokens, key_heads, head).clone()
    before_value = value.clone()
    positions = torch.tensor([0, 3, 1, 7, 7])
    frequencies = 1.0 / 100.0 ** (torch.arange(0, rotary, 2, dtype=torch.float64) / rotary)
    angles = torch.outer(torch.arange(8, dtype=torch.float64), frequencies)
    cache = torch.cat([angles.cos(), angles.sin()], dim=-1).float()

    ops.rotary_embedding(positions, query, key, head, cache, is_neox)

    for now, before in ((query, before_query), (key, before_key)):
        expected = rotated64(before, positions, rotary, is_neox=is_neox)
        assert_near(now.reshape(before.shape), expected, dtype)
    assert torch.equal(value, before_value)


def test_rotary_embedding_without_key() -> None:
    query = torch.ones(1, 2, 4)
    cache = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    ops.rotary_embedding(torch.tensor([0]), query, None, 4, cache)
    assert query[0, 0].tolist() == [-1.0, -1.0, 1.0, 1.0]


def test_top_k_keeps_the_largest_and_ties() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.25, 0.25, 0.5]])
    torch.testing.assert_close(
        ops.top_k_renorm_prob(probs, torch.tensor([1, 2])),
        torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.25, 0.5]]),
    )
    torch.testing.assert_close(ops.top_k_renorm_prob(probs, 1 << 30), probs)


def test_top_p_keeps_the_smallest_sufficient_set() -> None:
    probs = torch.tensor([[0.2, 0.5, 0.3], [0.2, 0.5, 0.3], [0.2, 0.5, 0.3]])
    torch.testing.assert_close(
        ops.top_p_renorm_prob(probs, torch.tensor([0.6, 1.0, 0.0])),
        torch.tensor([[0.0, 0.625, 0.375], [0.2, 0.5, 0.3], [0.0, 1.0, 0.0]]),
    )


def test_the_small_ones() -> None:
    tensor = torch.zeros(2)
    assert ops.weak_ref_tensor(tensor) is tensor
    assert ops.is_arch_support_pdl() is False
