"""Dialogues with a user (a rule, or a simulator that reads the reference), and pairs and metrics of these dialogues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from milonga.context import Context
from milonga.evals.metrics import mean, order_accuracy_within
from milonga.patterns.conversation import hold_dialogues, is_open, list_turns, sample_turns
from milonga.patterns.imitation import demonstrate_problems
from milonga.patterns.preference_pairs import Pair, pair_best
from milonga.roles.prose import skip_thought
from milonga.systems.sweet_rl.roles import REPLIES, SIMULATOR, Inquirer, Message
from milonga.tasks.artefacts import gives_away, score_artefacts
from milonga.tasks.facts import HIDDEN, render_known_text
from milonga.types import Grade, Problem, Prompt, Rollout, Rollouts


def list_asked_parts(talk: Rollout) -> list[int | None]:
    """Return the parts that were asked for so far, turn by turn; None where a question could not be parsed."""
    values = [turn.parsed.value for turn in list_turns(talk)]
    return [value.part for value in values if isinstance(value, Message)]


def flag_useful_questions(talk: Rollout) -> list[bool]:
    """Return for each question whether it asked for a part that was still hidden."""
    asked = list_asked_parts(talk)
    return [part in talk.problem.data["hidden"] and part not in asked[:turn] for turn, part in enumerate(asked)]


def make_known_problem(talk: Rollout) -> Problem:
    """Return the problem as it was known to the agent in its last turn. A simulated user hides nothing of its text."""
    if "whole" not in talk.problem.data:
        return talk.problem
    before = talk.earlier_conversation
    asked = [] if before is None else list_asked_parts(before)
    return replace(talk.problem, text=render_known_text(talk.problem, asked))


def _get_inquirer(ctx: Context) -> Inquirer:
    """Return the generator's role, which must be an `Inquirer`."""
    role = ctx.role("generator")
    assert isinstance(role, Inquirer)
    return role


def render_answers(ctx: Context, talks: Rollouts) -> list[Prompt]:
    """Render the rule-based user's next message: the problem with the parts that were asked for so far."""
    known = [render_known_text(talk.problem, list_asked_parts(talk)) for talk in talks]
    role = _get_inquirer(ctx)
    return [role.render_reply(text, len(talk.turn_spans)) for talk, text in zip(talks, known, strict=True)]


def ask_user(ctx: Context, talks: Rollouts) -> tuple[Rollouts, list[Prompt]]:
    """Return the dialogues with the user's next message to each; those that a simulator has no room to read are missing."""
    if SIMULATOR not in ctx.run.roles or not talks:
        return talks, render_answers(ctx, talks)
    replies = {reply.target.id: reply for reply in ctx.ask(SIMULATOR, talks)}
    going = Rollouts(_add_reply(talk, replies[talk.id]) for talk in talks if talk.id in replies)
    role, said = _get_inquirer(ctx), [replies[talk.id].parsed.get(Message).text for talk in going]
    return going, [role.render_reply(text, len(talk.turn_spans)) for text, talk in zip(said, going, strict=True)]


def _add_reply(talk: Rollout, reply: Rollout) -> Rollout:
    """Keep what the user says in the data of the dialogue's problem: the simulator reads its own earlier words there."""
    data = {**talk.problem.data, REPLIES: (*talk.problem.data.get(REPLIES, ()), reply)}
    return replace(talk, problem=replace(talk.problem, data=data))


def list_replies(talks: Rollouts) -> list[Rollout]:
    """List what a simulated user said in these dialogues, each reply once."""
    return list({reply.id: reply for talk in talks for reply in talk.problem.data.get(REPLIES, ())}.values())


def sample_dialogues(ctx: Context, problems: Sequence[Problem], n: int, tag: str) -> Rollouts:
    """Sample `n` complete dialogues about each problem: the questions, and then the solution."""
    with ctx.cache_conversations():
        talks = ctx.ask("generator", problems, n, tag=tag)
        ended = hold_dialogues(ctx, "generator", talks, lambda open: ask_user(ctx, open), _get_inquirer(ctx).questions, tag)
    return _grade_outcomes(ctx, ended)


def _grade_outcomes(ctx: Context, talks: Rollouts) -> Rollouts:
    """Set the outcome rewards of dialogues with a simulated user that are not simply right."""
    unsure = [talk for talk in talks if SIMULATOR in ctx.run.roles and talk.correct != 1.0]
    rewards = score_artefacts(ctx.task, [(talk.problem, talk.solution.answer, skip_thought(talk.text)) for talk in unsure])
    for talk, reward in zip(unsure, rewards or (), strict=rewards is not None):
        talk.grade = replace(talk.grade or Grade(None), reward=reward)
    return talks


def sample_candidates(ctx: Context, problems: Sequence[Problem], n: int, tag: str) -> Rollouts:
    """Sample `n` candidate turns at each turn of one dialogue about each problem."""
    with ctx.cache_conversations():
        first, talks = ctx.ask("generator", problems, n, tag=tag), ctx.ask("generator", problems, tag=tag)
        later = sample_turns(ctx, "generator", talks, lambda open: ask_user(ctx, open), _get_inquirer(ctx).questions, n, tag)
    return Rollouts([*first, *later])


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
        texts = [teacher.demonstrate(task, t.problem, ctx.rng("teacher", turn, t.problem.id))[1] for t in talks]
        out += ctx.write_reply("generator", talks, render_answers(ctx, talks), texts)
        if turn < role.questions:
            talks = ctx.reply("generator", talks, render_answers(ctx, talks), speaker="user")
    return Rollouts(out)


def pair_by_outcome(talks: Rollouts, any_gap: bool = False) -> list[Pair]:
    """Pair each problem's best dialogue, if its answer is right, with each that scored lower. With `any_gap`, or where there
    is no right and wrong, it need not be right."""
    known = talks.select(lambda talk: talk.reward == talk.reward)  # what could not be graded neither wins nor loses
    pairs = pair_best("ended better", known, [_score_dialogue(talk, any_gap) for talk in known])
    return [pair for pair in pairs if any_gap or pair[1].correct != 0.0]


def _score_dialogue(talk: Rollout, graded: bool) -> float:
    """Return the outcome reward. With `graded`, the share of right steps and the format are added."""
    right = talk.grade.steps if talk.grade is not None else None
    more = (sum(right) / len(right) if right else 0.0) + talk.parsed.format
    return talk.reward + (more if graded else 0.0)


def _is_guessed(talk: Rollout) -> bool:
    """Return whether the answer is right although a part was still hidden: it must have been guessed."""
    return talk.correct == 1.0 and HIDDEN in make_known_problem(talk).text


def compute_turn_metrics(talks: Sequence[Rollout], name: str) -> dict[str, float | None]:
    """Return the share of useful questions and of guessed solutions among last turns, or the share of questions where only a
    simulator could tell useful ones. `name`: whether they were chosen or rejected."""
    questions, solutions = [t for t in talks if t.grade is None], [t for t in talks if t.grade is not None]
    if any("whole" not in talk.problem.data for talk in talks):
        return {f"asked_{name}": mean([is_open(talk) for talk in talks]), f"right_{name}": mean([t.correct for t in solutions])}
    found = {
        "useful": mean([flag_useful_questions(t)[-1] for t in questions]),
        "guessed": mean([_is_guessed(t) for t in solutions]),
    }
    return {f"{what}_{name}": value for what, value in found.items()}


def compute_dialogue_metrics(talks: Rollouts) -> dict[str, float | None]:
    """Return how dialogues with a simulated user went: outcomes, questions, and replies that give the reference away."""
    leaks = [gives_away(reply.text, reply.problem) for reply in list_replies(talks)]
    return {
        "generator/outcome": mean(talks.rewards),
        "generator/questions": mean([float(len(talk.turn_spans) - 1) for talk in talks]),
        "simulator/leaked": mean(leaks),
    }


def compute_question_metrics(talks: Rollouts, first: Rollouts, ranks: Sequence[float]) -> dict[str, float | None]:
    """Return how many questions to a rule-based user are useful, and whether the critic's `ranks` of first questions say so."""
    asked = [flag_useful_questions(talk) for talk in talks]
    useful = [float(flag_useful_questions(talk)[0]) for talk in first]
    return {
        "generator/useful_questions": mean([one for turns in asked for one in turns]),
        "generator/useful_first": mean([turns[0] for turns in asked]),
        "critic/useful_accuracy": order_accuracy_within(first.problem_ids, ranks, useful),
    }
