"""Offloading: tensors that are not needed on the device for a while are moved to host memory.

An offloaded tensor stays the same object for its references (an optimizer, a list of versions, a module); only its memory
moves. Invariants: a tensor that comes back has the same bits; an offloaded tensor is an ordinary one on the host, so that
reading it (for a checkpoint, a fingerprint) takes no device memory.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def move_to_host(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Offload tensors to host memory: pinned if their device is a GPU, which is quicker. For a CPU they are copied as well, so
    that tests there run the same code."""
    for tensor in tensors:
        away = torch.empty_like(tensor, device="cpu", pin_memory=device.type == "cuda")
        tensor.data = away.copy_(tensor)  # waits: from here on the host may read it


@torch.no_grad()
def move_to_device(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Move offloaded tensors back to the device. Torch frees pinned memory only when the copy is done."""
    for tensor in tensors:
        here = torch.empty_like(tensor, device=device)
        tensor.data = here.copy_(tensor, non_blocking=True)
