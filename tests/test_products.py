"""Products by oneDNN are MKL's, up to rounding; and they are asked for only where that is possible."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from milonga.engine.local import products

UNIT = 2.0**-24
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that oneDNN was given. Here it counts as the faster one, whatever the processor."""
    shapes: list[tuple[int, ...]] = []
    real = products.multiply_in_parts

    def spy(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shapes.append((*x.shape, len(weight)))
        return real(x, weight, bias)

    monkeypatch.setattr(products, "has_faster_products", lambda: True)
    monkeypatch.setattr(products, "multiply_in_parts", spy)
    return shapes


@needs_onednn
@torch.no_grad()
@pytest.mark.parametrize("size", [1, 192, 208, 256, 384, 400, 512, 1000])
@pytest.mark.parametrize("biased", [False, True])
def test_products_are_right(asked: list[tuple[int, ...]], size: int, biased: bool) -> None:
    """Every way of summing `size` products errs by at most about size · 2⁻²⁴ of the sum of their magnitudes."""
    torch.manual_seed(size)
    x, weight = torch.randn(2, 40, size), torch.randn(96, size)
    bias = torch.randn(96) if biased else None
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    bound = (size + 2) * UNIT * (x.double().abs() @ weight.double().abs().T + (0 if bias is None else bias.double().abs()))
    for given in (weight, weight.T.contiguous().T):  # as rows, and as the transposed weights of a backward pass
        found = products.multiply(x, given, bias)
        assert found.shape == (2, 40, 96)
        assert ((found.double() - exact).abs() <= bound).all()
    assert asked == [(80, size, 96)] * 2


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (torch.ones(31, 64), torch.ones(64, 64)),  # few rows
        (torch.ones(64, 64), torch.ones(31, 64)),  # few columns
        (torch.ones(64, 64, dtype=torch.float64), torch.ones(64, 64, dtype=torch.float64)),
        (torch.ones(64, 64, dtype=torch.bfloat16), torch.ones(64, 64, dtype=torch.bfloat16)),
        (torch.ones(64, 259), torch.ones(64, 259)),  # MKL halves it, nobody knows where
    ],
)
def test_others_are_torchs_own(asked: list[tuple[int, ...]], x: Tensor, weight: Tensor) -> None:
    with torch.no_grad():
        assert torch.equal(products.multiply(x, weight), F.linear(x, weight))
    assert asked == []


def test_what_is_differentiated_is_torchs_own(asked: list[tuple[int, ...]]) -> None:
    x, weight = torch.ones(64, 64), torch.ones(64, 64, requires_grad=True)
    products.multiply(x, weight).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None and torch.equal(weight.grad, torch.full((64, 64), 64.0))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert products.multiply(x, weight).dtype == torch.bfloat16
    assert asked == []


@needs_onednn
@torch.no_grad()
def test_a_models_own_layers_take_them_too(asked: list[tuple[int, ...]]) -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(64, 32), torch.randn(2, 20, 64)
    plain = layer(x)
    with products.use_faster_products(torch.device("cpu")):
        found = layer(x)
    assert asked == [(40, 64, 32)]
    torch.testing.assert_close(found, plain)  # both err by less than 64 · 2⁻²⁴ of terms near one
    layer(x)
    assert len(asked) == 1
