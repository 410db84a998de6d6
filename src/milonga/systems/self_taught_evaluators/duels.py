"""Pairs of solutions with a known winner, for pairwise judges: how they are built and shown, and metrics of judgements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from milonga.context import Context
from milonga.evals.metrics import mean
from milonga.patterns.self_questions import restore_solution
from milonga.roles import StepSolver
from milonga.roles.proposer import Proposal
from milonga.systems.self_taught_evaluators.roles import Duel, Judgement, Verdict, make_duel
from milonga.tasks.base import normalise_text
from milonga.tasks.corruption import garble_text
from milonga.tasks.invention import pose_question
from milonga.types import Problem, Rollout, Rollouts

Negatives = Literal["rewritten", "modified", "digits"]
"""How the rejected solution of a pair is made: it solves the problem as the rewriter changed it, or as the task did; or one
character of the right one is changed."""
Answers = Literal["written", "sampled"]
"""Who writes solutions: the task, or the generator as it started."""
START = "ref"


@dataclass(frozen=True)
class Built:
    """A pair of solutions built for a problem."""

    good: Rollout
    bad: Rollout

    @property
    def construction_failed(self) -> bool | None:
        """Whether the good solution does not solve the problem, or the bad one does; None where the truth is unknown."""
        known = not (math.isnan(self.good.correct) or math.isnan(self.bad.correct))
        return self.good.correct == 0.0 or self.bad.correct == 1.0 if known else None


def build_pairs(ctx: Context, problems: Sequence[Problem], answers: Answers, negatives: Negatives, changes: int) -> list[Built]:
    """Build a pair for each problem, and grade both sides as solutions of it, whatever they were written for. No answers are
    used: the preference follows from the construction."""
    rngs = {problem.id: ctx.rng("pair", problem.id) for problem in problems}
    good = write_solutions(ctx, problems, answers)
    if negatives == "digits":
        texts = {problem.id: garble_text(text, rngs[problem.id]) for problem, text in good}
    else:
        if negatives == "rewritten":
            others = rewrite_problems(ctx, problems)
        else:
            related = ((p.id, ctx.task.make_related_problem(p, rngs[p.id], changes)) for p in problems)
            others = {id: other for id, other in related if other is not None}
        found = {other.id: text for other, text in write_solutions(ctx, list(others.values()), answers)}
        texts = {id: found[other.id] for id, other in others.items() if other.id in found}
    pairs = []
    for problem, text in (one for one in good if one[0].id in texts):
        sides = {"good": text, "bad": texts[problem.id]}
        pairs.append([restore_solution(ctx, problem, side, f"{ctx.turn}/{name}/{problem.id}") for name, side in sides.items()])
    return [Built(*pair) for pair in pairs]


def rewrite_problems(ctx: Context, problems: Sequence[Problem]) -> dict[str, Problem]:
    """Ask the rewriter, as it started, to change what each problem asks. Return the new ones by the ids of the old; what
    cannot be read, or asks the same, is left out."""
    out = {}
    for rewritten in ctx.ask("rewriter", problems, tag=START):
        old, text = rewritten.problem, rewritten.parsed.get(Proposal).question
        if text and normalise_text(text) != normalise_text(old.text):
            out[old.id] = pose_question(ctx.task, text, f"{old.id}/rewritten", rewritten.id)
    return out


def write_solutions(ctx: Context, problems: Sequence[Problem], answers: Answers) -> list[tuple[Problem, str]]:
    """Return a solution of each problem, except of those that do not fit into the generator's context."""
    if answers == "sampled":
        return [(t.problem, t.text) for t in ctx.ask("generator", problems, tag=START)]
    role, task = ctx.role("generator"), ctx.task
    assert isinstance(role, StepSolver)
    out = []
    for problem in problems:
        demonstration = task.demonstrate(problem, ctx.rng("solution", problem.id))
        out.append((problem, role.write(demonstration.steps, demonstration.answer)))
    return out


def duel_both_orders(pairs: Sequence[Built]) -> Rollouts:
    """Return each pair as two duels, with its good solution in the first place and in the second."""
    return Rollouts(make_duel(one.good.id, one.good, one.bad, place) for one in pairs for place in ("A", "B"))  # type: ignore[arg-type]


def pair_sampled_solutions(solutions: Rollouts) -> list[Built]:
    """Pair one right with one wrong sample of each problem that has both: real errors, not constructed ones."""
    found: dict[str, dict[float, Rollout]] = {}
    for solution in solutions:
        found.setdefault(solution.problem.id, {}).setdefault(solution.correct, solution)
    return [Built(one[1.0], one[0.0]) for one in found.values() if 1.0 in one and 0.0 in one]


def get_duel(judgement: Rollout) -> Duel:
    """Return the duel that a judgement is about."""
    return judgement.target.parsed.get(Duel)


def is_right(judgement: Rollout) -> bool:
    """Return whether the verdict names the better solution."""
    return bool(judgement.parsed.get(Judgement).verdict == get_duel(judgement).better)


def classify_judgement(judgement: Rollout) -> str:
    """Classify a judgement as right, wrong, tie or unreadable."""
    verdict = judgement.parsed.get(Judgement).verdict
    return "unreadable" if verdict is None else "tie" if verdict == "tie" else "right" if is_right(judgement) else "wrong"


def compute_duel_metrics(judgements: Rollouts) -> dict[str, float | None]:
    """Compute metrics of duels in both orders: accuracy over both orders, consistency (the same solution wins in both), and
    position bias (how often the first place wins). Several judgements of a duel count by majority. Unreadable judgements, ties
    and split votes are wins of nobody."""
    by_duel: dict[tuple[str, str], list[Verdict | None]] = {}
    for one in judgements:
        by_duel.setdefault((get_duel(one).pair, get_duel(one).better), []).append(one.parsed.get(Judgement).verdict)
    won = {key: majority_verdict(verdicts) for key, verdicts in by_duel.items()}
    pairs = {pair for pair, _ in won if {(pair, "A"), (pair, "B")} <= set(won)}
    # The same solution wins both times where the verdicts differ, because it changed places.
    same = [{won[pair, "A"], won[pair, "B"]} == {"A", "B"} for pair in pairs]
    decided = [verdict == "A" for verdict in won.values() if verdict in ("A", "B")]
    return {
        "pair_accuracy": mean([verdict == better for (_, better), verdict in won.items()]),
        "consistency": mean(same),
        "first_rate": mean(decided),
        "unreadable": mean([verdict is None for verdicts in by_duel.values() for verdict in verdicts]),
    }


def majority_verdict(verdicts: Sequence[Verdict | None]) -> Verdict | None:
    """Return the majority of the parsable verdicts: a tie where they are split, None where there are none."""
    counts = Counter(verdict for verdict in verdicts if verdict is not None).most_common(2)
    if not counts:
        return None
    return "tie" if len(counts) > 1 and counts[0][1] == counts[1][1] else counts[0][0]
