"""Rewards of DeepSeekMath-V2: three levels of a score, the quality of an analysis, and labels made by voting.

A flaw of a proof is worth the score that a proof with this one flaw deserves: 0.5 for a gap, 0 for a mistake.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from milonga.tasks.derivations import score_from_flaws

LEVELS = (0.0, 0.5, 1.0)
"""Fatal; sound but for a small gap; complete. The same three for proofs and for analyses."""
MetaMode = Literal["multiply", "floor"]


def score_reward(given: float, true: float) -> float:
    """R_score: 1 less the distance between the predicted and the true score."""
    return 1.0 - abs(given - true)


def verifier_reward(score: float, quality: float = 1.0, mode: MetaMode = "multiply", floor: float = 0.0) -> float:
    """R_score * R_meta of a readable analysis; with mode `floor` a poor one keeps part of it, as in max(R_meta, floor)."""
    return score * (max(quality, floor) if mode == "floor" else quality)


def generator_reward(proof: float, claimed: float, quality: float, beta_self: float = 0.24) -> float:
    """(1 - beta) R_Y + beta R_Z of a readable output, where R_Z = R_score(claimed, proof) * R_meta."""
    return (1 - beta_self) * proof + beta_self * score_reward(claimed, proof) * quality


def analysis_quality(reported: Collection[int], given: float, flaws: Mapping[int, float]) -> float:
    """Return the score (R_meta) that an exact meta-verifier gives an analysis that reports these steps as defective.

    Only what is reported counts: 0 if none of it is there, 0.5 if some of it is not; otherwise 0.5 if the score does not follow
    from the reported defects, else 1. A missed defect costs nothing, so that silence with a score of 1 is always fine.
    """
    founded = [flaws[k] for k in reported if k in flaws]
    if reported and not founded:
        return 0.0
    if len(founded) < len(reported):
        return 0.5
    return 1.0 if given == score_from_flaws(founded) else 0.5


def auto_label(scores: Sequence[float], confirmed: Sequence[bool | None], k: int) -> float | None:
    """Return the label of a proof from several analyses: their scores, and which the meta-verifier confirmed (None: unread).

    The lowest score, if at least `k` analyses that give it are confirmed; 1, if every analysis with a score below 1 was judged
    and none is confirmed; None otherwise: the proof is better left to an expert.
    """
    if not scores:
        return None
    if all(verdict is False for score, verdict in zip(scores, confirmed, strict=True) if score < 1):
        return 1.0
    lowest = [verdict for score, verdict in zip(scores, confirmed, strict=True) if score == min(scores)]
    return min(scores) if lowest.count(True) >= k else None


def has_majority(votes: Sequence[bool]) -> bool | None:
    """Whether more than half of the votes are yes; None without votes: what nobody judged is not refuted."""
    return 2 * sum(votes) > len(votes) if votes else None
