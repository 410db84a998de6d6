"""The learner: token-budget micro-batches, an objective, one optimiser step per minibatch.

Invariants: the old policy is the one that sampled, for all epochs and minibatches of a lesson, so that clipping is
alive; the denominators of a minibatch are counted before it is cut; a loss or gradient that is not finite leaves the
weights as they were before its step, and ends the lesson.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milonga.engine.base import LearnReport, Ledger
from milonga.engine.local.batches import MicroBatch, build, cut, last_token, on_device, trained_tokens
from milonga.engine.local.head import chunked_head, full_head
from milonga.engine.local.memory import pass_tokens
from milonga.engine.local.packed import Working, working
from milonga.engine.local.policy import Policy
from milonga.objectives.losses import Denominators, Rows, Sums, TokenTerms, loss, value_loss
from milonga.objectives.spec import PAIRED
from milonga.randomness import key64
from milonga.types import Floats, Lesson, Trace


def last_hidden(policy: Policy, batch: MicroBatch, places: Tensor, working: Working | None) -> Tensor:
    """Hidden states at some places of a micro-batch, by the packed pass or by the model's own.

    No attention mask: padded rows are padded on the right, and a causal model never looks there from a real token.
    """
    if working is not None:
        assert batch.packing is not None
        return working.hidden(batch.ids, batch.packing, places)
    hidden: Tensor = policy.backbone(input_ids=batch.ids, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1).index_select(0, places)


def token_logprobs(policy: Policy, batch: MicroBatch, working: Working | None = None) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy at every trained token of a micro-batch."""
    before = batch.places - 1
    with nullcontext() if working is not None else policy.computing():
        if policy.plain_head:
            hidden = last_hidden(policy, batch, before, working)
            head = policy.causal.get_output_embeddings()
            given = None if working is None else working.head
            return chunked_head(hidden, head.weight, head.bias, batch.targets, batch.temperature, given)
        logits = policy.model(input_ids=batch.ids, use_cache=False).logits
        return full_head(logits.flatten(0, 1).index_select(0, before), batch.targets, batch.temperature)


def head_values(policy: Policy, batch: MicroBatch, working: Working | None = None) -> Tensor:
    """What the value head says after reading each of the batch's tokens and all before it."""
    with nullcontext() if working is not None else policy.computing():
        hidden = last_hidden(policy, batch, batch.places, working)
    return policy.value(hidden)


def batches(
    policy: Policy,
    traces: Sequence[Trace],
    masks: Sequence[NDArray[np.bool_]] | None,
    working: Working | None,
    units: Sequence[int] | None = None,
) -> Iterator[MicroBatch]:
    """The rows cut by the policy's budget: packed where there is a packed pass, padded elsewhere."""
    padless = working is not None and working.padless
    for members in cut(traces, pass_tokens(policy), units, padless):
        yield build(traces, members, policy.pad, policy.device, masks, working is not None)


@torch.no_grad()
def values(policy: Policy, traces: Sequence[Trace], tag: str, ledger: Ledger) -> list[Floats]:
    """The value at every token under policy@tag, aligned with each trace's ids."""
    out = [np.zeros(len(t.ids)) for t in traces]
    everywhere = [np.ones(len(t.ids), dtype=bool) for t in traces]
    with policy.at(tag):
        ready = working(policy)
        for batch in batches(policy, traces, everywhere, ready):
            found = head_values(policy, batch, ready).cpu().numpy()
            ledger.charge(policy.name, "score", batch.tokens, policy.flops(batch.tokens, batch.attended))
            ends = np.cumsum([len(row) for row in batch.trained])
            for member, value in zip(batch.members, np.split(found, ends[:-1]), strict=True):
                out[member][:] = value
    return out


@torch.no_grad()
def score(policy: Policy, traces: Sequence[Trace], tag: str, ledger: Ledger) -> list[Floats]:
    """Log-probabilities of the trained tokens under policy@tag, aligned with each trace's ids."""
    out = [np.zeros(len(t.ids)) for t in traces]
    asked = [i for i, t in enumerate(traces) if trained_tokens(t).any()]
    chosen = [traces[i] for i in asked]
    with policy.at(tag):
        ready = working(policy)
        for batch in batches(policy, chosen, None, ready):
            logp, _ = token_logprobs(policy, batch, ready)
            ledger.charge(policy.name, "score", batch.tokens, policy.flops(batch.tokens, batch.attended))
            values = np.split(logp.cpu().numpy(), np.cumsum([row.sum() for row in batch.trained])[:-1])
            for member, mask, value in zip(batch.members, batch.trained, values, strict=True):
                out[asked[member]][mask] = value
    return out


@dataclass
class _Sums:
    """What is summed over the tokens of a lesson, to be divided once at the end. Sums of what the device computed stay there
    until then."""

    loss: float = 0.0
    entropy: Tensor | float = 0.0
    kl: Tensor | float = 0.0
    clipped: Tensor | float = 0.0
    tokens: int = 0
    drift: Tensor | float = 0.0
    drift_tokens: int = 0
    hits: Tensor | float = 0.0
    judged: float = 0.0

    def add(self, sums: Sums) -> None:
        for name, amount in sums.items():
            setattr(self, name, getattr(self, name) + (amount.double() if isinstance(amount, Tensor) else amount))


class _Update:
    """One lesson being learned."""

    def __init__(self, policy: Policy, lesson: Lesson, limit: int, ledger: Ledger) -> None:
        self.policy, self.lesson, self.ledger, self.limit = policy, lesson, ledger, limit
        self.objective = lesson.objective
        self.reference: list[Floats] | None = None
        regularised = self.objective.kl_coef and self.objective.kl_in == "loss"
        if regularised and lesson.targets is not None and self.objective.on_values:
            self.reference = values(policy, lesson.traces, self.objective.kl_from, ledger)
        elif self.objective.on_ratio or (regularised and self.objective.kind == "policy_gradient"):
            self.reference = score(policy, lesson.traces, self.objective.kl_from, ledger)
        self.masks = [self._mask(row) for row in range(len(lesson.traces))]
        self.ready: Working | None = None
        """The weights of the step that is being taken, for packed passes."""
        self.sums = _Sums()
        self.report = LearnReport()
        self.norms: list[float] = []

    def _mask(self, row: int) -> NDArray[np.bool_]:
        """The tokens of a row that the objective is about."""
        trace = self.lesson.traces[row]
        if self.objective.kind == "bradley_terry":
            return last_token(trace)
        if self.objective.on_values and self.lesson.targets is not None:
            return ~np.isnan(self.lesson.targets[row])
        return trained_tokens(trace)

    def run(self) -> LearnReport:
        section = self.policy.section
        if self.policy.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.policy.device)
        self.policy.activate()
        self.policy.optimiser.zero_grad(set_to_none=True)  # what an update that was interrupted may have left
        for epoch in range(section.epochs):
            for number, rows in enumerate(self._minibatches(epoch)):
                fresh = epoch == 0 and number == 0
                if not self._step(rows, fresh):
                    return self._finish()
        return self._finish()

    def _minibatches(self, epoch: int) -> list[list[int]]:
        """Units shuffled by a key, in equal parts; one part keeps the given order."""
        count = len(self.lesson.traces)
        parts = self.policy.section.minibatches
        if parts == 1:
            return [list(range(count))]
        units = self.lesson.units or list(range(count))
        distinct = list(dict.fromkeys(units))
        key = key64("minibatch", self.policy.name, self.policy.updates, epoch)
        shuffled = np.random.default_rng(key).permutation(len(distinct))
        chosen = [{distinct[i] for i in part} for part in np.array_split(shuffled, parts)]
        split = [[row for row, unit in enumerate(units) if unit in part] for part in chosen]
        return [rows for rows in split if rows]

    def _step(self, rows: list[int], fresh: bool) -> bool:
        """One optimiser step; False if it was refused."""
        pairs = len({self.lesson.units[r] for r in rows}) if self.lesson.units else 0
        over = Denominators(max(1, sum(int(self.masks[r].sum()) for r in rows)), len(rows), self.limit, pairs)
        moving = [r for r in rows if self._moves(r)]
        chosen = [self.lesson.traces[r] for r in moving]
        masks = [self.masks[r] for r in moving]
        units = [self.lesson.units[r] for r in moving] if self.lesson.units else None
        parts = []
        self.ready = working(self.policy) if moving else None
        for batch in batches(self.policy, chosen, masks, self.ready, units):
            parts.append(self._backward(batch, [moving[m] for m in batch.members], over, fresh))
        self.ready = None
        gradients = self.policy.look_ahead() if moving and self.policy.section.optimism else None
        size = self.policy.gradient_norm()
        # The one place of a step where the host waits for the device.
        total, norm = torch.stack([sum(parts, torch.zeros_like(size, dtype=torch.float64)), size.double()]).tolist()
        self.policy.clip(size, norm)
        self.sums.loss += total
        if not np.isfinite(total) or not np.isfinite(norm):
            self.policy.optimiser.zero_grad(set_to_none=True)
            what = "loss" if not np.isfinite(total) else "gradient"
            when = f" after {self.report.steps} steps" if self.report.steps else ""
            self.report.skipped = f"{what} is not finite: the update was stopped{when}, the weights left as they were"
            return False
        if moving:
            self.policy.optimiser.step()
            self.policy.gradients = gradients
            self.report.steps += 1
        self.policy.optimiser.zero_grad(set_to_none=True)
        self.norms.append(norm)
        return True

    def _moves(self, row: int) -> bool:
        """Whether a row can move the weights at all; rows that cannot cost nothing."""
        if self.lesson.weights is not None and self.lesson.weights[row] == 0:
            return False
        mask = self.masks[row]
        if self.objective.kind != "policy_gradient" or self.objective.regularised or self.lesson.advantages is None:
            return bool(mask.any())
        return bool(np.any(self.lesson.advantages[row][mask]))

    def _backward(self, batch: MicroBatch, rows: list[int], over: Denominators, fresh: bool) -> Tensor:
        value, sums = (self._of_values if self.objective.on_values else self._of_tokens)(batch, rows, over, fresh)
        value.backward()  # type: ignore[no-untyped-call]
        flops = self._learn_factor() * self.policy.flops(batch.tokens, batch.attended)
        self.ledger.charge(self.policy.name, "learn", batch.tokens, flops)
        self.sums.tokens += len(batch.rows)
        self.sums.add(sums)
        return value.detach().double()

    def _of_tokens(self, batch: MicroBatch, rows: list[int], over: Denominators, fresh: bool) -> tuple[Tensor, Sums]:
        """The loss of a language model's probabilities."""
        logp, entropy = token_logprobs(self.policy, batch, self.ready)
        old = batch.flat([self.lesson.traces[r].logprobs for r in rows], self.policy.device)
        given = self.lesson.advantages
        terms = TokenTerms(
            logp=logp,
            entropy=entropy,
            old=old,
            rows=batch.rows,
            of_rows=self._rows(batch, rows),
            advantage=self._flat(batch, given, rows),
            reference=self._flat(batch, self.reference, rows),
            factor=self._flat(batch, self.lesson.factors, rows),
        )
        value, sums = loss(self.objective, terms, over)
        sums["entropy"] = entropy.detach().sum()
        if fresh and self.objective.kind == "policy_gradient":
            sums |= {"drift": (logp.detach() - old).abs().sum(), "drift_tokens": len(logp)}
        return value, sums

    def _of_values(self, batch: MicroBatch, rows: list[int], over: Denominators, fresh: bool) -> tuple[Tensor, Sums]:
        """The loss of a value head."""
        found = head_values(self.policy, batch, self.ready)
        targets = self._flat(batch, self.lesson.targets, rows)
        reference = self._flat(batch, self.reference, rows)
        return value_loss(self.objective, found, targets, batch.rows, self._rows(batch, rows), over, reference)

    def _flat(self, batch: MicroBatch, arrays: list[Floats] | None, rows: list[int]) -> Tensor | None:
        return None if arrays is None else batch.flat([arrays[r] for r in rows], self.policy.device)

    def _rows(self, batch: MicroBatch, rows: list[int]) -> Rows:
        """What the lesson says of whole rows, for the rows of a micro-batch."""

        def column(values: list[float] | None) -> Tensor | None:
            return None if values is None else self._row([values[r] for r in rows], np.float32)

        pairs = None
        if self.objective.kind in PAIRED:
            pairs = self._row(self._pairs(rows), np.int64)
        return Rows(batch.lengths, column(self.lesson.weights), column(self.lesson.labels), pairs)

    def _row(self, values: Sequence[Any], dtype: type[np.generic]) -> Tensor:
        return on_device(np.array(values, dtype=dtype), self.policy.device)

    def _pairs(self, rows: list[int]) -> list[tuple[int, int]]:
        """Winner and loser of each unit, as places in a micro-batch."""
        units, labels = self.lesson.units, self.lesson.labels
        assert units is not None and labels is not None
        found: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            found.setdefault(units[row], []).append(place)
        if any(len(pair) != 2 for pair in found.values()):
            raise ValueError(f"lesson for '{self.policy.name}': a unit of '{self.objective.kind}' is a pair of two rows")
        return [(a, b) if labels[rows[a]] > labels[rows[b]] else (b, a) for a, b in found.values()]

    def _learn_factor(self) -> float:
        """Forward and backward in forwards: a frozen base needs no gradient of its weights."""
        return 2.0 if self.policy.adapter else 3.0

    def _finish(self) -> LearnReport:
        report, sums, tokens = self.report, self.sums, self.sums.tokens
        report.loss = sums.loss / max(1, len(self.norms))
        report.grad_norm = float(np.mean(self.norms)) if self.norms else 0.0
        if tokens and self.reference is not None and not self.objective.on_ratio:
            report.kl = float(sums.kl) / tokens
        if tokens and not self.objective.on_values:
            report.entropy = float(sums.entropy) / tokens
            report.clip_fraction = float(sums.clipped) / tokens
        if sums.judged:
            report.accuracy = float(sums.hits) / sums.judged
        if sums.drift_tokens:
            report.mismatch = float(sums.drift) / sums.drift_tokens
        report.tokens = sums.tokens
        if self.policy.device.type == "cuda":
            report.peak_gib = torch.cuda.max_memory_allocated(self.policy.device) / 2**30
        self.policy.updates += 1
        return report


def learn(policy: Policy, lesson: Lesson, limit: int, ledger: Ledger) -> LearnReport:
    """Learn one lesson. `limit` is the sampling limit, the default length constant of Dr.GRPO."""
    return _Update(policy, lesson, limit, ledger).run()
