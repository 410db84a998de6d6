"""Questions that the agents propose themselves: formats, replay memory, verdicts on them, and an audit with the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from milonga.context import Context
from milonga.credit.self_learning import parse_substring_verdict, select_balanced_pairs
from milonga.errors import ConfigError
from milonga.evals.metrics import mean
from milonga.roles import Dialect, StepSolver, StepVerifier
from milonga.roles.demonstrate import make_solver_example
from milonga.roles.proposer import Proposal, Proposer, make_proposer_request
from milonga.roles.solver import demonstration_to_rollout
from milonga.tasks.base import Task, normalise_text
from milonga.tasks.chain import Chain
from milonga.tasks.invention import compute_answer, parse_invented, vary_problem
from milonga.types import Problem, Rollout, Rollouts, Solution

POSABLE = ("chain", "gsm8k", "jsonl", "hub")
"""Tasks whose problems a model can pose: chain arithmetic, and questions in words. Nobody would write the tests of a program,
or the documents of a search."""
SLIP = 0.2
"""The probability that a step of the teacher is wrong, as proposer and as solver: claimed answers are often wrong."""
FLIP = 0.15
"""The probability that a verdict of the teacher is flipped."""
WORDS = {"terse": ("+", "-"), "tagged": ("CORRECT", "INCORRECT"), "plain": ("CORRECT", "INCORRECT")}
Parser = Literal["strict", "substring"]
SHORTEST = 4
"""Words of a question, at least."""


def refuse_formats(task: Task, formats: int) -> None:
    """Refuse turns of the teacher of formats on questions in words: it knows chain arithmetic alone."""
    if formats and not isinstance(task, Chain):
        raise ConfigError(
            f"options.formats shows how chain arithmetic is posed, which task '{task.name}' is not: set options.formats=0"
        )


def demonstrate_formats(ctx: Context) -> Rollouts:
    """Return rollouts of a noisy teacher that demonstrate the three formats, so that learning one does not cost the others: for
    each problem of the turn a new one that is harder or easier, a solution, and a verification of a solution that is right half
    of the time."""
    proposer, solver, judge = (ctx.role(agent) for agent in ("proposer", "generator", "verifier"))
    assert isinstance(proposer, Proposer) and isinstance(solver, StepSolver) and isinstance(judge, StepVerifier)
    task, problems = ctx.task, ctx.problems()
    asked, posed, solved, judged, checks = [], [], [], [], []
    for number, problem in enumerate(problems):
        rng = ctx.rng("teacher", problem.id)
        new = vary_problem(task, problem, number % 2 == 0, rng)
        asked.append(make_proposer_request(problem, number % 2 == 0))
        posed.append(proposer.write(new.text, make_solver_example(task, new, solver, SLIP, rng).completion))
        solved.append(make_solver_example(task, problem, solver, SLIP, rng).completion)
        errors = {rng.randrange(task.step_count(problem))} if rng.random() < 0.5 else set()
        demonstration = task.demonstrate(problem, rng, errors)
        verdicts = [right != (rng.random() < FLIP) for right in demonstration.truth]
        judged.append(demonstration_to_rollout(demonstration, problem, solver, f"{ctx.turn}/shown/{problem.id}"))
        checks.append(judge.write(verdicts, all(verdicts), demonstration.checks))
    texts = [ctx.write("proposer", asked, posed), ctx.write("generator", problems, solved)]
    return Rollouts([rollout for some in (*texts, ctx.write("verifier", judged, checks)) for rollout in some])


def proposal_to_problem(ctx: Context, proposal: Rollout) -> Problem | None:
    """Convert a proposal into a problem with the answer it claims; None where it is malformed, or none of the task's. In words
    it is malformed if it is too short, or lacks a question mark that the old question has."""
    value = proposal.parsed.get(Proposal)
    if not proposal.parsed.is_valid or value.answer is None:
        return None
    lacks_mark = "?" in proposal.problem.text and "?" not in value.question
    if not isinstance(ctx.task, Chain) and (lacks_mark or len(value.question.split()) < SHORTEST):
        return None
    return parse_invented(ctx.task, value.question, value.answer, proposal.id)


def restore_solution(ctx: Context, problem: Problem, work: str, id: str) -> Rollout:
    """Restore a text of an earlier turn, or of another agent, as a solution that can be judged; graded where the truth is
    known."""
    role = ctx.role("generator")
    parsed = ctx.find_answer(role, role.parse(work, None), work, problem, "eos")
    value = parsed.get(Solution)
    grade = ctx.task.grade(problem, value.answer, value.steps) if problem.has_reference else None
    return Rollout.from_text(id, "generator", problem, work, parsed, grade)


@dataclass(frozen=True)
class Memory:
    """A replay memory inside the state of the recipe: plain lists, the newest `keep` entries of each.

    tasks: question, claimed answer, id of the proposal, share of attempts judged right. pairs: question, claimed answer, id,
    attempt, verdict.
    """

    state: dict[str, Any]
    keep: int

    def draw_items(self, what: str, ctx: Context) -> list[Any]:
        """Sample as many entries as a turn has problems, by the turn's own random key; all of them where there are fewer."""
        items, count = self.state.get(what, []), ctx.batch_size
        return list(items) if len(items) <= count else ctx.rng(what).sample(items, count)

    def sample_questions(self, ctx: Context) -> list[Problem]:
        """Sample stored questions with their claimed answers; the task's own while there are none."""
        found = [parse_invented(ctx.task, *task[:3]) for task in self.draw_items("tasks", ctx)]
        return [problem for problem in found if problem is not None] or ctx.problems()

    def sample_requests(self, ctx: Context) -> list[Problem]:
        """Sample the proposer's prompts: a question that most attempts solve (by verdict) should become harder, the rest
        easier.

        The task's own questions fill up the turn.
        """
        old = []
        for text, claimed, source, rate in self.draw_items("tasks", ctx):
            problem = parse_invented(ctx.task, text, claimed, source)
            old += [make_proposer_request(problem, rate >= 0.5)] if problem is not None else []
        more = ctx.problems(ctx.batch_size - len(old)) if len(old) < ctx.batch_size else []
        return old + [make_proposer_request(problem, number % 2 == 0) for number, problem in enumerate(more)]

    def sample_pairs(self, ctx: Context) -> list[tuple[Rollout, bool]]:
        """Sample earlier attempts with the verdicts on them."""
        out = []
        for number, (text, claimed, source, work, label) in enumerate(self.draw_items("pairs", ctx)):
            problem = parse_invented(ctx.task, text, claimed, source)
            if problem is not None:
                out.append((restore_solution(ctx, problem, work, f"{ctx.turn}/pair/{number}"), bool(label)))
        return out

    def remember(self, proposal: Rollout, reward: float, judged: Sequence[tuple[Rollout, bool]]) -> None:
        """Store a question with mixed verdicts as a task, once; store as many of its attempts judged right as wrong as
        pairs."""
        value = proposal.parsed.get(Proposal)
        tasks, pairs = self.state.setdefault("tasks", []), self.state.setdefault("pairs", [])
        verdicts = [right for _, right in judged]
        if reward > 0 and normalise_text(value.question) not in {normalise_text(task[0]) for task in tasks}:
            tasks.append([value.question, value.answer, proposal.id, mean(verdicts)])
        for attempt, right in select_balanced_pairs([attempt for attempt, _ in judged], verdicts):
            pairs.append([value.question, value.answer, proposal.id, attempt.text, right])
        self.state["tasks"], self.state["pairs"] = tasks[-self.keep :], pairs[-self.keep :]

    def update_solve_rates(self, solutions: Rollouts, rewards: Sequence[float]) -> None:
        """Update the mean reward of the solver on each question, which the proposer's prompts depend on."""
        by_question: dict[str | None, list[float]] = {}
        for solution, reward in zip(solutions, rewards, strict=True):
            by_question.setdefault(solution.problem.source, []).append(reward)
        for task in self.state.get("tasks", []):
            rate = mean(by_question.get(task[2], []))
            task[3] = task[3] if rate is None else rate

    def count_entries(self) -> dict[str, float]:
        """Return the number of stored entries of each kind as metrics."""
        return {f"remembered_{what}": float(len(self.state.get(what, []))) for what in ("tasks", "pairs")}


def make_gold_pairs(ctx: Context, count: int) -> list[tuple[Rollout, bool]]:
    """Make solutions of the task's own problems with known correctness, right and wrong in turn: the only place where truth
    enters."""
    solver, out = ctx.role("generator"), []
    assert isinstance(solver, StepSolver)
    for number, problem in enumerate(ctx.problems(count)):
        rng = ctx.rng("gold", problem.id)
        flawed = ctx.task.demonstrate_flawed(problem, rng) if number % 2 else None
        demonstration = flawed or ctx.task.demonstrate(problem, rng)
        out.append(
            (demonstration_to_rollout(demonstration, problem, solver, f"{ctx.turn}/gold/{problem.id}"), demonstration.correct)
        )
    return out


def extract_conclusion(check: Rollout, dialect: str) -> str:
    """Extract the part of a verification that holds its final verdict, whatever it says there."""
    mark = {"terse": "=", "plain": "Final verdict"}.get(dialect, "<final_verification>")
    return check.text.rpartition(mark)[2].partition("</final_verification>")[0]


def parse_verdict(check: Rollout, parser: Parser, dialect: Dialect) -> bool | None:
    """Parse the final verdict of a verification: by the grammar, or by the substring that occurs."""
    verdict: bool | None = check.verification.final
    return verdict if parser == "strict" else parse_substring_verdict(extract_conclusion(check, dialect), WORDS[dialect])


def audit_judge(ctx: Context, count: int, tag: str) -> dict[str, float | None]:
    """Measure the judge that gives the rewards (policy@tag) against the truth, on solutions of held-out problems."""
    solutions = ctx.ask("generator", ctx.problems(count))
    checks = ctx.ask("verifier", solutions, tag=tag)
    reward = mean([check.verification.final is True for check in checks])
    right = mean(solutions.correct)
    on_right = mean([c.verification.final is True for c in checks if c.target.correct == 1])
    on_wrong = mean([c.verification.final is False for c in checks if c.target.correct == 0])
    return {
        "grm/reward": reward,
        "grm/hacking_gap": None if reward is None or right is None else reward - right,
        "grm/gold_accuracy": None if on_right is None or on_wrong is None else (on_right + on_wrong) / 2,
    }


def audit_judge_and_proposer(ctx: Context, count: int, tag: str) -> dict[str, float | None]:
    """Measure the judge that gives the rewards, and the proposer's claims about new questions made from the same held-out
    problems."""
    first = ctx.drawn
    found = audit_judge(ctx, count, tag)
    problems = ctx.task.draw_problems(ctx.split, ctx.start + first, count)
    old = [make_proposer_request(problem, number % 2 == 0) for number, problem in enumerate(problems)]
    posed = [proposal_to_problem(ctx, proposal) for proposal in ctx.ask("proposer", old)]
    well = [problem for problem in posed if problem is not None]
    known = well if isinstance(ctx.task, Chain) else []  # nobody knows the answers to questions in words
    return found | {
        "proposer/well_formed": len(well) / len(posed) if posed else None,
        "proposer/claim_right": mean([problem.answer == compute_answer(problem) for problem in known]),
    }
