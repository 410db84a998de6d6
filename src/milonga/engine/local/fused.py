"""Fused kernels for element-wise work.

Between two matrix products a GPU waits for memory: every pass over a tensor that is not fused into another one costs as much
as arithmetic that nobody asked for. Functions marked `fused` are compiled where they compute in half precision on a GPU; on a
CPU, and for small models in float32, they run as they are written: compiling would take longer than it could ever save.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")
HALF = (torch.bfloat16, torch.float16)
VARIANTS = 64
"""Compiled forms of one function: with and without gradients, adapters, and a bias, for every model of a process."""


def compile_fused(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: compile a function into one kernel, or few, for every number of tokens (the first axis of all tensors with
    more than one)."""
    compiled: Callable[P, T] | None = None
    broken = False

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        nonlocal compiled, broken
        if broken or not _should_compile(args):
            return function(*args, **kwargs)
        if compiled is None:
            compiled = compile_for_any_length(function)
        try:
            return compiled(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            broken = True
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"'{function.__name__}' cannot be compiled and runs unfused, which is slower: {reason}", stacklevel=2)
            return function(*args, **kwargs)

    return call


def compile_for_any_length(function: Callable[P, T], **options: Any) -> Callable[P, T]:
    """Compile a function once for all numbers of tokens, but for fixed widths: those make better kernels."""
    torch._dynamo.config.recompile_limit = max(VARIANTS, torch._dynamo.config.recompile_limit)
    if hasattr(torch._functorch.config, "force_non_lazy_backward_lowering"):
        # Both passes are compiled at once: a backward pass that cannot be is found out where the plain function can step in.
        torch._functorch.config.force_non_lazy_backward_lowering = True
    compiled = torch.compile(function, **options)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for value in args:
            if isinstance(value, Tensor) and value.dim() > 1:
                torch._dynamo.maybe_mark_dynamic(value, 0)
        return compiled(*args, **kwargs)

    return call


def _should_compile(args: tuple[Any, ...]) -> bool:
    on_gpu = any(isinstance(value, Tensor) and value.is_cuda for value in args)
    return on_gpu and any(getattr(value, "dtype", value) in HALF for value in args)


def matmul_float32(left: Tensor, right: Tensor) -> Tensor:
    """Matrix product in any precision with a float32 result, on a GPU not rounded before: gradients of weights are summed over
    micro-batches."""
    if left.is_cuda and left.dtype in HALF:
        return torch.mm(left, right, out_dtype=torch.float32)
    return widen_to_float32(left @ right)


def widen_to_float32(x: Tensor) -> Tensor:
    """Cast to at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
