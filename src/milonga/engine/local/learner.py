"""The learner: token-budget micro-batches, a loss, one optimizer step per minibatch.

Invariants: the old policy is the one that sampled, for all epochs and minibatches of a train batch, so that clipping has an
effect; or, where the loss asks for it, the one that begins to learn. So it is for a stale train batch, where a truncated
importance weight on the advantage corrects for the difference (decoupled PPO), in no other term; a loss whose ratio is such a
weight needs neither. The denominators of a minibatch are counted before it is cut. A loss or gradient that is not finite leaves
the weights as they were before its step, and ends the update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milonga.engine.base import LearnReport, Ledger
from milonga.engine.local.batches import (
    MicroBatch,
    build_micro_batch,
    cut_micro_batches,
    find_heads,
    mask_last_token,
    mask_trained_tokens,
)
from milonga.engine.local.data_parallel import DataParallel
from milonga.engine.local.head import compute_chunked_logprobs, compute_full_logprobs
from milonga.engine.local.memory import pass_tokens
from milonga.engine.local.packed import WorkingWeights, make_working_weights
from milonga.engine.local.packing import copy_to_device
from milonga.engine.local.policy import Policy
from milonga.objectives.losses import Denominators, Rows, Sums, TokenTerms, compute_loss, compute_value_loss, truncated_weights
from milonga.objectives.rates import warm_up_factor
from milonga.objectives.spec import PAIRED
from milonga.randomness import key64
from milonga.types import Floats, Parsed, Problem, Rollout, TrainBatch


def compute_hidden(policy: Policy, batch: MicroBatch, places: Tensor, working: WorkingWeights | None) -> Tensor:
    """Hidden states at some places of a micro-batch, by the packed pass or by the model's own.

    No attention mask: padded rows are padded on the right, and a causal model never looks there from a real token.
    """
    if working is not None:
        assert batch.packing is not None
        return working.compute_hidden(batch.ids, batch.packing, places)
    hidden: Tensor = policy.backbone(input_ids=batch.ids, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1).index_select(0, places)


def compute_token_logprobs(policy: Policy, batch: MicroBatch, working: WorkingWeights | None = None) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy at every trained token of a micro-batch."""
    before = batch.places - 1
    with nullcontext() if working is not None else policy.use_compute_dtype():
        if policy.plain_head:
            hidden = compute_hidden(policy, batch, before, working)
            head = policy.causal.get_output_embeddings()
            given = None if working is None else working.head
            return compute_chunked_logprobs(hidden, head.weight, head.bias, batch.targets, batch.temperature, given)
        logits = policy.model(input_ids=batch.ids, use_cache=False).logits
        return compute_full_logprobs(logits.flatten(0, 1).index_select(0, before), batch.targets, batch.temperature)


def _compute_head_values(policy: Policy, batch: MicroBatch, working: WorkingWeights | None = None) -> Tensor:
    """Values of the value head at each of the batch's tokens in the loss."""
    with nullcontext() if working is not None else policy.use_compute_dtype():
        hidden = compute_hidden(policy, batch, batch.places, working)
    return policy.compute_value(hidden)


def make_micro_batches(
    policy: Policy,
    rollouts: Sequence[Rollout],
    masks: Sequence[NDArray[np.bool_]] | None,
    working: WorkingWeights | None,
    units: Sequence[int] | None = None,
) -> Iterator[MicroBatch | None]:
    """Make micro-batches within the policy's token budget: packed if there is a packed pass, else padded. None stands for a
    pass that only other workers have rows for: workers that share weights make all passes together."""
    padless = working is not None and working.padless
    heads = find_heads(rollouts, masks) if working is not None and working.shares_heads else None
    cuts = list(cut_micro_batches(rollouts, pass_tokens(policy), units, padless, heads))
    most = policy.parallel.max_over_workers(len(cuts))  # asked before the first pass, as by all of them
    for members in cuts:
        yield build_micro_batch(rollouts, members, policy.pad, policy.device, masks, working is not None, heads)
    yield from [None] * (most - len(cuts))


def run_empty_pass(policy: Policy, compute: Callable[..., Any]) -> Tensor:
    """Run a pass over an empty row, so that workers stay in step: a zero that depends on the weights."""
    ids = np.full(2, policy.pad, dtype=np.int64)
    row = Rollout("", "", Problem("", "", ""), ids, (), np.zeros(2), "", Parsed(None, 0.0))
    batch = build_micro_batch([row], [0], policy.pad, policy.device, [np.array([False, True])])
    found = policy.run_pass(compute, batch)
    nothing: Tensor = 0.0 * (found[0] if isinstance(found, tuple) else found).sum()
    return nothing


@torch.no_grad()
def score_values(policy: Policy, rollouts: Sequence[Rollout], tag: str, ledger: Ledger) -> list[Floats]:
    """The value at every token under policy@tag: one float array per rollout, aligned with its ids."""
    everywhere = [np.ones(len(t.ids), dtype=bool) for t in rollouts]
    return _score_masked(policy, rollouts, everywhere, tag, ledger, _compute_head_values)


@torch.no_grad()
def score(policy: Policy, rollouts: Sequence[Rollout], tag: str, ledger: Ledger) -> list[Floats]:
    """Log-probabilities of the trained tokens under policy@tag: one float array per rollout, aligned with its ids."""
    return _score_masked(policy, rollouts, [mask_trained_tokens(t) for t in rollouts], tag, ledger, _compute_logprobs)


def _compute_logprobs(policy: Policy, batch: MicroBatch, working: WorkingWeights | None = None) -> Tensor:
    return compute_token_logprobs(policy, batch, working)[0]


def _score_masked(
    policy: Policy,
    rollouts: Sequence[Rollout],
    masks: Sequence[NDArray[np.bool_]],
    tag: str,
    ledger: Ledger,
    compute: Callable[..., Tensor],
) -> list[Floats]:
    """Compute a number for each token of a mask, and zero elsewhere. Rows without such tokens are not computed."""
    asked = [i for i, mask in enumerate(masks) if mask.any()]
    mine = [asked[i] for i in policy.parallel.select_own_rows([len(rollouts[i].ids) for i in asked])]
    found: dict[int, Floats] = {}
    with policy.use_version(tag):
        ready = make_working_weights(policy)
        for batch in make_micro_batches(policy, [rollouts[i] for i in mine], [masks[i] for i in mine], ready):
            if batch is None:
                run_empty_pass(policy, compute)
                continue
            flat = policy.run_pass(compute, batch, ready).cpu().numpy()
            ledger.charge(policy.name, "score", batch.tokens, policy.flops(batch.tokens, batch.attended_pairs))
            parts = np.split(flat, np.cumsum([row.sum() for row in batch.trained])[:-1])
            found |= {mine[member]: part for member, part in zip(batch.members, parts, strict=True)}
    out = [np.zeros(len(t.ids)) for t in rollouts]
    for row, values in policy.parallel.gather_by_row(found).items():
        policy.require_finite(values)
        out[row][masks[row]] = values
    return out


@dataclass
class _Sums:
    """Statistics summed over the tokens of a train batch, to be divided once at the end. Sums that the device computed stay
    there until then."""

    loss: float = 0.0
    entropy: Tensor | float = 0.0
    kl: Tensor | float = 0.0
    clipped: Tensor | float = 0.0
    tokens: int = 0
    drift: Tensor | float = 0.0
    drift_tokens: int = 0
    hits: Tensor | float = 0.0
    judged: float = 0.0
    weight: Tensor | float = 0.0
    truncated: Tensor | float = 0.0
    weighed: int = 0

    def add(self, sums: Sums) -> None:
        for name, amount in sums.items():
            setattr(self, name, getattr(self, name) + (amount.double() if isinstance(amount, Tensor) else amount))

    def reduce_over_workers(self, parallel: DataParallel) -> None:
        """Sum over all workers, except the loss, which is the same on all of them."""
        if parallel.workers > 1:
            names = [name for name in vars(self) if name != "loss"]
            mine = torch.tensor([float(getattr(self, name)) for name in names], dtype=torch.float64)
            for name, amount in zip(names, parallel.sum_over_workers(mine).tolist(), strict=True):
                setattr(self, name, amount)


class _Update:
    """One update: the learning of one train batch."""

    def __init__(self, policy: Policy, train_batch: TrainBatch, ledger: Ledger, tell: Callable[[int, int], None]) -> None:
        self.policy, self.train_batch, self.ledger, self.tell = policy, train_batch, ledger, tell
        self.loss = train_batch.loss
        self.reference: list[Floats] | None = None
        if self.loss.kl_coef and train_batch.targets is not None and self.loss.uses_value_head:
            self.reference = score_values(policy, train_batch.rollouts, self.loss.kl_from, ledger)
        elif self.loss.uses_log_ratio or (self.loss.kl_coef and self.loss.kind == "policy_gradient"):
            self.reference = score(policy, train_batch.rollouts, self.loss.kl_from, ledger)
        self.masks = [self._make_mask(row) for row in range(len(train_batch.rollouts))]
        stale = train_batch.stale_cap is not None
        self.recomputes = self.loss.recomputes_old(policy.device.type == "cpu") or (stale and not self.loss.weighs_by_ratio)
        """Whether the old policy is the one that begins to learn, instead of the one that sampled."""
        self.now: list[Floats] | None = None
        """Log-probabilities under the weights at the update's start, if they are used; None if its only pass gives them."""
        if self.recomputes and (policy.section.epochs > 1 or policy.section.minibatches > 1):
            self.now = self._score_starting_weights()
        self.ready: WorkingWeights | None = None
        """Working weights of the current optimizer step, for packed passes."""
        self.sums = _Sums()
        self.steps_before = 0
        """Optimizer steps before this update; counted only where they matter, for the warm-up."""
        self.report = LearnReport()
        self.norms: list[float] = []
        self.passed = 0
        """Rows that had their gradients, once in each epoch."""
        self.rows = self.policy.section.epochs * sum(map(self._has_gradient, range(len(train_batch.rollouts))))
        """So many there will be."""

    def _make_mask(self, row: int) -> NDArray[np.bool_]:
        """Mask of the tokens of a row that are in the loss, aligned with its ids."""
        rollout = self.train_batch.rollouts[row]
        if self.loss.kind == "bradley_terry":
            return mask_last_token(rollout)
        if self.loss.uses_value_head and self.train_batch.targets is not None:
            return ~np.isnan(self.train_batch.targets[row])
        return mask_trained_tokens(rollout)

    def _score_starting_weights(self) -> list[Floats]:
        """Log-probabilities of the rows with advantages under the weights at the start of the update; others are not used."""
        rollouts = self.train_batch.rollouts
        rows = [row for row in range(len(rollouts)) if self._has_gradient(row) and self._has_advantage(row)]
        found = score(self.policy, [rollouts[row] for row in rows], "live", self.ledger)
        now = dict(zip(rows, found, strict=True))
        return [now.get(row, rollout.logprobs) for row, rollout in enumerate(rollouts)]

    def run(self) -> LearnReport:
        section = self.policy.section
        if self.policy.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.policy.device)
        self.policy.activate()
        self.steps_before = self.policy.count_steps() if section.warmup_steps else 0
        self.policy.optimizer.zero_grad(set_to_none=True)  # what an update that was interrupted may have left
        for epoch in range(section.epochs):
            for number, rows in enumerate(self._split_minibatches(epoch)):
                fresh = epoch == 0 and number == 0
                if not self._take_step(rows, fresh):
                    return self._make_report()
        return self._make_report()

    def _split_minibatches(self, epoch: int) -> list[list[int]]:
        """Units shuffled by a key, in equal parts; one part keeps the given order."""
        count = len(self.train_batch.rollouts)
        parts = self.policy.section.minibatches
        if parts == 1:
            return [list(range(count))]
        units = self.train_batch.units or list(range(count))
        distinct = list(dict.fromkeys(units))
        key = key64("minibatch", self.policy.name, self.policy.updates, epoch)
        shuffled = np.random.default_rng(key).permutation(len(distinct))
        chosen = [{distinct[i] for i in part} for part in np.array_split(shuffled, parts)]
        split = [[row for row, unit in enumerate(units) if unit in part] for part in chosen]
        return [rows for rows in split if rows]

    def _take_step(self, rows: list[int], fresh: bool) -> bool:
        """Take one optimizer step; False if the loss or gradient was not finite."""
        pairs = len({self.train_batch.units[r] for r in rows}) if self.train_batch.units else 0
        over = Denominators(max(1, sum(int(self.masks[r].sum()) for r in rows)), len(rows), pairs)
        moving = [r for r in rows if self._has_gradient(r)]
        self.ready = make_working_weights(self.policy) if moving else None
        part = self._run_pass(self._select_own_rows(moving), over, fresh)
        self.ready = None
        gradients = self.policy.extrapolate_gradients() if moving and self.policy.section.optimism else None
        size = self.policy.gradient_norm()
        # The one place of a step where the host waits for the device.
        total, norm = torch.stack([self.policy.parallel.sum_over_workers(part), size.double().to(part.device)]).tolist()
        self.policy.clip_gradients(size, norm)
        self.sums.loss += total
        if not np.isfinite(total) or not np.isfinite(norm):
            self.policy.optimizer.zero_grad(set_to_none=True)
            what = "loss" if not np.isfinite(total) else "gradient"
            when = f" after {self.report.steps} steps" if self.report.steps else ""
            self.report.skipped = f"{what} is not finite: the update was stopped{when}, the weights left as they were"
            return False
        if moving:
            self.report.lr = self._compute_rate()
            with self.policy.moments_on_device():
                self.policy.step_optimizer(self.report.lr)
                self.policy.gradients = gradients
            self.report.steps += 1
        self.policy.optimizer.zero_grad(set_to_none=True)
        self.norms.append(norm)
        return True

    def _compute_rate(self) -> float:
        """The learning rate of the next optimizer step."""
        section = self.policy.section
        warm = warm_up_factor(self.steps_before + self.report.steps, section.warmup_steps)
        return section.learning_rate * self.train_batch.lr_scale * warm

    def _select_own_rows(self, rows: list[int]) -> list[int]:
        units = [self.train_batch.units[r] for r in rows] if self.train_batch.units else None
        return [
            rows[i] for i in self.policy.parallel.select_own_rows([len(self.train_batch.rollouts[r].ids) for r in rows], units)
        ]

    def _run_pass(self, rows: list[int], over: Denominators, fresh: bool) -> Tensor:
        """Forward and backward over some rows; returns their part of the loss."""
        chosen = [self.train_batch.rollouts[r] for r in rows]
        masks = [self.masks[r] for r in rows]
        units = [self.train_batch.units[r] for r in rows] if self.train_batch.units else None
        part = torch.zeros((), dtype=torch.float64, device=self.policy.device)
        for batch in make_micro_batches(self.policy, chosen, masks, self.ready, units):
            if batch is None:
                run_empty_pass(
                    self.policy, _compute_head_values if self.loss.uses_value_head else compute_token_logprobs
                ).backward()  # type: ignore[no-untyped-call]
            else:
                part = part + self._backward(batch, [rows[m] for m in batch.members], over, fresh)
                self.passed += len(batch.members)
                self.tell(self.passed, self.rows)
        return part

    def _has_gradient(self, row: int) -> bool:
        """Whether a row can move the weights at all; rows that cannot cost nothing."""
        if self.train_batch.weights is not None and self.train_batch.weights[row] == 0:
            return False
        mask = self.masks[row]
        if self.loss.kind != "policy_gradient" or self.loss.is_regularised or self.train_batch.advantages is None:
            return bool(mask.any())
        return self._has_advantage(row)

    def _has_advantage(self, row: int) -> bool:
        """Whether any token of a row has an advantage."""
        return self.train_batch.advantages is not None and bool(np.any(self.train_batch.advantages[row][self.masks[row]]))

    def _backward(self, batch: MicroBatch, rows: list[int], over: Denominators, fresh: bool) -> Tensor:
        value, sums = (self._compute_value_loss if self.loss.uses_value_head else self._compute_token_loss)(
            batch, rows, over, fresh
        )
        value.backward()  # type: ignore[no-untyped-call]
        flops = self._learn_factor() * self.policy.flops(batch.tokens, batch.attended_pairs)
        self.ledger.charge(self.policy.name, "learn", batch.tokens, flops)
        self.sums.tokens += len(batch.rows)
        self.sums.add(sums)
        return value.detach().double()

    def _compute_token_loss(self, batch: MicroBatch, rows: list[int], over: Denominators, fresh: bool) -> tuple[Tensor, Sums]:
        """The loss of a language model's probabilities."""
        logp, entropy = self.policy.run_pass(compute_token_logprobs, batch, self.ready)
        sampled = batch.flatten_rows([self.train_batch.rollouts[r].logprobs for r in rows], self.policy.device)
        old, advantage, aged = sampled, self._flatten_rows(batch, self.train_batch.advantages, rows), Sums()
        if self.recomputes:
            # If an update is one optimizer step, its only pass has the starting weights: no scoring pass is needed before it.
            old = logp.detach() if self.now is None else batch.flatten_rows([self.now[r] for r in rows], self.policy.device)
        if self.train_batch.stale_cap is not None:
            assert advantage is not None
            now, cap = (old, self.train_batch.stale_cap) if self.recomputes else (logp.detach(), self.loss.is_max)
            weight, aged = self._compute_stale_weights(batch, rows, now, sampled, cap)
            advantage = advantage * weight if self.recomputes else advantage
        terms = TokenTerms(
            logp=logp,
            entropy=entropy,
            old=old,
            rows=batch.rows,
            of_rows=self._build_rows(batch, rows),
            advantage=advantage,
            reference=self._flatten_rows(batch, self.reference, rows),
            factor=self._flatten_rows(batch, self.train_batch.factors, rows),
        )
        value, sums = compute_loss(self.loss, terms, over)
        sums |= aged | {"entropy": entropy.detach().sum()}
        if fresh and self.loss.kind == "policy_gradient":
            sums |= {"drift": (logp.detach() - sampled).abs().sum(), "drift_tokens": len(logp)}
        return value, sums

    def _compute_stale_weights(
        self, batch: MicroBatch, rows: list[int], old: Tensor, sampled: Tensor, cap: float
    ) -> tuple[Tensor, Sums]:
        """Truncated importance weights of stale tokens, and their sums over the rows with advantages."""
        weight, cut = truncated_weights(old, sampled, cap)
        credited = [self._has_advantage(r) for r in rows]
        counted = self._to_tensor(credited, np.bool_)[batch.rows]
        tokens = sum(int(mask.sum()) for mask, kept in zip(batch.trained, credited, strict=True) if kept)
        return weight, {"weight": (weight * counted).sum(), "truncated": (cut & counted).sum(), "weighed": tokens}

    def _compute_value_loss(self, batch: MicroBatch, rows: list[int], over: Denominators, fresh: bool) -> tuple[Tensor, Sums]:
        """The loss of a value head."""
        found = self.policy.run_pass(_compute_head_values, batch, self.ready)
        targets = self._flatten_rows(batch, self.train_batch.targets, rows)
        reference = self._flatten_rows(batch, self.reference, rows)
        return compute_value_loss(self.loss, found, targets, batch.rows, self._build_rows(batch, rows), over, reference)

    def _flatten_rows(self, batch: MicroBatch, arrays: list[Floats] | None, rows: list[int]) -> Tensor | None:
        return None if arrays is None else batch.flatten_rows([arrays[r] for r in rows], self.policy.device)

    def _build_rows(self, batch: MicroBatch, rows: list[int]) -> Rows:
        """Build the per-row inputs of the loss for a micro-batch."""

        def column(values: list[float] | None) -> Tensor | None:
            return None if values is None else self._to_tensor([values[r] for r in rows], np.float32)

        pairs = None
        if self.loss.kind in PAIRED:
            pairs = self._to_tensor(self._find_pairs(rows), np.int64)
        return Rows(batch.lengths, column(self.train_batch.weights), column(self.train_batch.labels), pairs)

    def _to_tensor(self, values: Sequence[Any], dtype: type[np.generic]) -> Tensor:
        return copy_to_device(np.array(values, dtype=dtype), self.policy.device)

    def _find_pairs(self, rows: list[int]) -> list[tuple[int, int]]:
        """Find winner and loser of each unit, as row numbers in the micro-batch."""
        units, labels = self.train_batch.units, self.train_batch.labels
        assert units is not None and labels is not None
        found: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            found.setdefault(units[row], []).append(place)
        if any(len(pair) != 2 for pair in found.values()):
            raise ValueError(f"train batch for '{self.policy.name}': a unit of '{self.loss.kind}' is a pair of two rows")
        return [(a, b) if labels[rows[a]] > labels[rows[b]] else (b, a) for a, b in found.values()]

    def _learn_factor(self) -> float:
        """Cost of forward and backward, in forward passes: a frozen base needs no gradient of its weights."""
        return 2.0 if self.policy.adapter else 3.0

    def _make_report(self) -> LearnReport:
        self.sums.reduce_over_workers(self.policy.parallel)
        report, sums, tokens = self.report, self.sums, int(self.sums.tokens)
        report.loss = sums.loss / max(1, len(self.norms))
        report.grad_norm = float(np.mean(self.norms)) if self.norms else 0.0
        if tokens and self.reference is not None and not self.loss.uses_log_ratio:
            report.kl = float(sums.kl) / tokens
        if tokens and not self.loss.uses_value_head:
            report.entropy = float(sums.entropy) / tokens
            report.clip_fraction = float(sums.clipped) / tokens
        if sums.judged:
            report.accuracy = float(sums.hits) / sums.judged
        if sums.drift_tokens:
            report.mismatch = float(sums.drift) / sums.drift_tokens
        if sums.weighed:
            report.stale_weight = float(sums.weight) / sums.weighed
            report.stale_truncated = float(sums.truncated) / sums.weighed
        report.tokens = tokens
        if self.policy.device.type == "cuda":
            report.peak_gib = torch.cuda.max_memory_allocated(self.policy.device) / 2**30
        self.policy.updates += 1
        return report


def learn(
    policy: Policy, train_batch: TrainBatch, ledger: Ledger, tell: Callable[[int, int], None] = lambda done, total: None
) -> LearnReport:
    """Learn from one train batch. `tell` is told after each pass how many rows had their gradients, and of how many: of all
    minibatches, and in each epoch anew."""
    return _Update(policy, train_batch, ledger, tell).run()
