"""Questions without answers that the agents propose themselves: posing them, demonstrating their formats, and a replay pool.

Questions in words have no known answers. In chain arithmetic a question that does not belong to the task can be asked and
answered too; no answer to it is right. The truth of the others is computed for metrics alone, and no text of a held-out split
is ever taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from milonga.context import Context
from milonga.evals.metrics import mean
from milonga.patterns.self_questions import FLIP, SLIP
from milonga.roles import StepSolver
from milonga.roles.demonstrate import make_solver_example
from milonga.roles.proposer import Proposal, make_proposer_request
from milonga.roles.solver import demonstration_to_rollout
from milonga.systems.multi_agent_evolve.roles import Asker, Judge
from milonga.tasks.base import assign_split, normalise_text
from milonga.tasks.chain import Chain
from milonga.tasks.invention import compute_answer, parse_invented, pose_question, spoil_question, vary_problem
from milonga.types import Problem, Rollout, Rollouts


def is_question(proposal: Rollout, in_words: bool = False) -> bool:
    """Whether a proposal can be parsed and is not a held-out problem; it need not make sense. Questions in words have no
    split."""
    return proposal.parsed.is_valid and (in_words or assign_split(proposal.parsed.get(Proposal).question) == "train")


def question_to_problem(ctx: Context, text: str, id: str) -> Problem:
    """Convert the text of a question into a problem for the solver. Its answer is empty where the question is none of the
    task's, or in words."""
    task = ctx.task
    if not isinstance(task, Chain):
        return pose_question(task, text, f"posed/{id}", id)
    problem = parse_invented(task, text, "", id)
    if problem is None:
        nothing = {"start": 0, "chain": [], "mod": task.options.mod}
        return Problem(f"posed/{id}", text, "", nothing, id)
    return replace(problem, id=f"posed/{id}", answer=compute_answer(problem))


def demonstrate_formats(ctx: Context) -> Rollouts:
    """Return rollouts of a noisy teacher that demonstrate all formats: for each problem of the turn a new question, a solution,
    and judgements of a solution and of a question, each right half of the time."""
    asker, solver, judge = (ctx.role(agent) for agent in ("proposer", "generator", "verifier"))
    assert isinstance(asker, Asker) and isinstance(solver, StepSolver) and isinstance(judge, Judge)
    task = ctx.task
    rows: list[Rollout] = []
    for number, problem in enumerate(ctx.problems()):
        rng = ctx.rng("teacher", problem.id)
        new = vary_problem(task, problem, number % 2 == 0, rng)
        rows += ctx.write("proposer", [make_proposer_request(problem, number % 2 == 0)], [asker.write(new.text)])
        rows += ctx.write("generator", [problem], [make_solver_example(task, problem, solver, SLIP, rng).completion])
        demonstration = task.demonstrate(problem, rng, {rng.randrange(task.step_count(problem))} if rng.random() < 0.5 else ())
        verdicts = [right != (rng.random() < FLIP) for right in demonstration.truth]
        target = demonstration_to_rollout(demonstration, problem, solver, f"{ctx.turn}/shown/{problem.id}")
        rows += ctx.write("verifier", [target], [judge.write(verdicts, all(verdicts), demonstration.checks)])
        text = new.text if rng.random() < 0.5 else spoil_question(new.text, rng)
        sound = (parse_invented(task, text, "", "") is not None) != (rng.random() < FLIP)
        asked = asker.write(text)
        question = Rollout.from_text(f"{ctx.turn}/asked/{problem.id}", "proposer", problem, asked, asker.parse(asked))
        rows += ctx.write("verifier", [question], [judge.write_question(sound)])
    return Rollouts(rows)


@dataclass(frozen=True)
class Pool:
    """A replay pool inside the state of the recipe; it keeps the newest `keep` entries of each kind. questions: text, id of the
    proposal. pairs: text, id, an answer to it."""

    state: dict[str, Any]
    keep: int

    def draw_items(self, what: str, ctx: Context, count: int) -> list[Any]:
        """Sample `count` entries by the turn's own random key; all of them where there are fewer."""
        items = self.state.get(what, [])
        return list(items) if len(items) <= count else ctx.rng(what).sample(items, count)

    def sample_questions(self, ctx: Context) -> list[Problem]:
        """Sample the solver's problems: questions of the pool, at most half of the turn. The rest are the task's own, without
        their answers; they are the seeds too."""
        count = ctx.batch_size
        own = [question_to_problem(ctx, text, id) for text, id in self.draw_items("questions", ctx, count // 2)]
        return own + ctx.problems(count - len(own))

    def sample_requests(self, ctx: Context, reference: float) -> list[Problem]:
        """Sample the proposer's prompts: old questions, each to be made harder; from the pool with probability `reference`."""
        rng, out = ctx.rng("shown"), []
        remembered = self.state.get("questions", [])
        for problem in ctx.problems():
            old = question_to_problem(ctx, *rng.choice(remembered)) if remembered and rng.random() < reference else problem
            out.append(make_proposer_request(old, True))
        return out

    def add_question(self, proposal: Rollout) -> None:
        """Add a question to the pool, unless its text is there already."""
        questions, text = self.state.setdefault("questions", []), proposal.parsed.get(Proposal).question
        if normalise_text(text) not in {normalise_text(known) for known, _ in questions}:
            self.state["questions"] = [*questions, [text, proposal.id]][-self.keep :]

    def remember_pairs(self, tried: Rollouts) -> None:
        """Store the first answer to each question, to be judged again when the judge practises."""
        first = {rollout.problem.id: rollout for rollout in reversed(list(tried))}
        pairs = [[t.problem.text, t.problem.source or t.problem.id, t.text] for t in first.values()]
        self.state["pairs"] = [*self.state.get("pairs", []), *pairs][-self.keep :]

    def compute_metrics(self, ctx: Context) -> dict[str, float | None]:
        """Return metrics of the pool: its size, and the share of its questions that are none of the task's, where that can be
        known."""
        questions = self.state.get("questions", [])
        known = questions if isinstance(ctx.task, Chain) else []
        bad = [not question_to_problem(ctx, text, id).answer for text, id in known]
        return {"pool/size": float(len(questions)), "pool/malformed": mean(bad)}
