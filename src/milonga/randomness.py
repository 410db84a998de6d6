"""Randomness keyed by what it is for, never by history (law 7): a resumed run draws what the first one would have drawn."""

from __future__ import annotations

import hashlib
import random


def _hash_key(parts: tuple[object, ...], size: int) -> int:
    """Hash a tuple of plain values to an integer of so many bytes."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=size).digest(), "big")


def key64(*parts: object) -> int:
    """A 63-bit key of (seed, turn, agent, problem, rollout) or any other tuple of plain values."""
    return _hash_key(parts, 8) >> 1


def keyed_rng(*parts: object) -> random.Random:
    """Make a random source that depends on its key alone."""
    return random.Random(_hash_key(parts, 16))
