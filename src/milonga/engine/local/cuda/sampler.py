"""Continuous batching on the decoder: rows that end make room for requests that wait, so that the batch stays full.

Invariant: what a request gets depends on its context, its key and the weights; which row and slot it was given, and who sat
beside it, changes at most the last bits of a sum. Prompts of one group are computed once and copied; what a prompt has in
common with the history that a slot still holds from an earlier turn of a conversation is not computed at all.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from milonga.engine.base import Completion, Decoding, Ledger, Request
from milonga.engine.local.cuda.decoder import Decoder, Piece
from milonga.engine.local.cuda.kept_slots import KeptSlots
from milonga.engine.local.cuda.weights import Weights, explain_unsuited
from milonga.engine.local.history import Pages
from milonga.engine.local.memory import cache_bytes
from milonga.engine.local.policy import Policy
from milonga.engine.local.sampler import (
    Tell,
    Written,
    charge_sampling,
    has_stop_string,
    limit_new_tokens,
    make_completion,
    mask_stop_candidates,
)
from milonga.errors import OutOfMemory
from milonga.types import Finish

__all__ = ["CudaSampler", "explain_unsuited"]

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


@dataclass
class _Plan:
    """Where new rows go, and how their prompts get there."""

    rows: list[_Row] = field(default_factory=list)
    moves: list[tuple[int, int]] = field(default_factory=list)
    """From slot to slot: histories, all at once and before anything is computed."""
    pieces: list[Piece] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    """From slot to slot: prompts, after they were computed."""


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
        self.spare = 0
        """Slots for histories that were asked for beyond those, and may be had in `limit` bytes."""
        self.limit = 0
        self.room = 0
        """Tokens of a row, and steps of a call, that decoders had so far: a new one has no fewer."""
        self.steps = 0
        self.kept = KeptSlots()
        self.decoder: Decoder | None = None

    @torch.no_grad()
    def sample(
        self,
        requests: Sequence[Request],
        decoding: Decoding,
        rows: int,
        ledger: Ledger,
        pages: Pages | None = None,
        tell: Tell | None = None,
    ) -> list[Completion]:
        rooms = limit_new_tokens(self.policy, requests, decoding)
        longest = max(len(r.context) + n for r, n in zip(requests, rooms, strict=True))
        self.kept.use_history(pages)
        slots = min(rows, len(requests))
        decoder = self._get_decoder(slots, self._count_spare_slots(requests, slots, pages), longest, max(rooms))
        decoder.weights.refresh()
        decoder.cold.fill_(1.0 if decoding.greedy else 1.0 / decoding.temperature)
        owner = None if pages is None else pages.owner
        done = _Flow(decoder, self.policy, requests, rooms, decoding, rows, self.kept, owner).run(tell)
        charge_sampling(self.policy, ledger, [r.context for r in requests], [len(d.ids) for d in done])
        return done

    def close(self) -> None:
        """Give back the cache and the copy of the weights. The next call makes them again, in the sizes they had."""
        self.decoder = None
        self.kept.use_history(None)

    def _count_spare_slots(self, requests: Sequence[Request], slots: int, pages: Pages | None) -> int:
        """Count the slots beyond those to decode in that would keep every history: those of this call, and those that it does
        not continue."""
        if pages is None:
            return 0
        self.limit = pages.history.limit
        found = (self.kept.find(pages.owner, r.context) for r in requests)
        followed = {match[0] for match in found if match is not None}
        return len(requests) + len(self.kept.rows) - len(followed) - slots

    def _get_decoder(self, slots: int, spare: int, room: int, steps: int) -> Decoder:
        """Get a decoder that is large enough. A new one has no histories: after the first conversations of a run it is large
        enough."""
        old = self.decoder
        enough = self.wanted >= slots and self.spare >= spare
        if old is not None and enough and old.room >= room and old.steps >= steps:
            return old
        self.room, self.steps = (max(-(-n // GRAIN) * GRAIN, had) for n, had in ((room, self.room), (steps, self.steps)))
        self.wanted, self.spare = max(slots, self.wanted), max(spare, self.spare)
        weights = Weights(self.policy) if old is None else old.weights
        self.decoder = None
        self.kept.clear()
        del old  # its cache makes room for the new one
        each = self.room * weights.token_bytes
        fitting = self._fit_slots(self.wanted + min(self.spare, self.limit // each), self.room, each)
        self.decoder = Decoder(weights, fitting, self.room, self.steps, self.policy.eos)
        return self.decoder

    def _fit_slots(self, slots: int, room: int, each: int) -> int:
        """As many slots of `each` bytes as fit: fewer only take longer."""
        allowed = cache_bytes(self.policy.device, [self.policy, *self.beside], self.waiting())
        if allowed < 2 * each:  # one slot, and the one that belongs to nobody
            raise OutOfMemory(
                f"policy '{self.policy.name}' cannot be sampled: the keys and values of a row of {room} tokens need "
                f"{2 * each / 2**30:.2f} GiB, and {allowed / 2**30:.2f} GiB of the device are left for them; "
                "lower sampling.max_tokens, or use a smaller model, binding=lora or fewer policies"
            )
        return min(slots, allowed // each - 1)


class _Flow:
    """One call: requests wait, are decoded in rows, and end."""

    def __init__(
        self,
        decoder: Decoder,
        policy: Policy,
        requests: Sequence[Request],
        rooms: Sequence[int],
        decoding: Decoding,
        rows: int,
        kept: KeptSlots,
        owner: str | None,
    ) -> None:
        self.decoder, self.policy, self.decoding = decoder, policy, decoding
        self.requests, self.rooms = requests, rooms
        self.most = min(rows, decoder.slots)
        """Rows that are decoded side by side; there may be more slots, for histories."""
        self.kept, self.owner = kept, owner
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
        self.enders = mask_stop_candidates(policy, decoding.stop)
        self.claims = self._count_claims()

    def _count_claims(self) -> Counter[int]:
        """Count the different prompts that would continue each slot's history."""
        firsts = dict(zip(self.names, self.requests, strict=True)).values()
        return Counter(match[0] for request in firsts if (match := self._find_history(request)) is not None)

    def _find_history(self, request: Request) -> tuple[int, int] | None:
        return None if self.owner is None else self.kept.find(self.owner, request.context)

    def run(self, tell: Tell | None) -> list[Completion]:
        self.decoder.keep_rows([])
        while self.waiting or self.rows:
            if self.waiting and (not self.rows or self.most - len(self.rows) >= REFILL * self.most):
                self._refill()
            self._run_steps()
            self._decode_texts()
            self._collect_finished()
            if tell is not None:
                ended = len(self.requests) - len(self.waiting) - len(self.rows)
                tell(ended, len(self.rows), max((row.seen for row in self.rows), default=0))
        self._decode_texts()
        return [self.done[i] for i in range(len(self.requests))]

    def _decode_texts(self) -> None:
        for request, written in self.ended:
            self.done[request] = make_completion(self.policy, written, self.decoding)
        self.ended = []

    def _refill(self) -> None:
        """Waiting requests take free slots. Histories are moved before anything is computed, prompts are copied after it."""
        plan = self._assign()
        new = plan.rows
        contexts = [self.requests[row.request].context for row in new]
        self._copy(plan.moves, contexts)
        self.decoder.prefill(plan.pieces)
        self._copy(plan.copies, contexts)
        self.decoder.set_rows(
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

    def _copy(self, pairs: Sequence[tuple[int, int]], contexts: Sequence[NDArray[np.int64]]) -> None:
        self.decoder.copy([source for source, _ in pairs], [target for _, target in pairs], max(map(len, contexts)))

    def _assign(self) -> _Plan:
        """A free slot that still holds a request's prompt is best; a prompt in a taken slot is copied; of one that lies
        nowhere, only what no history begins with is computed."""
        chosen = [self.waiting.popleft() for _ in range(min(self.most - len(self.rows), len(self.waiting)))]
        matches = {i: self._find_history(self.requests[i]) for i in chosen}
        rows = self._prompts_in_place(chosen)
        taken = {self.homes[slot]: slot for slot in self.homes if slot not in self.free}
        plan = _Plan()
        for i in chosen:  # Who alone goes on from a history takes its slot.
            if i not in rows and self.names[i] not in taken and (match := matches[i]) and self.claims[match[0]] == 1:
                rows[i] = _Row(i, match[0])
                self.free.remove(match[0])
                self._plan_prefill(plan, rows[i], match, taken)
        self._sort_free()
        for i in chosen:
            if i not in rows:
                rows[i] = _Row(i, self.free.pop())
                if self.names[i] in taken:
                    plan.copies.append((taken[self.names[i]], rows[i].slot))
                    self.homes[rows[i].slot] = self.names[i]
                else:
                    self._plan_prefill(plan, rows[i], matches[i], taken)
        plan.rows = [rows[i] for i in chosen]
        for row in plan.rows:
            self.kept.forget(row.slot)
        return plan

    def _prompts_in_place(self, chosen: Sequence[int]) -> dict[int, _Row]:
        """Rows for requests whose prompts lie in free slots, histories excepted: these stay for later turns."""
        holding: dict[bytes, list[int]] = {}
        for slot in self.free:
            if slot in self.homes and slot not in self.kept.rows:
                holding.setdefault(self.homes[slot], []).append(slot)
        rows: dict[int, _Row] = {}
        for i in chosen:
            if slots := holding.get(self.names[i]):
                rows[i] = _Row(i, slots.pop())
                self.free.remove(rows[i].slot)
        return rows

    def _sort_free(self) -> None:
        """The last is taken first: slots that hold no history, then the oldest histories, and at the end those that a request
        waits for."""
        ages = {slot: age for age, slot in enumerate(self.kept.rows)}
        self.free.sort(key=lambda slot: (slot in ages, self.claims[slot], ages.get(slot, 0)), reverse=True)

    def _plan_prefill(self, plan: _Plan, row: _Row, match: tuple[int, int] | None, taken: dict[bytes, int]) -> None:
        """Plan to compute a prompt in a row's slot, from where a history ends that it begins with."""
        source, count = match or (row.slot, 0)
        if match is not None:
            self.claims[source] -= 1
        if source != row.slot:
            plan.moves.append((source, row.slot))
        plan.pieces.append(Piece(row.slot, count, self.requests[row.request].context[count:-1]))
        self.homes[row.slot] = self.names[row.request]
        taken[self.names[row.request]] = row.slot

    def _run_steps(self) -> None:
        width = SMALLEST
        while width < len(self.rows):
            width *= 2
        for _ in range(STRIDE):
            self.decoder.step(min(width, self.decoder.slots), self.decoding.greedy)

    def _collect_finished(self) -> None:
        """Fetch the outputs of rows that have ended since the last look, and remove the rows."""
        counts, live = (self.decoder.rows[name][: len(self.rows)].cpu().numpy() for name in ("counts", "live"))
        stops = self._find_stops(counts)
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
            if self.owner is not None:
                # Keys and values of the last token were not computed.
                whole = np.concatenate([self.requests[row.request].context, row_ids[: length - 1]])
                self.kept.put(row.slot, self.owner, whole)
        going = sorted(set(range(len(self.rows))) - set(gone))
        self.decoder.keep_rows(going)
        self.rows = [self.rows[at] for at in going]

    def _find_stops(self, counts: NDArray[np.int32]) -> dict[int, int]:
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
            length = next((n for n in ends if has_stop_string(self.policy.codec, ids[:n], self.decoding.stop)), None)
            if length is not None:
                found[at] = length
        return found
