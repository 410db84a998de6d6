"""Pairs of solutions with a known winner, for pairwise judges: how they are built and shown, and metrics of judgements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from milonga.evals.metrics import mean
from milonga.roles import Duel, StepSolver
from milonga.roles.pair_judge import Verdict, make_duel
from milonga.table import Table
from milonga.tasks.base import make_keyed_rng
from milonga.tasks.corruption import garble_text
from milonga.types import Problem, Trace, Traces

Negatives = Literal["modified", "digits"]
"""How the rejected solution of a pair is made: it solves a changed problem, or one character of the right one is changed."""
Answers = Literal["written", "sampled"]
"""Who writes solutions: the task, or the generator as it started."""
START = "ref"


@dataclass(frozen=True)
class Built:
    """A pair of solutions built for a problem. `fails` tells whether the construction failed: the good solution does not solve
    the problem, or the bad one does."""

    good: Trace
    bad: Trace

    @property
    def construction_failed(self) -> bool:
        return not (self.good.correct == 1.0 and self.bad.correct == 0.0)


def build_pairs(table: Table, problems: Sequence[Problem], answers: Answers, negatives: Negatives, changes: int) -> list[Built]:
    """Build a pair for each problem. No answers are used: the preference follows from the construction."""
    rngs = {problem.id: make_keyed_rng("pair", table.setting.seed, table.turn, problem.id) for problem in problems}
    good = write_solutions(table, problems, answers)
    if negatives == "digits":
        texts = {problem.id: garble_text(text, rngs[problem.id]) for problem, text in good}
    else:
        task = table.setting.task
        made = {problem.id: task.make_related_problem(problem, rngs[problem.id], changes) for problem in problems}
        others = {id: other for id, other in made.items() if other is not None}
        found = {other.id: text for other, text in write_solutions(table, list(others.values()), answers)}
        texts = {id: found[other.id] for id, other in others.items() if other.id in found}
    return [
        Built(grade_as_solution(table, problem, text, "good"), grade_as_solution(table, problem, texts[problem.id], "bad"))
        for problem, text in good
        if problem.id in texts
    ]


def write_solutions(table: Table, problems: Sequence[Problem], answers: Answers) -> list[tuple[Problem, str]]:
    """Return a solution of each problem, except of those that do not fit into the generator's context."""
    if answers == "sampled":
        return [(t.problem, t.text) for t in table.ask("generator", problems, tag=START)]
    role, task = table.setting.roles["generator"], table.setting.task
    assert isinstance(role, StepSolver)
    out = []
    for problem in problems:
        shown = task.demonstrate(problem, make_keyed_rng("solution", table.setting.seed, table.turn, problem.id))
        out.append((problem, role.write(shown.steps, shown.answer)))
    return out


def grade_as_solution(table: Table, problem: Problem, text: str, name: str) -> Trace:
    """Parse and grade a text as a solution of `problem`, whatever problem it was written for."""
    reading = table.setting.roles["generator"].read(text, None)
    grade = table.setting.task.grade(problem, reading.value.answer, reading.value.steps)
    return Trace.from_text(f"{table.turn}/{name}/{problem.id}", "generator", problem, text, reading, grade)


def duel_both_orders(pairs: Sequence[Built]) -> Traces:
    """Return each pair as two duels, with its good solution in the first place and in the second."""
    return Traces(make_duel(one.good.id, one.good, one.bad, place) for one in pairs for place in ("A", "B"))  # type: ignore[arg-type]


def pair_sampled_solutions(solutions: Traces) -> list[Built]:
    """Pair one right with one wrong sample of each problem that has both: real errors, not constructed ones."""
    found: dict[str, dict[float, Trace]] = {}
    for solution in solutions:
        found.setdefault(solution.problem.id, {}).setdefault(solution.correct, solution)
    return [Built(one[1.0], one[0.0]) for one in found.values() if 1.0 in one and 0.0 in one]


def get_duel(judgement: Trace) -> Duel:
    """Return the duel that a judgement is about."""
    value = judgement.subject.reading.value
    assert isinstance(value, Duel)
    return value


def is_right(judgement: Trace) -> bool:
    """Return whether the verdict names the better solution."""
    return bool(judgement.reading.value.verdict == get_duel(judgement).better)


def classify_judgement(judgement: Trace) -> str:
    """Classify a judgement as right, wrong, tie or unreadable."""
    verdict = judgement.reading.value.verdict
    return "unreadable" if verdict is None else "tie" if verdict == "tie" else "right" if is_right(judgement) else "wrong"


def compute_duel_metrics(judgements: Traces) -> dict[str, float | None]:
    """Compute metrics of duels in both orders: accuracy over both orders, consistency (the same solution wins in both), and
    position bias (how often the first place wins). Several judgements of a duel count by majority. Unreadable judgements, ties
    and split votes are wins of nobody."""
    said: dict[tuple[str, str], list[Verdict | None]] = {}
    for one in judgements:
        said.setdefault((get_duel(one).pair, get_duel(one).better), []).append(one.reading.value.verdict)
    won = {key: majority_verdict(verdicts) for key, verdicts in said.items()}
    pairs = {pair for pair, _ in won if {(pair, "A"), (pair, "B")} <= set(won)}
    # The same solution wins both times where the verdicts differ, because it changed places.
    same = [{won[pair, "A"], won[pair, "B"]} == {"A", "B"} for pair in pairs]
    decided = [verdict == "A" for verdict in won.values() if verdict in ("A", "B")]
    return {
        "pair_accuracy": mean([verdict == better for (_, better), verdict in won.items()]),
        "consistency": mean(same),
        "first_rate": mean(decided),
        "unreadable": mean([verdict is None for verdicts in said.values() for verdict in verdicts]),
    }


def majority_verdict(verdicts: Sequence[Verdict | None]) -> Verdict | None:
    """Return the majority of the parsable verdicts: a tie where they are split, None where there are none."""
    counts = Counter(verdict for verdict in verdicts if verdict is not None).most_common(2)
    if not counts:
        return None
    return "tie" if len(counts) > 1 and counts[0][1] == counts[1][1] else counts[0][0]
