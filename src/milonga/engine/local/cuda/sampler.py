"""Continuous batching on the decoder: rows that end make room for requests that wait, so that the batch stays full.

Invariant: what a request gets depends on its context, its key and the weights; which row and slot it was given, and who sat
beside it, changes at most the last bits of a sum. Prompts of one group are computed once and copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from milonga.engine.base import Completion, Decoding, Ledger, Request
from milonga.engine.local.cuda.decoder import Decoder, Piece
from milonga.engine.local.cuda.weights import Weights, unsuited
from milonga.engine.local.memory import cache_bytes
from milonga.engine.local.policy import Policy
from milonga.engine.local.sampler import Written, charge, completion, ender_mask, most_tokens, stopped
from milonga.errors import UserError
from milonga.types import Finish

__all__ = ["CudaSampler", "unsuited"]

STRIDE = 16
"""Decoding steps between two looks at what was written: each look waits for the device."""
REFILL = 1 / 8
"""Share of the slots that must be free before waiting prompts are computed: few at a time would waste the pass."""
SMALLEST = 16
"""Rows of the smallest graph."""
GRAIN = 64
"""Rooms and lengths are rounded up to this, so that decoders are rarely built anew."""


@dataclass
class _Row:
    """One request on its way: where it lies, and how many tokens it had written when it was last looked at."""

    request: int
    slot: int
    seen: int = 0


class CudaSampler:
    """The sampler of one policy. The decoder is kept from call to call and built anew only where it is too small."""

    def __init__(self, policy: Policy, beside: Sequence[Policy] = (), waiting: Callable[[], int] = lambda: 0) -> None:
        self.policy = policy
        self.beside = beside
        """The other policies on the same device."""
        self.waiting = waiting
        """How many of them have no cache yet."""
        self.wanted = 0
        """Slots that the decoder was asked for; it may have fewer, where memory is short."""
        self.weights = Weights(policy)
        self.decoder: Decoder | None = None

    @torch.no_grad()
    def sample(self, requests: Sequence[Request], decoding: Decoding, rows: int, ledger: Ledger) -> list[Completion]:
        rooms = most_tokens(self.policy, requests, decoding)
        longest = max(len(r.context) + n for r, n in zip(requests, rooms, strict=True))
        decoder = self._decoder(min(rows, len(requests)), longest, max(rooms))
        self.weights.refresh()
        decoder.cold.fill_(1.0 if decoding.greedy else 1.0 / decoding.temperature)
        done = _Flow(decoder, self.policy, requests, rooms, decoding).run()
        charge(self.policy, ledger, [r.context for r in requests], [len(d.ids) for d in done])
        return done

    def close(self) -> None:
        """Give back the cache."""
        self.decoder = None

    def _decoder(self, slots: int, room: int, steps: int) -> Decoder:
        old = self.decoder
        if old is not None and self.wanted >= slots and old.room >= room and old.steps >= steps:
            return old
        room, steps = (-(-n // GRAIN) * GRAIN for n in (room, steps))
        if old is not None:
            room, steps = max(room, old.room), max(steps, old.steps)
        self.wanted = max(slots, self.wanted)
        self.decoder = None
        del old  # its cache makes room for the new one
        self.decoder = Decoder(self.weights, self._fitting(self.wanted, room), room, steps, self.policy.eos)
        return self.decoder

    def _fitting(self, slots: int, room: int) -> int:
        """As many slots as fit: fewer only take longer."""
        each = room * self.weights.token_bytes
        allowed = cache_bytes(self.policy.device, [self.policy, *self.beside], self.waiting())
        if allowed < 2 * each:  # one slot, and the one that belongs to nobody
            raise UserError(
                f"policy '{self.policy.name}' cannot be sampled: the keys and values of a row of {room} tokens need "
                f"{2 * each / 2**30:.2f} GiB, and {allowed / 2**30:.2f} GiB of the device are left for them; "
                "use shorter outputs, a smaller model, LoRA, or fewer policies"
            )
        return min(slots, allowed // each - 1)


class _Flow:
    """One call: requests wait, are decoded in rows, and end."""

    def __init__(
        self, decoder: Decoder, policy: Policy, requests: Sequence[Request], rooms: Sequence[int], decoding: Decoding
    ) -> None:
        self.decoder, self.policy, self.decoding = decoder, policy, decoding
        self.requests, self.rooms = requests, rooms
        self.names = [r.context.tobytes() for r in requests]
        self.waiting = deque(range(len(requests)))
        self.free = list(range(decoder.slots))[::-1]
        self.homes: dict[int, bytes] = {}
        """The prompt that lies in each slot; it stays there after its row has ended."""
        self.rows: list[_Row] = []
        self.ended: list[tuple[int, Written]] = []
        """Outputs that are not spelt out yet: that is done while the device computes."""
        self.done: dict[int, Completion] = {}
        self.eos = set(policy.eos)
        self.enders = ender_mask(policy, decoding.stop)

    def run(self) -> list[Completion]:
        self.decoder.keep([])
        while self.waiting or self.rows:
            if self.waiting and (not self.rows or len(self.free) >= REFILL * self.decoder.slots):
                self._refill()
            self._decode()
            self._spell()
            self._harvest()
        self._spell()
        return [self.done[i] for i in range(len(self.requests))]

    def _spell(self) -> None:
        for request, written in self.ended:
            self.done[request] = completion(self.policy.codec, written, self.decoding)
        self.ended = []

    def _refill(self) -> None:
        """Waiting requests take the free slots."""
        new, fresh, copies = self._assign()
        contexts = [self.requests[row.request].context for row in new]
        self.decoder.prefill([Piece(row.slot, 0, c[:-1]) for row, c in zip(new, contexts, strict=True) if row.slot in fresh])
        self.decoder.copy([source for source, _ in copies], [target for _, target in copies], max(map(len, contexts)))
        self.decoder.place(
            range(len(self.rows), len(self.rows) + len(new)),
            keys=[self.requests[row.request].key for row in new],
            # The last token of the prompt is the first that is decoded: no pass of its own for the first logits.
            tokens=[int(context[-1]) for context in contexts],
            slots=[row.slot for row in new],
            positions=[len(context) - 1 for context in contexts],
            counts=[0] * len(new),
            rooms=[self.rooms[row.request] for row in new],
            live=[1] * len(new),
        )
        self.rows += new

    def _assign(self) -> tuple[list[_Row], set[int], list[tuple[int, int]]]:
        """Rows for waiting requests, the slots whose prompt is to be computed, and which slot's prompt to copy to which. A free
        slot that still holds a request's prompt is best; one in a taken slot is copied; only what lies nowhere is computed."""
        chosen = [self.waiting.popleft() for _ in range(min(len(self.free), len(self.waiting)))]
        holding: dict[bytes, list[int]] = {}
        for slot in self.free:
            if slot in self.homes:
                holding.setdefault(self.homes[slot], []).append(slot)
        rows: dict[int, _Row] = {}
        for i in chosen:
            if held := holding.get(self.names[i]):
                rows[i] = _Row(i, held.pop())
                self.free.remove(rows[i].slot)
        taken = {self.homes[slot]: slot for slot in self.homes if slot not in self.free}
        copies: list[tuple[int, int]] = []
        fresh: set[int] = set()
        for i in chosen:
            if i in rows:
                continue
            rows[i] = _Row(i, self.free.pop())
            self.homes[rows[i].slot] = self.names[i]
            source = taken.setdefault(self.names[i], rows[i].slot)
            if source == rows[i].slot:
                fresh.add(source)
            else:
                copies.append((source, rows[i].slot))
        return [rows[i] for i in chosen], fresh, copies

    def _decode(self) -> None:
        width = SMALLEST
        while width < len(self.rows):
            width *= 2
        for _ in range(STRIDE):
            self.decoder.step(min(width, self.decoder.slots), self.decoding.greedy)

    def _harvest(self) -> None:
        """See which rows have ended since the last look; their outputs are fetched, and they leave."""
        counts, live = (self.decoder.rows[name][: len(self.rows)].cpu().numpy() for name in ("counts", "live"))
        stops = self._stops(counts)
        gone = [at for at in range(len(self.rows)) if at in stops or not live[at]]
        for at, row in enumerate(self.rows):
            row.seen = int(counts[at])
        if not gone:
            return
        slots = [self.rows[at].slot for at in gone]
        ids, logprobs = (tensor[slots].cpu().numpy() for tensor in (self.decoder.ids, self.decoder.logprobs))
        for at, row_ids, row_logprobs in zip(gone, ids, logprobs, strict=True):
            row, length = self.rows[at], stops.get(at, int(counts[at]))
            finish: Finish = "stop" if at in stops else "eos" if row_ids[length - 1] in self.eos else "length"
            self.ended.append((row.request, Written(row_ids[:length].tolist(), row_logprobs[:length].astype(float), finish)))
            self.free.append(row.slot)
        going = sorted(set(range(len(self.rows))) - set(gone))
        self.decoder.keep(going)
        self.rows = [self.rows[at] for at in going]

    def _stops(self, counts: NDArray[np.int32]) -> dict[int, int]:
        """Rows in which a stop string was completed since the last look, with their length up to it."""
        if self.enders is None:
            return {}
        d, found = self.decoder, {}
        slots = torch.tensor([row.slot for row in self.rows], device=d.device)[:, None]
        seen = np.array([row.seen for row in self.rows])[:, None]
        window = np.minimum(seen + np.arange(STRIDE), d.steps - 1)
        recent = d.ids[slots, torch.from_numpy(window).to(d.device)].cpu().numpy()
        possible = self.enders[recent] & (seen + np.arange(STRIDE) < counts[:, None]) & ~np.isin(recent, list(self.eos))
        for at in np.flatnonzero(possible.any(1)).tolist():
            ids = d.ids[self.rows[at].slot, : int(counts[at])].tolist()
            ends = (int(seen[at, 0]) + int(i) + 1 for i in np.flatnonzero(possible[at]))
            length = next((n for n in ends if stopped(self.policy.codec, ids[:n], self.decoding.stop)), None)
            if length is not None:
                found[at] = length
        return found
