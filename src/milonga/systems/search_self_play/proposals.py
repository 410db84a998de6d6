"""Questions that a searching proposer wrote for given answers: the filter that they must pass, and the pool of earlier ones.

The passages that the proposer saw are recomputed from its searches by the tool, never taken from what it wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from milonga.context import Context
from milonga.evals.metrics import mean
from milonga.patterns.conversation import list_turns
from milonga.roles.proposer import Proposal
from milonga.roles.searcher import make_parsed_problem
from milonga.tasks.base import normalise_text
from milonga.tasks.search import Search, mentions_answer
from milonga.types import Problem, Rollout, Rollouts

MOST_CHARACTERS = 1000
ReaderKind = Literal["auto", "exact", "model", "none"]
"""Who verifies the answer from the passages a proposer saw: an exact derivation, a model, or nobody. auto: exact where the
task can."""

Rates = dict[str | None, float]
"""Proposal id to the solve rate of its question; questions of the pool have the key None."""


@dataclass(frozen=True)
class Rules:
    """Rule-based checks of a question, before a reader verifies it."""

    min_words: int
    min_searches: int
    hide_answer: bool
    """Whether no search may mention the answer, not even the first one."""

    def find_broken_rule(self, proposal: Rollout, searches: Sequence[str], seen: Sequence[str]) -> str | None:
        """Return the first rule that a proposal breaks, in the order of the paper; None where it breaks none."""
        question, answer = str(proposal.parsed.get(Proposal).question), proposal.problem.text
        if not proposal.parsed.is_valid:
            return proposal.parsed.invalid
        if len(question) > MOST_CHARACTERS or len(question.split()) < self.min_words:
            return "too short or too long"
        if mentions_answer(question, answer):
            return "the answer stands in it"
        if not seen:
            return "nothing was found"
        terms = [normalise_text(search) for search in searches]
        if len(terms) < self.min_searches:
            return "too few searches"
        if len({*terms}) < len(terms):
            return "a search was repeated"
        if self.hide_answer and any(mentions_answer(term, answer) for term in terms):
            return "the answer was searched for"
        return None


def list_searches(ctx: Context, talk: Rollout) -> list[str]:
    """Return the searches of a conversation that the tool answered."""
    role = ctx.role(talk.agent)
    calls = [role.parse_tool_call(turn.text) for turn in list_turns(talk)[:-1]]
    return [call for call in calls if call is not None]


def list_seen_passages(ctx: Context, talk: Rollout) -> list[str]:
    """Return the passages that the tool returned in a conversation, each once."""
    tool = ctx.task.tool
    assert tool is not None
    return list(dict.fromkeys(passage for search in list_searches(ctx, talk) for passage in tool.answer(search)))


def add_noise_passages(ctx: Context, proposals: Rollouts, count: int) -> list[list[str]]:
    """Return the passages that each proposer saw, shuffled with up to `count` passages that only others of the batch saw."""
    seen = [list_seen_passages(ctx, proposal) for proposal in proposals]
    everything = list(dict.fromkeys(passage for passages in seen for passage in passages))
    out = []
    for proposal, own in zip(proposals, seen, strict=True):
        rng = ctx.rng("noise", proposal.id)
        others = [passage for passage in everything if passage not in own]
        mixed_in = [*own, *rng.sample(others, min(count, len(others)))]
        rng.shuffle(mixed_in)
        out.append(mixed_in)
    return out


def make_problem(proposal: Rollout) -> Problem:
    """Make the problem of a proposal. Its answer was given before the question was written."""
    return Problem(f"posed/{proposal.id}", proposal.parsed.get(Proposal).question, proposal.problem.text, source=proposal.id)


def verify_exactly(task: Search, problems: Sequence[Problem], passages: Sequence[Sequence[str]]) -> list[bool]:
    """Return for each problem whether its answer follows exactly from the passages."""
    return [problem.answer in task.derive_answers(problem.text, some) for problem, some in zip(problems, passages, strict=True)]


def verify_by_model(
    ctx: Context, problems: Sequence[Problem], passages: Sequence[Sequence[str]], temperature: float
) -> list[bool]:
    """Return for each problem whether the reader's initial weights, at a temperature of its own, find the answer in the
    passages; False where the prompt does not fit."""
    asked = [make_parsed_problem(p.id, p.text, p.answer, some) for p, some in zip(problems, passages, strict=True)]
    read = ctx.ask("reader", asked, tag="ref", temperature=temperature) if asked else Rollouts([])
    right = {rollout.problem.id for rollout in read if rollout.correct == 1.0}
    return [problem.id in right for problem in problems]


@dataclass(frozen=True)
class Gate:
    """The filter of questions before a solver sees them: the rules, the reader, and that there is no second answer."""

    rules: Rules
    reader: ReaderKind
    noise: int
    unique: bool
    temperature: float
    """Of the reader, where it is a model."""

    def filter_proposals(self, ctx: Context, proposals: Rollouts) -> tuple[list[Problem], dict[str, str]]:
        """Return the questions that pass, and proposal id to reason for those that do not."""
        task = ctx.task
        assert isinstance(task, Search)
        reasons: dict[str, str] = {}
        for proposal in proposals:
            broken = self.rules.find_broken_rule(proposal, list_searches(ctx, proposal), list_seen_passages(ctx, proposal))
            # Not in the paper: nobody may train on a held-out question.
            if broken is None and task.find_split(proposal.parsed.get(Proposal).question) != "train":
                broken = "held-out question"
            reasons |= {} if broken is None else {proposal.id: broken}
        readable = proposals.select(lambda proposal: proposal.id not in reasons)
        problems = [make_problem(proposal) for proposal in readable]
        found = self.verify_answers(ctx, task, problems, add_noise_passages(ctx, readable, self.noise))
        for proposal, problem, read in zip(readable, problems, found, strict=True):
            if not read:
                reasons[proposal.id] = "the reader does not find the answer"
            elif self.unique and task.exact and task.find_answers(problem.text) != {problem.answer}:
                reasons[proposal.id] = "it has another answer"
        return [problem for problem in problems if problem.source not in reasons], reasons

    def verify_answers(self, ctx: Context, task: Search, problems: list[Problem], passages: list[list[str]]) -> list[bool]:
        """Return for each problem whether the reader finds its answer in the passages."""
        if self.reader == "none":
            return [True] * len(problems)
        if self.reader == "model" or not task.exact:
            return verify_by_model(ctx, problems, passages, self.temperature)
        return verify_exactly(task, problems, passages)


def compute_question_metrics(task: Search, proposals: Rollouts, passed: Sequence[Problem]) -> dict[str, float | None]:
    """Return the shares of wrong and ambiguous proposals by the exact truth, before the filter, and the hops of those that
    pass."""
    readable = [make_problem(proposal) for proposal in proposals if proposal.parsed.is_valid]
    known = [(problem.answer, task.find_answers(problem.text)) for problem in readable]
    return {
        "proposer/wrong": mean([answer not in found for answer, found in known]),
        "proposer/ambiguous": mean([answer in found and len(found) > 1 for answer, found in known]),
        "proposer/hops": mean([float(task.count_hops(problem.text)) for problem in passed]),
    }


def compute_solve_rates(solutions: Rollouts) -> Rates:
    """Return the solve rate of each question, by the id of its proposal."""
    tries: dict[str | None, list[float]] = {}
    for solution in solutions:
        tries.setdefault(solution.problem.source, []).append(solution.correct)
    return {source: mean(correct) or 0.0 for source, correct in tries.items()}


def compute_turn_metrics(proposals: Rollouts, solutions: Rollouts, rates: Rates) -> dict[str, float]:
    """Return the share of questions of a turn that passed, and their solve rates; only for new ones, not those of the pool."""
    fresh = [rate for source, rate in rates.items() if source is not None]
    reused = solutions.select(lambda solution: solution.problem.source is None)
    return {
        "valid": len(fresh) / max(1, len(proposals)),
        "reused": len(reused) / max(1, len(solutions)),
        "solved": mean(fresh) or 0.0,
        "never_solved": mean([rate == 0 for rate in fresh]) or 0.0,
        "always_solved": mean([rate == 1 for rate in fresh]) or 0.0,
    }


def format_rejections(counts: Mapping[str, int]) -> dict[str, float]:
    """Return the counts of rejected proposals as metrics, one for each reason."""
    return {f"rejected/{why}": float(count) for why, count in counts.items()}


@dataclass(frozen=True)
class Pool:
    """Questions of earlier turns, inside the state of the recipe. They are unique, and at most `age` turns old."""

    state: dict[str, Any]
    age: int

    def admit(self, turn: int, problem: Problem, solved: float) -> None:
        kept = [row for row in self.state.get("pool", []) if turn - row[0] < self.age and row[1] != problem.text]
        self.state["pool"] = [*kept, [turn, problem.text, problem.answer, solved]]

    def draw(self, ctx: Context, count: int, below: float) -> list[Problem]:
        """Draw questions with a solve rate of at most `below`, each at most once."""
        known = [row for row in self.state.get("pool", []) if row[3] <= below]
        rng = ctx.rng("reuse")
        chosen = rng.sample(known, min(count, len(known)))
        return [Problem(f"reused/{ctx.turn}/{n}", text, answer) for n, (_, text, answer, _) in enumerate(chosen)]
