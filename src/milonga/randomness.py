"""Randomness keyed by what it is for, never by history (law 7): a resumed run draws what the first one would have drawn."""

from __future__ import annotations

import hashlib


def key64(*parts: object) -> int:
    """A 63-bit key of (seed, turn, agent, problem, rollout) or any other tuple of plain values."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
