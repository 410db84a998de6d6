"""The prefix cache of the CUDA sampler: finished rows stay in the decoder's slots, and later turns can continue them.

Nothing is copied to keep it. A slot holds its history until another row is given the slot: what keeps histories is to have more
slots than a call decodes in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from milonga.engine.local.history import LocalHistory, Pages, hash_pages

LEAST = 64
"""Ids that a history must have in common with a row to be found, and the grain of the search. Names of shorter pieces take
longer to compute than a GPU takes to read the tokens again."""


class KeptSlots:
    """Slots with the ids whose keys and values they hold, oldest first, of one history."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[NDArray[np.int64], list[bytes]]] = {}
        self.names: dict[bytes, set[int]] = {}
        """The slots whose rows begin with each piece."""
        self.of: tuple[LocalHistory, int] | None = None

    def use_history(self, pages: Pages | None) -> None:
        """Use a history. Slots of conversations that are over, or of other weights, are forgotten."""
        wanted = None if pages is None else (pages.history, pages.history.closed)
        if self.of != wanted:
            self.clear()
        self.of = wanted

    def clear(self) -> None:
        self.rows, self.names = {}, {}

    def put(self, slot: int, owner: str, ids: NDArray[np.int64]) -> None:
        self.rows[slot] = ids, hash_pages(ids, owner, LEAST)
        for name in self.rows[slot][1]:
            self.names.setdefault(name, set()).add(slot)

    def forget(self, slot: int) -> None:
        """Another row is given this slot."""
        if slot in self.rows:
            for name in self.rows.pop(slot)[1]:
                self.names[name].discard(slot)

    def find(self, owner: str, context: NDArray[np.int64]) -> tuple[int, int] | None:
        """The slot that begins most as a context does, at least for `LEAST` tokens, and for how many; never for the last, which
        is decoded."""
        for name in reversed(hash_pages(context[:-1], owner, LEAST)):
            if slots := self.names.get(name):
                # Rows of a group have their first pieces in common, and part within one.
                alike = {slot: _count_common_ids(self.rows[slot][0], context[:-1]) for slot in sorted(slots)}
                best = max(alike, key=alike.__getitem__)
                return best, alike[best]
        return None


def _count_common_ids(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    """Count the ids of the common prefix of two rows."""
    count = min(len(left), len(right))
    apart = np.flatnonzero(left[:count] != right[:count])
    return int(apart[0]) if len(apart) else count
