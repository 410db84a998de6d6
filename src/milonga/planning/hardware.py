"""Accelerators by their vendors' data sheets, and how they are wired.

Invariant: rates are peaks; what is reached of them is calibrated (`calibrate`) or assumed (`LINK_SHARE`), never written here.
Prices are round assumptions to multiply with, no quotes: `--price` is the user's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from milonga.errors import UserError, suggest_name

LINK_SHARE = 0.7
"""Share of a link's rate that collective operations reach: assumed."""
NEAR_S, FAR_S = 10e-6, 30e-6
"""Seconds that a collective operation takes besides its bytes, within a node and across nodes: assumed."""


@dataclass(frozen=True)
class Accelerator:
    """One GPU in a node of several."""

    name: str
    flops: float
    """Dense bfloat16 operations a second."""
    bandwidth: float
    """Bytes a second of its memory."""
    memory: float
    """Bytes."""
    link: float
    """Bytes a second to the other GPUs of the node, one way."""
    network: float
    """Bytes a second to other nodes for each GPU, one way."""
    price: float
    """An hour of it, in any currency: an assumption."""
    node: int = 8
    """GPUs in a node."""
    host: float = 64e9
    """Bytes a second to the memory of its host, one way."""

    def gather_s(self, size: float, gpus: int) -> float:
        """Seconds of an all-gather (or reduce-scatter) of `size` bytes that are sharded over the GPUs. Bytes from other nodes
        come in by all network cards of a node at once, and are handed on within it."""
        if gpus <= 1:
            return 0.0
        inside = size * (gpus - 1) / gpus / self.link
        nodes = -(-gpus // self.node)
        outside = size * (nodes - 1) / nodes / (self.network * min(self.node, gpus))
        return max(inside, outside) / LINK_SHARE

    def reduce_s(self, gpus: int) -> tuple[float, float]:
        """Seconds per byte of a ring all-reduce over the GPUs of an engine, and its fixed delay in seconds."""
        rate, delay = (self.link, NEAR_S) if gpus <= self.node else (self.network, FAR_S)
        return 2 * (gpus - 1) / gpus / (rate * LINK_SHARE), delay

    def hand_over_s(self, size: float, lanes: int, near: bool) -> float:
        """Seconds to send or receive weights that are sharded over `lanes` GPUs, each with its own link."""
        return size / (lanes * (self.link if near else self.network) * LINK_SHARE)

    def offload_s(self, size: float) -> float:
        """Seconds to fetch so many bytes from the host, and to bring them there again."""
        return 2 * size / (self.host * LINK_SHARE)


ACCELERATORS = {
    one.name: one
    for one in (
        Accelerator("h200", 989e12, 4.8e12, 141e9, 450e9, 50e9, price=3.5),
        Accelerator("h100", 989e12, 3.35e12, 80e9, 450e9, 50e9, price=2.5),
        Accelerator("b200", 2250e12, 8.0e12, 180e9, 900e9, 50e9, price=5.0),
        Accelerator("a100-80", 312e12, 2.039e12, 80e9, 300e9, 25e9, price=1.5, host=32e9),
        Accelerator("l40s", 362e12, 0.864e12, 48e9, 32e9, 12.5e9, price=1.0, host=32e9),
    )
}


def find_accelerator(name: str) -> Accelerator:
    key = name.lower()
    if key not in ACCELERATORS:
        raise UserError(f"unknown accelerator '{name}': {suggest_name(key, ACCELERATORS)}")
    return ACCELERATORS[key]
