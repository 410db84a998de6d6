"""Questions that a searching proposer made from answers: the gate that they must pass, and the pool of earlier ones.

What the proposer saw is taken from the log of the tool, made again from its searches, never from what it wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from milonga.evals.metrics import mean
from milonga.recipes.conversing import turns_of
from milonga.roles.searcher import to_read
from milonga.table import Table
from milonga.tasks.base import keyed, normalised, split_of
from milonga.tasks.search import Search, mentions
from milonga.types import Problem, Trace, Traces

MOST_CHARACTERS = 1000
ReaderKind = Literal["auto", "exact", "model", "none"]
"""Who reads what a proposer saw: what follows exactly, a model, or nobody. auto: exactly where the task can."""

Rates = dict[str | None, float]
"""The share of the tries that solved each new question, by the proposal it came from; questions of the pool come from None."""


@dataclass(frozen=True)
class Rules:
    """What a question must be like before anybody reads it."""

    min_words: int
    min_searches: int
    hide_answer: bool
    """Whether the answer may stand in no search, the first one included."""

    def broken(self, proposal: Trace, searches: Sequence[str], seen: Sequence[str]) -> str | None:
        """The first rule that a proposal breaks, in the order of the paper; None for none."""
        question, answer = str(proposal.reading.value.question), proposal.problem.text
        if not proposal.reading.valid:
            return proposal.reading.invalid
        if len(question) > MOST_CHARACTERS or len(question.split()) < self.min_words:
            return "too short or too long"
        if mentions(question, answer):
            return "the answer stands in it"
        if not seen:
            return "nothing was found"
        terms = [normalised(search) for search in searches]
        if len(terms) < self.min_searches:
            return "too few searches"
        if len({*terms}) < len(terms):
            return "a search was repeated"
        if self.hide_answer and any(mentions(term, answer) for term in terms):
            return "the answer was searched for"
        # Ours: nobody may train on a question that is measured.
        return None if split_of(question) == "train" else "held-out question"


def searches_of(table: Table, talk: Trace) -> list[str]:
    """What was searched for in a conversation, and answered."""
    role = table.setting.roles[talk.seat]
    calls = [role.call(turn.text) for turn in turns_of(talk)[:-1]]
    return [call for call in calls if call is not None]


def seen_by(table: Table, talk: Trace) -> list[str]:
    """The passages that the tool returned in a conversation, each once."""
    tool = table.setting.task.tool
    assert tool is not None
    return list(dict.fromkeys(passage for search in searches_of(table, talk) for passage in tool.answer(search)))


def with_noise(table: Table, proposals: Traces, count: int) -> list[list[str]]:
    """What each proposer saw, with some passages that others of the batch saw instead, in no order."""
    seen = [seen_by(table, proposal) for proposal in proposals]
    everything = list(dict.fromkeys(passage for passages in seen for passage in passages))
    out = []
    for proposal, own in zip(proposals, seen, strict=True):
        rng = keyed("noise", table.setting.seed, table.turn, proposal.id)
        others = [passage for passage in everything if passage not in own]
        shown = [*own, *rng.sample(others, min(count, len(others)))]
        rng.shuffle(shown)
        out.append(shown)
    return out


def posed(proposal: Trace) -> Problem:
    """The problem that a proposal poses: its answer was there before the question."""
    return Problem(f"posed/{proposal.id}", proposal.reading.value.question, proposal.problem.text, source=proposal.id)


def read_exactly(task: Search, problems: Sequence[Problem], shown: Sequence[Sequence[str]]) -> list[bool]:
    """Whether the answer follows from the passages, by a reader that makes no mistakes."""
    return [problem.answer in task.derive(problem.text, some) for problem, some in zip(problems, shown, strict=True)]


def read_by_model(table: Table, problems: Sequence[Problem], shown: Sequence[Sequence[str]]) -> list[bool]:
    """Whether the reader, as it was at the start, finds the answer in the passages. What does not fit it did not find."""
    asked = [to_read(p.id, p.text, p.answer, some) for p, some in zip(problems, shown, strict=True)]
    right = {trace.problem.id for trace in table.ask("reader", asked, tag="ref") if trace.correct == 1.0} if asked else set()
    return [problem.id in right for problem in problems]


@dataclass(frozen=True)
class Gate:
    """What a question must pass before a solver sees it: the rules, the reader, and that it has no second answer."""

    rules: Rules
    reader: ReaderKind
    noise: int
    unique: bool

    def passing(self, table: Table, proposals: Traces) -> tuple[list[Problem], dict[str, str]]:
        """The questions that pass, and for every other proposal why it does not."""
        reasons: dict[str, str] = {}
        for proposal in proposals:
            broken = self.rules.broken(proposal, searches_of(table, proposal), seen_by(table, proposal))
            reasons |= {} if broken is None else {proposal.id: broken}
        readable = proposals.keep(lambda proposal: proposal.id not in reasons)
        problems, task = [posed(proposal) for proposal in readable], table.setting.task
        assert isinstance(task, Search)
        found = self.found(table, task, problems, with_noise(table, readable, self.noise))
        for proposal, problem, read in zip(readable, problems, found, strict=True):
            if not read:
                reasons[proposal.id] = "the reader does not find the answer"
            elif self.unique and task.exact and task.answers(problem.text) != {problem.answer}:
                reasons[proposal.id] = "it has another answer"
        return [problem for problem in problems if problem.source not in reasons], reasons

    def found(self, table: Table, task: Search, problems: list[Problem], shown: list[list[str]]) -> list[bool]:
        if self.reader == "none":
            return [True] * len(problems)
        if self.reader == "model" or not task.exact:
            return read_by_model(table, problems, shown)
        return read_exactly(task, problems, shown)


def question_figures(task: Search, proposals: Traces, passed: Sequence[Problem]) -> dict[str, float | None]:
    """Proposals against the whole truth, whatever a gate says of them, and how long the ways of those that pass are."""
    readable = [posed(proposal) for proposal in proposals if proposal.reading.valid]
    known = [(problem.answer, task.answers(problem.text)) for problem in readable]
    return {
        "proposer/wrong": mean([answer not in found for answer, found in known]),
        "proposer/ambiguous": mean([answer in found and len(found) > 1 for answer, found in known]),
        "proposer/hops": mean([float(task.hops(problem.text)) for problem in passed]),
    }


def solve_rates(solutions: Traces) -> Rates:
    tries: dict[str | None, list[float]] = {}
    for solution in solutions:
        tries.setdefault(solution.problem.source, []).append(solution.correct)
    return {source: mean(correct) or 0.0 for source, correct in tries.items()}


def turn_figures(proposals: Traces, solutions: Traces, rates: Rates) -> dict[str, float]:
    """How many questions of a turn passed, and how they were solved; new ones alone, apart from those of the pool."""
    fresh = [rate for source, rate in rates.items() if source is not None]
    reused = solutions.keep(lambda solution: solution.problem.source is None)
    return {
        "valid": len(fresh) / max(1, len(proposals)),
        "reused": len(reused) / max(1, len(solutions)),
        "solved": mean(fresh) or 0.0,
        "never_solved": mean([rate == 0 for rate in fresh]) or 0.0,
        "always_solved": mean([rate == 1 for rate in fresh]) or 0.0,
    }


def rejections(counts: Mapping[str, int]) -> dict[str, float]:
    return {f"rejected/{why}": float(count) for why, count in counts.items()}


@dataclass(frozen=True)
class Pool:
    """Questions of earlier turns, inside the state of the recipe: each once, and none older than `age` turns."""

    state: dict[str, Any]
    age: int

    def admit(self, turn: int, problem: Problem, solved: float) -> None:
        kept = [row for row in self.state.get("pool", []) if turn - row[0] < self.age and row[1] != problem.text]
        self.state["pool"] = [*kept, [turn, problem.text, problem.answer, solved]]

    def draw(self, table: Table, count: int, below: float) -> list[Problem]:
        """Questions that were solved at most so often, each at most once."""
        known = [row for row in self.state.get("pool", []) if row[3] <= below]
        rng = keyed("reuse", table.setting.seed, table.turn)
        chosen = rng.sample(known, min(count, len(known)))
        return [Problem(f"reused/{table.turn}/{n}", text, answer) for n, (_, text, answer, _) in enumerate(chosen)]
