"""What is not needed on the device for a while lies in host memory.

A tensor that is put away stays the object it is, for whoever points to it (an optimiser, a list of versions, a module); only
its memory is another. Invariants: what comes back has the same bits; a tensor that is away is an ordinary one on the host, so
that to read it (for a checkpoint, a fingerprint) takes no room on the device.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def put_away(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Into memory of the host: pinned where the device that they are for is a GPU, which is quicker. For a CPU they are copied
    as well: what is tested there is what runs elsewhere."""
    for tensor in tensors:
        away = torch.empty_like(tensor, device="cpu", pin_memory=device.type == "cuda")
        tensor.data = away.copy_(tensor)  # waits: from here on the host may read it


@torch.no_grad()
def bring_back(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Into memory of the device. Pinned memory is given up only when the copy is done: torch sees to that."""
    for tensor in tensors:
        here = torch.empty_like(tensor, device=device)
        tensor.data = here.copy_(tensor, non_blocking=True)
