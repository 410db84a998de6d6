"""Dialogues in which parts of a problem are hidden until the agent asks for them, and pairs and metrics of these dialogues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from milonga.context import Context
from milonga.evals.metrics import mean
from milonga.patterns.conversation import list_turns
from milonga.patterns.imitation import demonstrate_problems
from milonga.patterns.preference_pairs import Pair
from milonga.randomness import keyed_rng
from milonga.systems.sweet_rl.roles import HIDDEN, Inquirer, Question
from milonga.tasks.base import Task
from milonga.types import Problem, Prompt, Rollout, Rollouts


def hide_facts(task: Task, problem: Problem, count: int) -> Problem:
    """Hide `count` parts of a problem, or all there are. The choice depends on the text only. Its data keep the whole text."""
    spans = task.find_facts(problem)
    hidden = sorted(keyed_rng("kept back", problem.text).sample(range(len(spans)), min(count, len(spans))))
    data = {**problem.data, "whole": problem.text, "facts": spans, "hidden": hidden}
    masked = replace(problem, data=data)
    return replace(masked, text=render_known_text(masked, ()))


def render_known_text(problem: Problem, asked: Sequence[int]) -> str:
    """Render the text of the problem after these parts were asked for."""
    text = str(problem.data["whole"])
    for part in reversed(problem.data["hidden"]):
        start, end = problem.data["facts"][part]
        text = text if part in asked else text[:start] + HIDDEN + text[end:]
    return text


def list_asked_parts(talk: Rollout) -> list[int | None]:
    """Return the parts that were asked for so far, turn by turn; None where a question could not be parsed."""
    values = [turn.parsed.value for turn in list_turns(talk)]
    return [value.part for value in values if isinstance(value, Question)]


def flag_useful_questions(talk: Rollout) -> list[bool]:
    """Return for each question whether it asked for a part that was still hidden."""
    asked = list_asked_parts(talk)
    return [part in talk.problem.data["hidden"] and part not in asked[:turn] for turn, part in enumerate(asked)]


def make_known_problem(talk: Rollout) -> Problem:
    """Return the problem as it was known to the agent in its last turn."""
    asked = (
        []
        if talk.earlier_conversation is None
        else [part for part in list_asked_parts(talk.earlier_conversation) if part is not None]
    )
    return replace(talk.problem, text=render_known_text(talk.problem, asked))


def _get_inquirer(ctx: Context) -> Inquirer:
    """Return the generator's role, which must be an `Inquirer`."""
    role = ctx.role("generator")
    assert isinstance(role, Inquirer)
    return role


def render_answers(ctx: Context, talks: Rollouts) -> list[Prompt]:
    """Render the rule-based user's next message: the problem with the parts that were asked for so far."""
    role = _get_inquirer(ctx)
    out = []
    for talk in talks:
        asked = [part for part in list_asked_parts(talk) if part is not None]
        out.append(role.render_known_problem(render_known_text(talk.problem, asked), len(talk.turn_spans)))
    return out


def _sample_next_turn(ctx: Context, talks: Rollouts, n: int = 1, tag: str = "live") -> Rollouts:
    """Sample `n` next turns of each conversation, after the user's message."""
    return ctx.reply("generator", talks, render_answers(ctx, talks), n, tag=tag, speaker="user")


def sample_dialogues(ctx: Context, problems: Sequence[Problem], n: int, tag: str) -> Rollouts:
    """Sample `n` complete dialogues about each problem: the questions, and then the solution."""
    with ctx.cache_conversations():
        talks = ctx.ask("generator", problems, n, tag=tag)
        for _ in range(_get_inquirer(ctx).questions):
            talks = _sample_next_turn(ctx, talks, tag=tag)
    return talks


def sample_candidates(ctx: Context, problems: Sequence[Problem], n: int, tag: str) -> Rollouts:
    """Sample `n` candidate turns at each turn of one dialogue about each problem."""
    with ctx.cache_conversations():
        out = list(ctx.ask("generator", problems, n, tag=tag))
        talks, questions = ctx.ask("generator", problems, tag=tag), _get_inquirer(ctx).questions
        for turn in range(1, questions + 1):
            out += _sample_next_turn(ctx, talks, n, tag)
            talks = _sample_next_turn(ctx, talks, tag=tag) if turn < questions else talks
    return Rollouts(out)


def write_all_questions(ctx: Context, problems: Sequence[Problem]) -> Rollouts:
    """Write every possible first question about each problem as a rollout."""
    role, every = _get_inquirer(ctx), [(p, part) for p in problems for part in range(len(p.data["facts"]))]
    return ctx.write("generator", [problem for problem, _ in every], [role.write_question(part) for _, part in every])


def demonstrate_dialogues(ctx: Context, problems: Sequence[Problem]) -> Rollouts:
    """Write a noisy teacher's demonstrations for every turn, after what the agent itself said before: random questions, and
    then a solution."""
    role, task = _get_inquirer(ctx), ctx.task
    out = list(demonstrate_problems(ctx, "generator", problems))
    talks = ctx.ask("generator", problems)
    for turn in range(1, role.questions + 1):
        teacher = role if turn < role.questions else role.solver
        texts = []
        for talk in talks:
            rng = ctx.rng("teacher", turn, talk.problem.id)
            texts.append(teacher.demonstrate(task, talk.problem, rng)[1])
        out += ctx.write_reply("generator", talks, render_answers(ctx, talks), texts)
        if turn < role.questions:
            talks = _sample_next_turn(ctx, talks)
    return Rollouts(out)


def pair_by_outcome(talks: Rollouts, any_gap: bool = False) -> list[Pair]:
    """Pair each problem's best dialogue, if its answer is right, with each that scored lower. With `any_gap` the best need not
    be right."""
    out: list[Pair] = []
    for problem in dict.fromkeys(talks.problem_ids):
        mine = [(_score_dialogue(talk, any_gap), talk) for talk in talks if talk.problem.id == problem]
        best, winner = max(mine, key=lambda one: one[0])
        if any_gap or winner.correct == 1.0:
            out += [("ended better", winner, talk) for reward, talk in mine if reward < best]
    return out


def _score_dialogue(talk: Rollout, graded: bool) -> float:
    """Return 1 for a right answer, else 0. With `graded`, the share of right steps and the format are added."""
    right = talk.grade.steps if talk.grade is not None else None
    more = (sum(right) / len(right) if right else 0.0) + talk.parsed.format
    return float(talk.correct == 1.0) + (more if graded else 0.0)


def _is_guessed(talk: Rollout) -> bool:
    """Return whether the answer is right although a part was still hidden: it must have been guessed."""
    return talk.correct == 1.0 and HIDDEN in make_known_problem(talk).text


def compute_turn_metrics(talks: Sequence[Rollout], name: str) -> dict[str, float | None]:
    """Return the share of useful questions and of guessed solutions among last turns. `name`: whether they were chosen or
    rejected."""
    questions, solutions = [t for t in talks if t.grade is None], [t for t in talks if t.grade is not None]
    found = {
        "useful": mean([flag_useful_questions(t)[-1] for t in questions]),
        "guessed": mean([_is_guessed(t) for t in solutions]),
    }
    return {f"{what}_{name}": value for what, value in found.items()}
