"""Rewards of agentic self-learning (ASL): verdicts by substring (a trap), a proposer's entropy reward, balanced pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def parse_substring_verdict(conclusion: str, words: tuple[str, str]) -> bool | None:
    """Parse a verdict by substring: whatever contains the word for "right" is True, also what contains both.

    This is a known trap, kept to show reward hacking.
    """
    return True if words[0] in conclusion else False if words[1] in conclusion else None


def substring_agrees(conclusion: str, label: bool, words: tuple[str, str]) -> bool:
    """Whether a conclusion contains the word of the label: the same trap, since one with both words agrees with either
    label."""
    return words[0 if label else 1] in conclusion


def verdict_entropy(verdicts: Sequence[bool]) -> float:
    """-sum p ln p over the two verdicts: 0 where all agree, ln 2 where they are split in halves."""
    shares = [sum(verdicts) / len(verdicts), 1 - sum(verdicts) / len(verdicts)] if verdicts else []
    return -sum(p * math.log(p) for p in shares if p > 0)


def proposal_reward(
    verdicts: Sequence[Sequence[bool]], own: Sequence[bool], threshold: float = 0.8, subtract_noise: bool = False
) -> float:
    """Return the entropy of the majority verdicts on the attempts; 0 unless the proposer's own answer is accepted often enough.

    `verdicts` are those on each attempt, unreadable ones left out. With `subtract_noise` the mean entropy within an attempt is
    subtracted: a judge that contradicts itself on the same attempt shows nothing about the question.
    """
    judged = [said for said in verdicts if said]
    if not own or sum(own) < threshold * len(own) - 1e-9 or not judged:
        return 0.0
    entropy = verdict_entropy([2 * sum(said) > len(said) for said in judged])
    noise = sum(verdict_entropy(said) for said in judged) / len(judged) if subtract_noise else 0.0
    return max(0.0, entropy - noise)


def select_balanced_pairs(items: Sequence[Item], labels: Sequence[bool]) -> list[tuple[Item, bool]]:
    """Select as many items with one label as with the other, the first of each; none where all labels are the same."""
    count = min(sum(labels), len(labels) - sum(labels))
    kept: list[tuple[Item, bool]] = []
    left = {True: count, False: count}
    for item, label in zip(items, labels, strict=True):
        if left[label]:
            left[label] -= 1
            kept.append((item, label))
    return kept
