"""The embedded sampler: a key-value cache, per-token log-probabilities, stop strings, finished rows leaving the batch. A prefix
whose pages were kept from earlier turns of a conversation is not computed again.

Invariant (law 7): the randomness of a row depends on its key and the position in its output alone, not on its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milonga.engine.base import Completion, Decoding, Ledger, Request
from milonga.engine.local import llama_decode
from milonga.engine.local.cache import copy_columns, is_roomy, make_roomy_cache, paste_rows, select_rows
from milonga.engine.local.codec import Codec
from milonga.engine.local.history import PAGE, Pages
from milonga.engine.local.policy import Policy
from milonga.types import Finish

Tell = Callable[[int, int, int], None]
"""Is told how many outputs have ended, how many are being written, and how long the longest of these is."""
COMPACT_BELOW = 0.75
"""Finished rows leave the batch when fewer than this share of its rows are still being written."""


def draw_uniform(keys: Tensor, step: int) -> Tensor:
    """One number in [0, 1) per row from its key and the step, by the splitmix64 mixer; the same on every device."""
    start = ((step + 1) * 0x9E3779B97F4A7C15 + (1 << 63)) % (1 << 64) - (1 << 63)  # wrapped to a signed 64-bit number
    z = keys + start
    z = (z ^ _shift_right(z, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    z = (z ^ _shift_right(z, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    return _shift_right(z ^ _shift_right(z, 31), 40).to(torch.float32) / (1 << 24)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """A logical right shift: torch's is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def draw_tokens(logp: Tensor, chance: Tensor) -> Tensor:
    """Sample a token per row by inverse CDF: the first whose cumulated probability exceeds `chance`; never one of probability
    zero. `logp` is [rows, vocabulary], `chance` [rows]."""
    total = logp.exp().cumsum(-1)
    most = total[:, -1:].contiguous()
    last = torch.searchsorted(total, most, right=False).clamp_(max=logp.shape[1] - 1)  # beyond it where there is a NaN
    return torch.minimum(torch.searchsorted(total, chance[:, None] * most, right=True), last)[:, 0]


@dataclass(frozen=True)
class Written:
    """One finished output: ids and log-probabilities as they were sampled."""

    ids: list[int]
    logprobs: NDArray[np.float64]
    finish: Finish


def sample(
    policy: Policy,
    requests: Sequence[Request],
    decoding: Decoding,
    rows: int,
    ledger: Ledger,
    pages: Pages | None = None,
    tell: Tell | None = None,
) -> list[Completion]:
    """Continue every request. Sorted by length, so that little padding is computed; answers keep their order.

    Rows that go on from kept pages are computed apart from those that begin anew: short rests would be padded to whole prompts.
    """
    pages = pages if is_roomy(make_roomy_cache(policy.causal.config, 0)) else None
    begun = [pages.find(r.context) if pages is not None else [] for r in requests]
    done: dict[int, Written] = {}
    for known in (True, False):
        chosen = (i for i in range(len(requests)) if bool(begun[i]) == known)
        order = sorted(chosen, key=lambda i: len(requests[i].context))
        for at in range(0, len(order), rows):
            chunk = order[at : at + rows]
            batch = _Batch(policy, [requests[i] for i in chunk], decoding, [begun[i] for i in chunk], pages)
            done.update(zip(chunk, batch.run(tell, len(done)), strict=True))
    charge_sampling(policy, ledger, [r.context for r in requests], [len(done[i].ids) for i in range(len(requests))])
    return [make_completion(policy, done[i], decoding) for i in range(len(requests))]


def make_completion(policy: Policy, row: Written, decoding: Decoding) -> Completion:
    policy.require_finite(row.logprobs)
    spoken = row.ids[:-1] if row.finish == "eos" else row.ids
    text, ends = policy.codec.decode_with_ends(spoken)
    if row.finish == "stop":
        text = text[: min(text.find(s) + len(s) for s in decoding.stop if s in text)]
    full = np.full(len(row.ids), len(text), dtype=np.int64)
    full[: len(spoken)] = np.minimum(ends, len(text))
    return Completion(np.array(row.ids, dtype=np.int64), row.logprobs, row.finish, text, full)


def limit_new_tokens(policy: Policy, requests: Sequence[Request], decoding: Decoding) -> list[int]:
    """Most new tokens of each completion: what was asked for, or what the model's context leaves."""
    return [max(1, min(decoding.max_tokens, policy.context - len(r.context))) for r in requests]


def mask_stop_candidates(policy: Policy, stop: tuple[str, ...]) -> NDArray[np.bool_] | None:
    """Mask over the vocabulary of the tokens that can complete a stop string: the text is checked only after those."""
    if not stop:
        return None
    possible = policy.codec.find_stop_candidates(stop)
    watched = np.full(policy.causal.config.get_text_config().vocab_size, possible is None)
    watched[[i for i in possible or () if i < len(watched)]] = True
    return watched


def has_stop_string(codec: Codec, ids: list[int], stop: tuple[str, ...]) -> bool:
    """Whether a stop string is in the text: checked near its end, where it would be new, then in all of it."""
    tail = max(len(s.encode()) for s in stop) + 8
    near = codec.decode_ids(ids[-tail:])
    return any(s in near and s in codec.decode_ids(ids) for s in stop)


def charge_sampling(policy: Policy, ledger: Ledger, contexts: Sequence[NDArray[np.int64]], lengths: Sequence[int]) -> None:
    """Charge the ledger for completions by their own lengths, not by those of their batch. A prompt that several share is
    counted once."""
    prompts = [len(context) for context in {c.tobytes(): c for c in contexts}.values()]
    ledger.charge(policy.name, "prefill", sum(prompts), policy.flops(sum(prompts), sum(n**2 / 2 for n in prompts)))
    passes = [length - 1 for length in lengths]
    attended = sum(n * len(c) + n * (n + 1) / 2 for n, c in zip(passes, contexts, strict=True))
    ledger.charge(policy.name, "decode", sum(passes), policy.flops(sum(passes), attended))


class _Batch:
    """Rows that are decoded together, from prefill to the last end.

    What is written stays on the device until the end: a step asks only how many rows go on. `place` maps the rows that
    are still computed to those that were asked for; rows that ended may be computed on for a while, but their length is
    fixed. `begun` are the pages that each row begins with, of all rows or of none. Columns of the cache: `past` for these, up
    to `longest` for the rests of the prompts, both padded on the left, then one for each step.
    """

    def __init__(
        self,
        policy: Policy,
        requests: list[Request],
        decoding: Decoding,
        begun: Sequence[list[Tensor]],
        pages: Pages | None,
    ) -> None:
        self.policy, self.decoding, self.pages = policy, decoding, pages
        self.device = policy.device
        self.contexts, self.begun = [r.context for r in requests], begun
        starts = [len(c) for c in self.contexts]
        self.known = [PAGE * len(found) for found in begun]
        rooms = limit_new_tokens(policy, requests, decoding)
        self.past, self.steps = max(self.known), max(rooms)
        self.longest = self.past + max(start - known for start, known in zip(starts, self.known, strict=True))
        self.cache = make_roomy_cache(policy.causal.config, self.longest + self.steps)
        self.decodes_directly = llama_decode.supports_policy(policy, self.cache)
        self.keys = torch.tensor([r.key for r in requests], device=self.device)
        self.rooms = torch.tensor(rooms, device=self.device)
        self.positions = torch.tensor(starts, device=self.device)
        self.place = torch.arange(len(requests), device=self.device)
        self.done = torch.zeros(len(requests), dtype=torch.bool, device=self.device)
        self.ids = torch.zeros((len(requests), self.steps), dtype=torch.long, device=self.device)
        self.logprobs = torch.zeros((len(requests), self.steps), device=self.device)
        self.lengths = self.rooms.clone()
        self.eos = torch.tensor(policy.eos, device=self.device)
        enders = mask_stop_candidates(policy, decoding.stop)
        self.enders = None if enders is None else torch.from_numpy(enders).to(self.device)
        self.stopped: set[int] = set()

    @torch.no_grad()
    def run(self, tell: Tell | None, before: int) -> list[Written]:
        """Decode until all rows have ended; `before` is how many of other batches have."""
        with self.policy.use_compute_dtype():
            logits, mask = self._prefill()
            for step in range(self.steps):
                tokens = self._choose_tokens(logits, step)
                going = self._end_rows(tokens, step)
                if tell is not None:
                    tell(before + len(self.contexts) - going, going, step + 1)
                if not going:
                    break
                if going < COMPACT_BELOW * len(self.done):
                    tokens, mask = self._compact(tokens, mask)
                logits = self._forward(tokens, mask, step)
            self._keep_pages(range(len(self.place)))
        return self._collect_outputs()

    def _collect_outputs(self) -> list[Written]:
        ids, logprobs, eos = self.ids.tolist(), self.logprobs.double().cpu().numpy(), set(self.policy.eos)
        out = []
        for row, length in enumerate(self.lengths.tolist()):
            finish: Finish = "stop" if row in self.stopped else "eos" if ids[row][length - 1] in eos else "length"
            out.append(Written(ids[row][:length], logprobs[row, :length], finish))
        return out

    def _prefill(self) -> tuple[Tensor, Tensor]:
        """Left-padded prompts, or what no page holds of them, each distinct one computed once; rows of one group share it."""
        distinct: dict[bytes, int] = {}
        place = [distinct.setdefault(c.tobytes(), len(distinct)) for c in self.contexts]
        firsts = [place.index(i) for i in range(len(distinct))]
        if self.past:
            paste_rows(self.cache, [self.begun[row] for row in firsts])
        ids = torch.full((len(firsts), self.longest), self.policy.pad)
        mask = torch.zeros((len(firsts), self.longest + self.steps), dtype=torch.long)
        for i, row in enumerate(firsts):
            context, columns = torch.from_numpy(self.contexts[row]), self._find_columns(row, len(self.contexts[row]))
            ids[i, columns], mask[i, columns] = context, 1
        mask = mask.to(self.device)
        prompt = mask[:, : self.longest]
        out = self.policy.model(
            input_ids=ids[:, self.past :].to(self.device),
            attention_mask=prompt,
            position_ids=(prompt.cumsum(1) - 1).clamp(min=0)[:, self.past :],
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        spread = torch.tensor(place, device=self.device)
        if len(firsts) < len(place):
            select_rows(self.cache, spread)
        return out.logits[:, -1][spread], mask[spread]

    def _find_columns(self, row: int, count: int) -> Tensor:
        """Find the cache columns of the first `count` tokens of a row."""
        known = self.known[row]
        rest = self.longest - (len(self.contexts[row]) - known)
        return torch.cat([torch.arange(self.past - known, self.past), torch.arange(rest, rest + count - known)])

    def _choose_tokens(self, logits: Tensor, step: int) -> Tensor:
        """The next token of every row; it and its log-probability are written down."""
        temperature = 1.0 if self.decoding.greedy else self.decoding.temperature
        logp = torch.log_softmax(logits.float() / temperature, dim=-1)
        chosen = logp.argmax(-1) if self.decoding.greedy else draw_tokens(logp, draw_uniform(self.keys, step))
        self.ids[self.place, step] = chosen
        self.logprobs[self.place, step] = logp.gather(1, chosen[:, None])[:, 0]
        return chosen

    def _end_rows(self, tokens: Tensor, step: int) -> int:
        """Mark the rows that have ended, and return how many go on."""
        ended = (tokens[:, None] == self.eos).any(1)
        if self.enders is not None:
            for at in torch.nonzero(self.enders[tokens] & ~ended & ~self.done)[:, 0].tolist():
                row = int(self.place[at])
                if has_stop_string(self.policy.codec, self.ids[row, : step + 1].tolist(), self.decoding.stop):
                    self.stopped.add(row)
                    ended[at] = True
        self.lengths[self.place[ended & ~self.done]] = step + 1
        self.done |= ended | (self.rooms <= step + 1)
        return len(self.done) - int(self.done.sum())

    def _compact(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Finished rows leave the batch."""
        kept = torch.nonzero(~self.done)[:, 0]
        self._keep_pages(torch.nonzero(self.done)[:, 0].tolist())
        for name in ("keys", "rooms", "positions", "place", "done"):
            setattr(self, name, getattr(self, name)[kept])
        select_rows(self.cache, kept)
        return tokens[kept], mask[kept]

    def _keep_pages(self, leaving: Sequence[int]) -> None:
        """Keep the pages of rows that leave the batch. The last token of a row was never computed with."""
        if self.pages is None:
            return
        for at in leaving:
            row = int(self.place[at])
            ids = np.concatenate([self.contexts[row], self.ids[row, : int(self.lengths[row]) - 1].cpu().numpy()])
            columns = self._find_columns(row, len(ids)).to(self.device)
            self.pages.keep(ids, lambda start, end, at=at, columns=columns: copy_columns(self.cache, at, columns[start:end]))  # type: ignore[misc]

    def _forward(self, tokens: Tensor, mask: Tensor, step: int) -> Tensor:
        filled = self.longest + step + 1
        mask[:, filled - 1] = 1
        at = self.positions
        self.positions = (self.positions + 1).clamp(max=self.policy.context - 1)  # rows that ended may still be here
        if self.decodes_directly:
            return llama_decode.decode_step(self.policy.causal, tokens, at, mask[:, :filled].bool(), self.cache)
        out = self.policy.model(
            input_ids=tokens[:, None],
            attention_mask=mask[:, :filled],
            position_ids=at[:, None],
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = out.logits[:, -1]
        return logits
