"""Dialogues in which parts of a problem are kept back until they are asked for, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from milonga.evals.metrics import mean
from milonga.recipes.conversing import turns_of
from milonga.recipes.imitation import taught
from milonga.recipes.preferences import Pair
from milonga.roles import Inquirer
from milonga.roles.inquirer import HIDDEN, Question
from milonga.table import Table
from milonga.tasks.base import Task, keyed
from milonga.types import Problem, Prompt, Trace, Traces


def kept_back(task: Task, problem: Problem, count: int) -> Problem:
    """The problem with so many of its parts, or all there are, hidden: always the same ones. Its data know the whole."""
    spans = task.facts(problem)
    hidden = sorted(keyed("kept back", problem.text).sample(range(len(spans)), min(count, len(spans))))
    data = {**problem.data, "whole": problem.text, "facts": spans, "hidden": hidden}
    made = replace(problem, data=data)
    return replace(made, text=known(made, ()))


def known(problem: Problem, asked: Sequence[int]) -> str:
    """The text of the problem when these parts were asked for."""
    text = str(problem.data["whole"])
    for part in reversed(problem.data["hidden"]):
        start, end = problem.data["facts"][part]
        text = text if part in asked else text[:start] + HIDDEN + text[end:]
    return text


def questions_of(talk: Trace) -> list[int | None]:
    """The parts that were asked for so far, turn by turn; None where a question could not be read."""
    values = [turn.reading.value for turn in turns_of(talk)]
    return [value.part for value in values if isinstance(value, Question)]


def useful(talk: Trace) -> list[bool]:
    """Of each question, whether it was for a part that was still hidden."""
    asked = questions_of(talk)
    return [part in talk.problem.data["hidden"] and part not in asked[:turn] for turn, part in enumerate(asked)]


def state_of(talk: Trace) -> Problem:
    """The problem as far as it was known when the last turn was spoken."""
    asked = [] if talk.earlier is None else [part for part in questions_of(talk.earlier) if part is not None]
    return replace(talk.problem, text=known(talk.problem, asked))


def inquirer(table: Table) -> Inquirer:
    role = table.setting.roles["generator"]
    assert isinstance(role, Inquirer)
    return role


def answers(table: Table, talks: Traces) -> list[Prompt]:
    """What the one who knows says next: the problem with the parts that were asked for so far, by rule."""
    role = inquirer(table)
    out = []
    for talk in talks:
        asked = [part for part in questions_of(talk) if part is not None]
        out.append(role.told(known(talk.problem, asked), len(talk.turns)))
    return out


def next_turn(table: Table, talks: Traces, n: int = 1, tag: str = "live") -> Traces:
    return table.reply("generator", talks, answers(table, talks), n, tag=tag, speaker="user")


def dialogues(table: Table, problems: Sequence[Problem], n: int, tag: str) -> Traces:
    """`n` whole dialogues about each problem: the questions, and then the solution."""
    with table.conversing():
        talks = table.ask("generator", problems, n, tag=tag)
        for _ in range(inquirer(table).questions):
            talks = next_turn(table, talks, tag=tag)
    return talks


def candidates(table: Table, problems: Sequence[Problem], n: int, tag: str) -> Traces:
    """At each turn of one dialogue about each problem, `n` things that might be said there."""
    with table.conversing():
        out = list(table.ask("generator", problems, n, tag=tag))
        talks, questions = table.ask("generator", problems, tag=tag), inquirer(table).questions
        for turn in range(1, questions + 1):
            out += next_turn(table, talks, n, tag)
            talks = next_turn(table, talks, tag=tag) if turn < questions else talks
    return Traces(out)


def every_question(table: Table, problems: Sequence[Problem]) -> Traces:
    """Each first question that can be asked about each problem, as if it had been."""
    role, every = inquirer(table), [(p, part) for p in problems for part in range(len(p.data["facts"]))]
    return table.write("generator", [problem for problem, _ in every], [role.ask(part) for _, part in every])


def shown(table: Table, problems: Sequence[Problem]) -> Traces:
    """What a noisy teacher says in every turn, behind what the inquirer itself said before: questions drawn blindly, and then a
    solution."""
    role, task = inquirer(table), table.setting.task
    out = list(taught(table, "generator", problems))
    talks = table.ask("generator", problems)
    for turn in range(1, role.questions + 1):
        teacher = role if turn < role.questions else role.solver
        texts = []
        for talk in talks:
            rng = keyed("teacher", table.setting.seed, table.turn, turn, talk.problem.id)
            texts.append(teacher.demonstrate(task, talk.problem, rng)[1])
        out += table.write_reply("generator", talks, answers(table, talks), texts)
        if turn < role.questions:
            talks = next_turn(table, talks)
    return Traces(out)


def ended(talks: Traces, any_gap: bool = False) -> list[Pair]:
    """Of each problem its best dialogue, if that ended well, against each that ended worse; with `any_gap` in any case."""
    out: list[Pair] = []
    for problem in dict.fromkeys(talks.problems):
        mine = [(outcome(talk, any_gap), talk) for talk in talks if talk.problem.id == problem]
        best, winner = max(mine, key=lambda one: one[0])
        if any_gap or winner.correct == 1.0:
            out += [("ended better", winner, talk) for reward, talk in mine if reward < best]
    return out


def outcome(talk: Trace, graded: bool) -> float:
    """Whether the answer is right; where it is `graded`, the share of right steps and the format count too."""
    right = talk.grade.steps if talk.grade is not None else None
    more = (sum(right) / len(right) if right else 0.0) + talk.reading.format
    return float(talk.correct == 1.0) + (more if graded else 0.0)


def guessed(talk: Trace) -> bool:
    """Whether a dialogue ended well although something was still kept back: nobody could know that."""
    return talk.correct == 1.0 and HIDDEN in state_of(talk).text


def said_of(talks: Sequence[Trace], name: str) -> dict[str, float | None]:
    """Of last turns that were chosen or rejected: useful questions, and solutions that were guessed."""
    questions, solutions = [t for t in talks if t.grade is None], [t for t in talks if t.grade is not None]
    found = {"useful": mean([useful(t)[-1] for t in questions]), "guessed": mean([guessed(t) for t in solutions])}
    return {f"{what}_{name}": value for what, value in found.items()}
