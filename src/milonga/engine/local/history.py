"""The prefix cache of conversations: keys and values of tokens that were computed in earlier calls.

They lie in pages of PAGE tokens. A page is named by all ids from the start of its row to its own end, so that rows with the
same beginning share its pages, whoever wrote them: the rows of a group, branches of one conversation, and a turn with the turns
before it. Invariants: a page is only found under the weights that computed it; kept pages never exceed their limit.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from milonga.engine.base import History
from milonga.engine.local.policy import Policy, compute_bit_sums

PAGE = 8
"""Tokens in a page. What does not fill one is computed again: half a page for each row, on average."""


def hash_pages(ids: NDArray[np.int64], owner: str = "", page: int | None = None) -> list[bytes]:
    """Hash each whole page of a row, from the hash of the page before (the owner, for the first) and its own ids."""
    raw, size = np.ascontiguousarray(ids, dtype=np.int64).tobytes(), 8 * (page or PAGE)
    names, name = [], owner.encode()
    for at in range(0, len(raw) - size + 1, size):
        name = hashlib.blake2b(name + raw[at : at + size], digest_size=16).digest()
        names.append(name)
    return names


class LocalHistory(History):
    """Pages of all policies in at most `limit` bytes; the least recently used leave first. On a CPU the limit is a fixed
    number: what is found, and so the last bits of a sum, must not depend on what memory a machine has free (law 7)."""

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0
        self.kept: OrderedDict[bytes, Tensor] = OrderedDict()
        self.bits: dict[str, list[int]] = {}
        """Bit sums of the weights that computed the pages, by policy and tag."""
        self.closed = 0
        """How often everything was dropped: samplers that keep keys and values in slots of their own look here."""

    def open_pages(self, policy: Policy, tag: str) -> Pages:
        """Open the pages of policy@tag, whose weights the policy computes with at this moment. If the weights have changed, the
        whole cache is dropped."""
        owner, bits = f"{policy.name}@{tag}", compute_bit_sums(policy.parameters)
        if self.bits.get(owner, bits) != bits:
            self.close()
        self.bits[owner] = bits
        return Pages(self, owner)

    def mark_used(self, names: list[bytes]) -> None:
        """Mark pages as used. Later pages are useless without the earlier ones, and therefore leave before them."""
        for name in reversed(names):
            self.kept.move_to_end(name)

    def add(self, name: bytes, page: Tensor) -> None:
        self.kept[name] = page
        self.size += page.nbytes

    def trim(self) -> None:
        while self.size > self.limit:
            self.size -= self.kept.popitem(last=False)[1].nbytes

    def close(self) -> None:
        self.kept.clear()
        self.bits.clear()
        self.size = 0
        self.closed += 1


@dataclass(frozen=True)
class Pages:
    """The pages of one policy at one tag."""

    history: LocalHistory
    owner: str

    def find(self, context: NDArray[np.int64]) -> list[Tensor]:
        """Find the pages that a context begins with. Its last token is never among them: its logits are needed."""
        kept = self.history.kept
        found = list(takewhile(kept.__contains__, hash_pages(context[:-1], self.owner)))
        self.history.mark_used(found)
        return [kept[name] for name in found]

    def keep(self, ids: NDArray[np.int64], take: Callable[[int, int], Tensor]) -> None:
        """Keep the whole pages of a row. `take(start, end)` copies keys and values of positions (the last axis but one)."""
        names = hash_pages(ids, self.owner)
        missing = [at for at, name in enumerate(names) if name not in self.history.kept]
        if missing:
            first = missing[0]
            whole = take(first * PAGE, len(names) * PAGE)
            for at in missing:
                # Each with its own memory, which is freed with it.
                self.history.add(names[at], whole[..., (at - first) * PAGE : (at - first + 1) * PAGE, :].clone())
        self.history.mark_used(names)
        self.history.trim()
