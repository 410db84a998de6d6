"""The losses: pure functions of per-token log-probabilities and entropies.

Layout: tokens of all rows lie in one flat axis; `rows[i]` is the row (sequence) of token i. Padding never appears here.
Invariant (law 5): a loss is a sum over tokens of weights times terms. The weights hold the denominator, which is fixed over the
whole batch of an optimizer step before any micro-batching, so that the result does not depend on how the batch is cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from milonga.objectives.spec import Loss

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped before exp: beyond this a ratio is a defect, not information."""
Sums = dict[str, Tensor | float]
"""Statistics summed over tokens, still on the device: reading one would make the host wait for it."""


@dataclass(frozen=True)
class Denominators:
    """Denominators of the loss: the counts of the whole batch of one optimizer step."""

    tokens: int
    """Tokens in the loss: trained ones, or those with a target for a value head."""
    sequences: int
    pairs: int = 0


def token_weights(loss: Loss, rows: Tensor, lengths: Tensor, over: Denominators) -> Tensor:
    """Weight of each token in the loss, [tokens]. `lengths[r]` is the number of trained tokens of row r."""
    if loss.aggregate == "token_mean":
        return torch.full(rows.shape, 1.0 / over.tokens, device=rows.device)
    if loss.aggregate == "sequence_sum":
        return torch.full(rows.shape, 1.0 / over.sequences, device=rows.device)
    if loss.aggregate == "constant":
        if loss.length is None:
            raise ValueError("aggregate='constant' needs `length`, the number of tokens that every sequence is divided by")
        return torch.full(rows.shape, 1.0 / (over.sequences * loss.length), device=rows.device)
    return 1.0 / (over.sequences * lengths[rows].to(torch.float32))


def _importance_ratio(loss: Loss, logp: Tensor, old: Tensor, rows: Tensor, lengths: Tensor) -> Tensor:
    """Importance ratio pi / pi_old of each token, [tokens], with the gradient of its own log-probability.

    The sequence forms use sg[s] * pi / sg[pi]: the value is the sequence's, the gradient stays with the token, so that
    advantages may differ along a sequence.
    """
    difference = logp - old
    if loss.ratio == "token":
        return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    total = torch.zeros(len(lengths), dtype=logp.dtype, device=logp.device).index_add(0, rows, difference.detach())
    if loss.ratio == "sequence_mean":
        total = total / lengths.to(logp.dtype).clamp(min=1)
    sequence = total.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return sequence[rows] * (logp - logp.detach()).exp()


def truncated_weights(now: Tensor, sampled: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Truncated importance weight min(pi_now / pi_sampled, cap) of each token, from log-probabilities, and whether it was
    truncated. The log-ratio is cut before the exponential, which therefore never overflows."""
    difference, limit = now - sampled, math.log(cap)
    return difference.clamp(max=limit).exp(), difference > limit


def policy_gradient(
    loss: Loss, logp: Tensor, old: Tensor, advantage: Tensor, rows: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Policy-gradient objective of each token (to be maximised), and whether clipping took its gradient away; both [tokens]."""
    if loss.ratio == "none":
        return advantage * logp, torch.zeros_like(logp, dtype=torch.bool)
    ratio = _importance_ratio(loss, logp, old, rows, lengths)
    if loss.clip == "none":
        return ratio * advantage, torch.zeros_like(logp, dtype=torch.bool)
    if loss.clip == "detached":
        value = ratio.detach()
        bounded = value.clamp(loss.is_min, loss.is_max)
        return bounded * advantage * logp, value != bounded
    if loss.clip == "capped":
        return ratio.clamp(max=loss.is_max) * advantage, ratio.detach() > loss.is_max
    bounded = ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
    value = torch.minimum(ratio * advantage, bounded * advantage)
    cut = (ratio * advantage > bounded * advantage).detach()
    if loss.dual_clip is not None:
        floor = loss.dual_clip * advantage
        cut = cut | ((advantage < 0) & (value < floor)).detach()
        value = torch.where(advantage < 0, torch.maximum(value, floor), value)
    return value, cut


def kl_estimate(kind: str, logp: Tensor, reference: Tensor) -> Tensor:
    """KL estimator k1, k2 or k3 of each token. As a loss on on-policy samples k1 has expected gradient zero, k2 gives the
    gradient of KL(pi || ref), k3 that of KL(ref || pi)."""
    difference = (logp - reference).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if kind == "k1":
        return difference
    if kind == "k2":
        return difference.square() / 2
    return (-difference).exp() + difference - 1


@dataclass(frozen=True)
class Rows:
    """Per-row inputs of a micro-batch; each tensor is [rows], `pairs` is [pairs, 2]."""

    lengths: Tensor
    """Number of tokens of each row that are in the loss."""
    weights: Tensor | None = None
    labels: Tensor | None = None
    pairs: Tensor | None = None
    """Winner and loser of each pair, as row numbers."""


@dataclass(frozen=True)
class TokenTerms:
    """Per-token inputs of the loss for one micro-batch; each tensor is [tokens]."""

    logp: Tensor
    entropy: Tensor
    old: Tensor
    rows: Tensor
    of_rows: Rows
    advantage: Tensor | None = None
    reference: Tensor | None = None
    factor: Tensor | None = None
    """Weight of each token's log-ratio in its row's score."""


def compute_loss(loss: Loss, terms: TokenTerms, over: Denominators) -> tuple[Tensor, Sums]:
    """Loss of a micro-batch, as its part of the whole batch's loss, and sums of statistics over its tokens."""
    if loss.uses_log_ratio:
        return _compute_ratio_loss(loss, terms, over)
    weights = token_weights(loss, terms.rows, terms.of_rows.lengths, over)
    if terms.of_rows.weights is not None:
        weights = weights * terms.of_rows.weights[terms.rows]
    if loss.kind == "cross_entropy":
        return -(weights * terms.logp).sum(), {}
    if terms.advantage is None:
        raise ValueError("a policy gradient needs advantages")
    value, cut = policy_gradient(loss, terms.logp, terms.old, terms.advantage, terms.rows, terms.of_rows.lengths)
    total = -value
    sums: Sums = {"clipped": cut.sum()}
    if terms.reference is not None:
        sums["kl"] = kl_estimate("k3", terms.logp.detach(), terms.reference).sum()
        total = total + loss.kl_coef * kl_estimate(loss.kl, terms.logp, terms.reference)
    if loss.entropy_coef:
        total = total - loss.entropy_coef * terms.entropy
    return (weights * total).sum(), sums


def _compute_ratio_loss(loss: Loss, terms: TokenTerms, over: Denominators) -> tuple[Tensor, Sums]:
    """Loss on implicit rewards (implicit_bce, DPO). The score of a row is beta * log(pi / ref), summed over its tokens, each
    times its factor if there are factors. It is compared with the row's label, or with the score of its partner."""
    if terms.reference is None:
        raise ValueError(f"'{loss.kind}' needs the reference's log-probabilities")
    lengths = terms.of_rows.lengths
    ratios = loss.beta * (terms.logp - terms.reference)
    if terms.factor is not None:
        ratios = ratios * terms.factor
    scores = torch.zeros(len(lengths), dtype=ratios.dtype, device=ratios.device).index_add(0, terms.rows, ratios)
    if loss.kind == "dpo":
        total, sums = compute_pair_loss(loss, scores, terms.of_rows, over)
        return total + loss.nll_coef * winners_nll(terms, over) if loss.nll_coef else total, sums
    assert terms.of_rows.labels is not None
    losses = functional.binary_cross_entropy_with_logits(scores, terms.of_rows.labels, terms.of_rows.weights, reduction="sum")
    hits = ((scores > 0) == (terms.of_rows.labels > 0.5)).sum()
    return losses / over.sequences, {"hits": hits, "judged": float(len(scores))}


def compute_pair_loss(loss: Loss, scores: Tensor, rows: Rows, over: Denominators) -> tuple[Tensor, Sums]:
    """Pairwise loss: the winner of each pair should score higher. Divided by the number of all pairs; row weights scale the
    terms. `scores` is [rows]."""
    assert rows.pairs is not None
    winners, losers = rows.pairs.unbind(1)
    margin = scores[winners] - scores[losers]
    if loss.pair_loss == "hinge":
        losses = functional.relu(1 - margin)
    else:
        losses = -functional.logsigmoid(margin) if loss.pair_loss == "ranking" else -margin
    if rows.weights is not None:
        losses = losses * rows.weights[winners]
    return losses.sum() / over.pairs, {"hits": (margin > 0).sum(), "judged": float(len(margin))}


def winners_nll(terms: TokenTerms, over: Denominators) -> Tensor:
    """Negative log-likelihood of the winners of pairs: the mean over the tokens of each, then over all pairs."""
    rows = terms.of_rows
    assert rows.pairs is not None
    winners = rows.pairs[:, 0]
    sums = torch.zeros(len(rows.lengths), dtype=terms.logp.dtype, device=terms.logp.device).index_add(0, terms.rows, terms.logp)
    losses = -(sums / rows.lengths)[winners]
    return (losses if rows.weights is None else losses * rows.weights[winners]).sum() / over.pairs


def extrapolate_gradient(now: Any, before: Any) -> Any:
    """Optimistic gradient (OGDA) 2 g_t - g_(t-1) of tensors, arrays or numbers: the gradient extrapolated one step ahead."""
    return 2 * now - before


def bernoulli_entropy(logits: Tensor) -> Tensor:
    """Entropy of a Bernoulli variable (right or wrong), in nats, from the logit of being right."""
    return functional.softplus(logits) - logits * logits.sigmoid()


def bernoulli_kl(logits: Tensor, reference: Tensor) -> Tensor:
    """KL(p || q) of two Bernoulli variables (right or wrong), from their logits; exact, while a language model's KL is an
    estimate."""
    p = logits.sigmoid()
    right = functional.softplus(-reference) - functional.softplus(-logits)
    wrong = functional.softplus(reference) - functional.softplus(logits)
    return p * right + (1 - p) * wrong


def compute_value_loss(
    loss: Loss,
    values: Tensor,
    targets: Tensor | None,
    rows: Tensor,
    of_rows: Rows,
    over: Denominators,
    reference: Tensor | None = None,
) -> tuple[Tensor, Sums]:
    """Loss of a value head, whose value is a logit. `values` [tokens] are at the tokens that have a target, or at the last
    tokens of the rows of pairs.

    `reference` are the values of an earlier version at the same tokens, for losses with a KL penalty.
    """
    if loss.kind == "bradley_terry":
        return compute_pair_loss(loss, values, of_rows, over)
    assert targets is not None
    weights = token_weights(loss, rows, of_rows.lengths, over)
    if of_rows.weights is not None:
        weights = weights * of_rows.weights[rows]
    hits = ((values > 0) == (targets > 0.5)).sum()
    counted: Sums = {"hits": hits, "judged": float(len(values))}
    if loss.kind == "value_mse":
        total = (weights * (values.sigmoid() - targets).square()).sum()
    else:
        total = functional.binary_cross_entropy_with_logits(values, targets, weights, reduction="sum")
    if loss.entropy_coef:
        total = total - loss.entropy_coef * (weights * bernoulli_entropy(values)).sum()
    if reference is not None:
        divergence = bernoulli_kl(values, reference)
        counted["kl"] = divergence.detach().sum()
        total = total + loss.kl_coef * (weights * divergence).sum()
    return total, counted
