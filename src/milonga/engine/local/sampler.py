"""The embedded sampler: a key-value cache, per-token log-probabilities, stop strings, finished rows leaving the batch.

Invariant (law 7): the randomness of a row depends on its key and the position in its output alone, not on its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milonga.engine.base import Completion, Decoding, Ledger, Request
from milonga.engine.local.cache import roomy_cache, select_rows
from milonga.engine.local.codec import Codec
from milonga.engine.local.policy import Policy
from milonga.types import Finish

COMPACT_BELOW = 0.75
"""Finished rows leave the batch when fewer than this share of its rows are still being written."""


def uniform(keys: Tensor, step: int) -> Tensor:
    """One number in [0, 1) per row from its key and the step, by the splitmix64 mixer; the same on every device."""
    start = ((step + 1) * 0x9E3779B97F4A7C15 + (1 << 63)) % (1 << 64) - (1 << 63)  # wrapped to a signed 64-bit number
    z = keys + start
    z = (z ^ _shift(z, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    z = (z ^ _shift(z, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    return _shift(z ^ _shift(z, 31), 40).to(torch.float32) / (1 << 24)


def _shift(z: Tensor, bits: int) -> Tensor:
    """A logical right shift: torch's is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def pick(logp: Tensor, chance: Tensor) -> Tensor:
    """The token at which the cumulated probability first exceeds `chance`; never one of probability zero."""
    total = logp.exp().cumsum(-1)
    most = total[:, -1:].contiguous()
    last = torch.searchsorted(total, most, right=False)
    return torch.minimum(torch.searchsorted(total, chance[:, None] * most, right=True), last)[:, 0]


@dataclass
class _Row:
    """One output being written."""

    index: int
    start: int
    """Length of its prompt."""
    room: int
    """Most tokens of output: what was asked for, or what the model's context leaves."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None


def sample(
    policy: Policy, requests: Sequence[Request], decoding: Decoding, rows: int, ledger: Ledger
) -> list[Completion]:
    """Continue every request. Sorted by length, so that little padding is computed; answers keep their order."""
    order = sorted(range(len(requests)), key=lambda i: len(requests[i].context))
    done: list[_Row] = []
    for at in range(0, len(order), rows):
        chunk = order[at : at + rows]
        done += _Batch(policy, [requests[i] for i in chunk], chunk, decoding, ledger).run()
    done.sort(key=lambda row: row.index)
    return [_completion(policy.codec, row, decoding) for row in done]


def _completion(codec: Codec, row: _Row, decoding: Decoding) -> Completion:
    assert row.finish is not None
    spoken = row.ids[:-1] if row.finish == "eos" else row.ids
    text, ends = codec.spell(spoken)
    if row.finish == "stop":
        text = text[: min(text.find(s) + len(s) for s in decoding.stop if s in text)]
    full = np.full(len(row.ids), len(text), dtype=np.int64)
    full[: len(spoken)] = np.minimum(ends, len(text))
    return Completion(np.array(row.ids, dtype=np.int64), np.array(row.logprobs), row.finish, text, full)


class _Batch:
    """Rows that are decoded together, from prefill to the last end."""

    def __init__(
        self, policy: Policy, requests: list[Request], indices: list[int], decoding: Decoding, ledger: Ledger
    ) -> None:
        self.policy, self.decoding, self.ledger = policy, decoding, ledger
        self.device = policy.device
        self.contexts = [r.context for r in requests]
        self.rows = [
            _Row(i, len(c), max(1, min(decoding.max_tokens, policy.context - len(c))))
            for i, c in zip(indices, self.contexts, strict=True)
        ]
        self.live = list(self.rows)
        self.keys = torch.tensor([r.key for r in requests], device=self.device)
        self.longest = max(row.start for row in self.rows)
        self.steps = max(row.room for row in self.rows)
        self.cache = roomy_cache(policy.causal.config, self.longest + self.steps)
        self.eos = frozenset(policy.eos)
        self.enders = policy.codec.enders(decoding.stop) if decoding.stop else frozenset()

    @torch.no_grad()
    def run(self) -> list[_Row]:
        with self.policy.computing():
            logits, mask = self._prefill()
            for step in range(self.steps):
                tokens = self._choose(logits, step)
                keep = self._record(tokens)
                if not any(keep):
                    break
                if sum(keep) < COMPACT_BELOW * len(keep):
                    tokens, mask = self._compact(keep, tokens, mask)
                logits = self._forward(tokens, mask, step)
        return self.rows

    def _prefill(self) -> tuple[Tensor, Tensor]:
        """Left-padded prompts, each distinct one computed once; rows of one group share it."""
        distinct: dict[bytes, int] = {}
        place = [distinct.setdefault(c.tobytes(), len(distinct)) for c in self.contexts]
        unique: list[NDArray[np.int64]] = [np.frombuffer(raw, dtype=np.int64) for raw in distinct]
        ids = torch.full((len(unique), self.longest), self.policy.pad)
        mask = torch.zeros((len(unique), self.longest + self.steps), dtype=torch.long)
        for i, context in enumerate(unique):
            ids[i, self.longest - len(context) :] = torch.from_numpy(context.copy())
            mask[i, self.longest - len(context) :] = 1
        mask = mask.to(self.device)
        prompt = mask[:, : self.longest]
        out = self.policy.model(
            input_ids=ids.to(self.device),
            attention_mask=prompt,
            position_ids=(prompt.cumsum(1) - 1).clamp(min=0),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        tokens = sum(len(c) for c in unique)
        self.ledger.charge(
            self.policy.name, "prefill", tokens, self.policy.flops(tokens, sum(len(c) ** 2 / 2 for c in unique))
        )
        spread = torch.tensor(place, device=self.device)
        if len(unique) < len(place):
            select_rows(self.cache, spread)
        self.positions = torch.tensor([len(c) for c in self.contexts], device=self.device)
        return out.logits[:, -1][spread], mask[spread]

    def _choose(self, logits: Tensor, step: int) -> tuple[Tensor, Tensor]:
        temperature = 1.0 if self.decoding.greedy else self.decoding.temperature
        logp = torch.log_softmax(logits.float() / temperature, dim=-1)
        chosen = logp.argmax(-1) if self.decoding.greedy else pick(logp, uniform(self.keys, step))
        return chosen, logp.gather(1, chosen[:, None])[:, 0]

    def _record(self, chosen: tuple[Tensor, Tensor]) -> list[bool]:
        """Append the new tokens, end the rows that ended, and say which rows go on."""
        keep = []
        for row, token, logp in zip(self.live, chosen[0].tolist(), chosen[1].tolist(), strict=True):
            if row.finish is None:
                row.ids.append(token)
                row.logprobs.append(logp)
                if token in self.eos:
                    row.finish = "eos"
                elif (self.enders is None or token in self.enders) and self._stops(row):
                    row.finish = "stop"
                elif len(row.ids) == row.room:
                    row.finish = "length"
            keep.append(row.finish is None)
        return keep

    def _stops(self, row: _Row) -> bool:
        """Whether a stop string is in the text: looked for near its end, where it would be new, then in all of it."""
        tail = max(len(s.encode()) for s in self.decoding.stop) + 8
        near = self.policy.codec.text(row.ids[-tail:])
        return any(s in near and s in self.policy.codec.text(row.ids) for s in self.decoding.stop)

    def _compact(
        self, keep: list[bool], chosen: tuple[Tensor, Tensor], mask: Tensor
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        kept = torch.tensor([i for i, k in enumerate(keep) if k], device=self.device)
        self.live = [row for row, k in zip(self.live, keep, strict=True) if k]
        self.keys, self.positions = self.keys[kept], self.positions[kept]
        select_rows(self.cache, kept)
        return (chosen[0][kept], chosen[1][kept]), mask[kept]

    def _forward(self, chosen: tuple[Tensor, Tensor], mask: Tensor, step: int) -> Tensor:
        filled = self.longest + step + 1
        mask[:, filled - 1] = 1
        out = self.policy.model(
            input_ids=chosen[0][:, None],
            attention_mask=mask[:, :filled],
            position_ids=self.positions[:, None],
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.positions = (self.positions + 1).clamp(max=self.policy.context - 1)  # rows that ended may still be here
        going = [row.start + len(row.ids) for row in self.live if row.finish is None]
        self.ledger.charge(self.policy.name, "decode", len(going), self.policy.flops(len(going), sum(going)))
        logits: Tensor = out.logits[:, -1]
        return logits
