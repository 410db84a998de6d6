"""Matrix products in float32 on a CPU, by the faster of torch's two libraries.

By default MKL computes them, which does not use AVX-512 on AMD's processors. There oneDNN is about twice as fast; it is asked
where `has_faster_products` says so, and where nothing is to be differentiated. Sums are cut into parts as MKL cuts them, so
that the results are MKL's: to the last bit where that was tried (`scripts/check_numbers.py`), within rounding in any case.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

PART = 192
"""Products that MKL sums up before it adds them to the sum so far."""
FEWEST = 32
"""Rows from which on oneDNN is the faster one."""


@cache
def has_faster_products() -> bool:
    """Whether products by oneDNN are faster here than by MKL."""
    able = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return able and torch.backends.cpu.get_cpu_capability() == "AVX512" and _read_vendor() == "AuthenticAMD"


def _read_vendor() -> str:
    """Who made the processor; nothing where the system does not tell."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.rpartition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W' + b, as `F.linear` has it."""
    if not _suits(x, weight):
        return F.linear(x, weight, bias)
    y = multiply_in_parts(x.reshape(-1, x.shape[-1]), weight, bias)
    return y.view(*x.shape[:-1], len(weight))


def _suits(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN may take this product, and is faster with it."""
    size = x.shape[-1]
    return (
        has_faster_products()
        and not torch.is_grad_enabled()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and len(weight) >= FEWEST
        and x.numel() >= FEWEST * size
        and (size <= PART or size % 16 == 0 or size > 2 * PART)  # how MKL would halve others is not known
    )


def multiply_in_parts(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of a matrix by oneDNN, with sums cut as MKL cuts them."""
    size = x.shape[-1]
    part = PART if size <= PART or size > 2 * PART else size // 2
    total: Tensor | None = None
    for some, of_weight in zip(x.split(part, -1), weight.split(part, -1), strict=True):
        if of_weight.stride(0) != 1:
            of_weight = of_weight.contiguous()  # else a slow reference implementation would take it
        found = torch.ops.mkldnn._linear_pointwise(some, of_weight, bias if total is None else None, "none", [], "")
        total = found if total is None else total.add_(found)
    assert total is not None
    return total


class _FasterProducts(TorchFunctionMode):
    """Linear layers of any model by `multiply`."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (multiply if func is F.linear else func)(*args, **(kwargs or {}))


def use_faster_products(device: torch.device) -> AbstractContextManager[Any]:
    """Context manager in which a model's own linear layers go through `multiply`, where that can be faster."""
    return _FasterProducts() if device.type == "cpu" and has_faster_products() else nullcontext()
