"""Best of n: choose one answer with a score from several solutions of a problem.

Three ways to choose among n solutions of a problem:
- `verifier`: the solution that the verifier ranks highest. The score is the probability that it is right.
- `vote`, majority vote: the answer that most solutions have. The score is its share of the solutions.
- `both`, weighted vote: each solution votes for its answer with the weight of its rank; the answer with the greatest sum
  wins. The score is its share of all weights. Answers are compared by their text, as in evaluations.

Invariant: on a tie the first one wins, and a solution without an answer is chosen only if none has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from milonga.evals.evaluate import TOO_LONG
from milonga.pair import Pair, Verdict
from milonga.types import Problem, Rollout

Rank = Literal["verifier", "vote", "both"]
RANKS: tuple[Rank, ...] = ("verifier", "vote", "both")


@dataclass(frozen=True)
class Candidate:
    """A solution and the verifier's verdict on it; None if it was not verified."""

    solution: Rollout
    verdict: Verdict | None = None

    @property
    def answer(self) -> str | None:
        value = self.solution.solution
        return value.answer

    @property
    def weight(self) -> float:
        return 1.0 if self.verdict is None else self.verdict.rank


@dataclass(frozen=True)
class Answer:
    """The chosen answer to a problem. `best` is None if the problem did not fit into the model's context."""

    problem: Problem
    rank: Rank
    best: Candidate | None
    score: float | None
    candidates: tuple[Candidate, ...]


def answer_problems(pair: Pair, problems: Sequence[Problem], best_of: int, rank: Rank, checks: int) -> list[Answer]:
    """Answer each problem by best of n. A single solution is decoded greedily; several are sampled."""
    solutions = pair.solve(problems, best_of, greedy=best_of == 1)
    verdicts = pair.verify(solutions, checks) if rank != "vote" else [None] * len(solutions)
    groups: dict[str, list[Candidate]] = {problem.id: [] for problem in problems}
    for solution, verdict in zip(solutions, verdicts, strict=True):
        groups[solution.problem.id].append(Candidate(solution, verdict))
    return [choose_answer(problem, rank, groups[problem.id]) for problem in problems]


def choose_answer(problem: Problem, rank: Rank, candidates: Sequence[Candidate]) -> Answer:
    """Choose the answer to a problem. Pure: the same candidates in the same order give the same answer."""
    able = [c for c in candidates if c.answer is not None] or list(candidates)
    if not able:
        return Answer(problem, rank, None, None, ())
    if rank == "verifier":
        best = max(able, key=lambda c: c.weight)
        return Answer(problem, rank, best, None if best.verdict is None else best.verdict.probability, tuple(candidates))
    sums: dict[str | None, float] = {}
    for candidate in able:
        sums[candidate.answer] = sums.get(candidate.answer, 0.0) + candidate.weight
    winner = max(sums, key=lambda answer: sums[answer])
    best = max((c for c in able if c.answer == winner), key=lambda c: c.weight)
    total = sum(c.weight for c in candidates)
    share = 0.0 if winner is None or not total else sums[winner] / total  # no answer has no confidence
    return Answer(problem, rank, best, share, tuple(candidates))


@dataclass(frozen=True)
class Cuts:
    """How many solutions were cut off before their end, of how many, and the longest of those that were."""

    solutions: int = 0
    truncated: int = 0
    cut_at: int = 0

    def add(self, rollouts: Sequence[Rollout]) -> Cuts:
        """Count further solutions."""
        cut = [_count_tokens(one) for one in rollouts if is_cut(one)]
        return Cuts(self.solutions + len(rollouts), self.truncated + len(cut), max([self.cut_at, *cut]))

    def describe(self, limit: int) -> str:
        """Describe where they were cut, with the option that helps; empty if none was."""
        if not self.truncated:
            return ""
        if 0 < self.cut_at < limit:  # an endpoint need not say how long its outputs are
            return f"cut at the end of the model's context, after {self.cut_at} tokens at most"
        return f"cut at {limit} tokens: --max-tokens {2 * limit}"


def is_cut(rollout: Rollout) -> bool:
    """Whether an output reached the limit of its length before it ended."""
    return rollout.finish == "length"


def _count_tokens(rollout: Rollout) -> int:
    """Count the tokens of an output, trained or not; of a conversation those of its last turn."""
    spans = rollout.turn_spans
    return spans[-1][1] - spans[-1][0] if spans else 0


def answer_to_json(answer: Answer) -> dict[str, Any]:
    """Convert an answer to JSON data: the choice, its score, and all candidates. `milonga verify` accepts such rows."""
    row: dict[str, Any] = {"question": answer.problem.text}
    if answer.best is None:
        return row | {"answer": None, "score": None, "error": TOO_LONG}
    value = answer.best.solution.solution
    row |= {"answer": value.answer, "score": answer.score, "rank": answer.rank, "steps": list(value.steps)}
    row |= {"solution": answer.best.solution.text, "invalid": answer.best.solution.parsed.invalid}
    row |= {"truncated": True} if is_cut(answer.best.solution) else {}
    row |= {} if answer.best.verdict is None else verdict_to_json(answer.best.verdict)
    return row | {"candidates": [_candidate_to_json(c) for c in answer.candidates]}


def _candidate_to_json(candidate: Candidate) -> dict[str, Any]:
    row: dict[str, Any] = {"answer": candidate.answer}
    return (
        row if candidate.verdict is None else row | {"probability": candidate.verdict.probability, "weight": candidate.weight}
    )


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    """Convert a verdict to JSON data. `prediction` is the first wrong step as ProcessBench counts: from 0, -1 if there is none,
    null if nothing could be parsed."""
    said, likely = verdict.step_verdicts, verdict.steps
    row: dict[str, Any] = {
        "verdict": verdict.final,
        "probability": verdict.probability,
        "step_verdicts": None if said is None else list(said),
        "step_probabilities": None if likely is None else list(likely),
        "prediction": verdict.first_error,
        "checks": len(verdict.checks),
        "readable": verdict.readable,
    }
    why = next((check.parsed.invalid for check in verdict.checks if not check.parsed.is_valid), None)
    return row if why is None else row | {"check_invalid": why}
