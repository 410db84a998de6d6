"""SWEET-RL: what is kept back and told, scores of turns, pairs of halves, and an actor that never sees the whole."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import TINY
from engine_helpers import chat_folder
from helpers import PROPERTY, make_rollout
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit import make_token_factors, sample_half_pairs, sum_turns
from milonga.engine.local import LocalEngine
from milonga.errors import ConfigError
from milonga.evals.metrics import order_accuracy_within
from milonga.loop import Loop
from milonga.objectives import make_objective
from milonga.objectives.losses import Denominators, Rows, TokenTerms, compute_loss
from milonga.resolve import Plan, resolve
from milonga.roles import Dialect
from milonga.roles.prose import skip_thought
from milonga.runfolder.console import LiveView
from milonga.runfolder.folder import RunFolder
from milonga.systems.sweet_rl.critic import encode_for_critic
from milonga.systems.sweet_rl.dialogues import (
    flag_useful_questions,
    list_asked_parts,
    make_known_problem,
    pair_by_outcome,
    render_answers,
    sample_dialogues,
)
from milonga.systems.sweet_rl.recipe import BASE, FORMAT, SweetRl
from milonga.systems.sweet_rl.roles import Inquirer, Message, PrivilegedCritic, Simulator
from milonga.tasks import make_task
from milonga.tasks.artefacts import find_artefact, find_reference, gives_away, hands_in, score_artefacts
from milonga.tasks.facts import hide_facts, render_known_text
from milonga.text import compare_words, longest_common_run
from milonga.types import Grade, Parsed, Problem, Rollout, Rollouts, Segment, Solution
from short import assert_resumes, short_loop


@cache
def engine() -> Any:
    made = make_engine(plan())
    for policy in ("generator", "critic"):
        made.snapshot(policy, BASE)
    return made


def plan(**options: Any) -> Plan:
    return resolve([TINY, {"recipe": "sweet_rl", "options": {"candidates": 6, "questions": 2} | options}])


def ctx(p: Plan, learner: str = "generator", phase: str = "") -> Context:
    return Context(RunContext(engine(), p.task, p.roles, p.agents, p.config.sampling, 0, 4), 1, learner, phase)


def recipe_of(p: Plan) -> SweetRl:
    assert isinstance(p.recipe, SweetRl)
    return p.recipe


def talking(p: Plan, one: Context, said: list[str], n: int = 4) -> Rollouts:
    """Dialogues about the turn's problems in which the actor says these things."""
    problems = recipe_of(p).draw_problems(one, n)
    talks = one.write("generator", problems, [said[0]] * n)
    for text in said[1:]:
        talks = one.write_reply("generator", talks, render_answers(one, talks), [text] * len(talks))
    return talks


# What is kept back, and told.


@pytest.mark.parametrize(("task", "shown"), [({"name": "chain", "ops": 3}, 1), ({"name": "last_letter", "min_words": 3}, 1)])
def test_parts_are_hidden_and_told_one_by_one(task: dict[str, Any], shown: int) -> None:
    made = make_task(task)
    for problem in made.draw_problems("train", 0, 20):
        parts = [problem.text[start:end] for start, end in made.find_facts(problem)]
        opened = hide_facts(made, problem, 2)
        assert opened.text.count("?") == 2 and opened.data["whole"] == problem.text and opened.answer == problem.answer
        assert hide_facts(made, problem, 2).data["hidden"] == opened.data["hidden"], "always the same ones"
        first, second = opened.data["hidden"]
        once = render_known_text(opened, [first])
        assert once.count("?") == 1 and render_known_text(opened, [second, first]) == problem.text
        told = [part for part in range(len(parts)) if part not in (first, second)]
        assert render_known_text(opened, told) == opened.text, "what was never hidden tells nothing new"
        assert hide_facts(made, problem, 99).text.count("?") == len(parts)


def test_chain_facts_are_its_operands() -> None:
    task = make_task({"name": "chain", "ops": 2})
    assert [("37+5*3%100"[a:b]) for a, b in task.find_facts(Problem("p", "37+5*3%100", "26"))] == ["5", "3"]


def test_questions_read_back_and_a_solution_comes_after_the_last() -> None:
    role = Inquirer("terse", 1)
    assert role.parse(role.write_question(2)).value.part == 2 and role.parse(role.write_question(11)).value.part == 11
    for text in ("", "0", "x", "1 2", "37+5=42"):
        parsed = role.parse(text)
        assert parsed.value.part is None and not parsed.is_valid
    talk = make_rollout(1, 2)
    solved = role.parse(role.solver.write(["3+4=7"], "7"), talk)
    assert solved.value.answer == "7" and solved.is_valid


def test_the_one_who_knows_tells_what_was_asked_for_and_nothing_else() -> None:
    p = plan()
    one = ctx(p)
    for talk in talking(p, one, ["1", "1"]):
        hidden = talk.problem.data["hidden"]
        assert list_asked_parts(talk) == [0, 0] and flag_useful_questions(talk) == [0 in hidden, False]
        assert make_known_problem(talk).text == render_known_text(talk.problem, [0])
        (told,) = render_answers(one, Rollouts([talk]))
        text = "".join(part.text for part in told)
        assert render_known_text(talk.problem, [0]) in text and (1 in hidden) == (talk.problem.data["whole"] not in text)
    odd = talking(p, one, ["x"], 1)[0]
    assert list_asked_parts(odd) == [None] and flag_useful_questions(odd) == [False]


# The critic.


def test_an_untrained_critic_finds_every_turn_equally_good() -> None:
    p = plan()
    one = ctx(p, "critic")
    talks = sample_dialogues(one, recipe_of(p).draw_problems(one, 3), 2, BASE)
    assert all(len(talk.turn_spans) == 3 for talk in talks)
    for sees in (True, False):
        scores = recipe_of(plan(critic_sees=sees)).score_turns(one, talks, BASE)
        assert [len(turns) for turns in scores] == [3] * 6 and np.abs(scores).max() < 1e-6


def test_a_reference_that_does_not_see_the_whole_is_biased_before_any_training() -> None:
    p = plan(rank_reference="without_c")
    one = ctx(p, "critic")
    talks = sample_dialogues(one, recipe_of(p).draw_problems(one, 3), 2, BASE)
    scores = recipe_of(p).score_turns(one, talks, BASE)
    assert np.abs(scores).max() > 0.01
    live = recipe_of(p).options.model_copy(update={"critic_sees": False})
    recipe = SweetRl(live, p.recipe.objectives, p.recipe.policies, 3)
    assert np.abs(recipe.score_turns(one, talks, BASE)).max() < 1e-6


def test_the_critic_reads_the_whole_problem_in_front_of_the_very_tokens() -> None:
    p = plan()
    one = ctx(p)
    codec = engine().policy("critic").codec
    talks = sample_dialogues(one, recipe_of(p).draw_problems(one, 3), 1, BASE)
    for sees in (True, False):
        rows = encode_for_critic(one, talks, sees)
        for talk in talks:
            row = rows[talk.id]
            assert (talk.problem.data["whole"] in codec.decode_ids(row.ids[: row.segments[0].end].tolist())) == sees
            said = [talk.ids[start:end].tolist() for start, end in talk.turn_spans]
            assert [row.ids[start:end].tolist() for start, end in row.turn_spans] == said
            assert (
                row.length == sum(map(len, said))
                and row.ids[row.segments[0].end :].tolist() == talk.ids[talk.segments[0].end :].tolist()
            )


def conversation(*lengths: int) -> Rollout:
    """Turns of these lengths behind two tokens of a prompt, with one token of somebody else between them."""
    segments, at = [Segment("prompt", 0, 2)], 2
    for number, length in enumerate(lengths):
        if number:
            segments.append(Segment("user", at, at + 1))
            at += 1
        segments.append(Segment("generator", at, at + length, "generator", trained=True))
        at += length
    rollout = make_rollout(2, at - 2)
    rollout.segments = tuple(segments)
    return rollout


def test_scores_of_turns_by_hand() -> None:
    talk = Rollouts([conversation(2, 4)])
    numbers = [np.array([9, 9, 1, 3, 9, 1, 1, 1, 5], dtype=float)]
    for how, expected in (("sum_of_turn_means", [2.0, 2.0]), ("token_mean", [4 / 6, 8 / 6]), ("sum", [4.0, 8.0])):
        factors = make_token_factors(talk, how)  # type: ignore[arg-type]
        assert sum_turns(numbers, factors, talk) == [pytest.approx(expected)]
        assert not factors[0][[0, 1, 4]].any()


@PROPERTY
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 4))
def test_the_length_of_a_turn_does_not_count(lengths: list[int], times: int) -> None:
    short, long = Rollouts([conversation(*lengths)]), Rollouts([conversation(*(times * n for n in lengths))])
    for talk in (short, long):
        ones = [np.ones(len(talk[0].ids))]
        assert sum_turns(ones, make_token_factors(talk, "sum_of_turn_means"), talk)[0] == pytest.approx([1.0] * len(lengths))


def test_factors_enter_the_score_and_swapping_sides_negates_its_argument() -> None:
    loss = make_objective("dpo", {"beta": 0.5}).loss
    logp, reference = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-2.0, -2.0, -1.0])
    factor = torch.tensor([1.0, 0.5, 0.25])

    def value(pairs: list[list[int]], factors: torch.Tensor | None) -> float:
        rows = Rows(torch.tensor([2, 1]), pairs=torch.tensor(pairs))
        terms = TokenTerms(logp, logp, logp, torch.tensor([0, 0, 1]), rows, reference=reference, factor=factors)
        return float(compute_loss(loss, terms, Denominators(3, 2, 1))[0])

    # Row 0 scores 0.5 * 1, row 1 scores 0.5 * 0.25 * -2.
    assert value([[0, 1]], factor) == pytest.approx(float(np.log1p(np.exp(-0.75))), abs=1e-6)
    assert value([[1, 0]], factor) == pytest.approx(float(np.log1p(np.exp(0.75))), abs=1e-6)
    assert value([[0, 1]], None) == pytest.approx(float(np.log1p(np.exp(-1.5))), abs=1e-6)


def test_the_first_dialogue_that_ended_well_wins_against_each_that_did_not() -> None:
    ends = [("p", False), ("p", True), ("p", True), ("p", False), ("q", False), ("r", True)]
    talks = Rollouts(make_rollout(1, 1, problem=name, correct=right, id=f"t{n}") for n, (name, right) in enumerate(ends))
    assert [(winner.id, loser.id) for _, winner, loser in pair_by_outcome(talks)] == [("t1", "t0"), ("t1", "t3")]


def test_right_steps_and_format_make_a_gap_only_where_that_is_asked_for() -> None:
    talks = Rollouts(make_rollout(1, 1, correct=False, id=f"t{n}") for n in range(3))
    for talk, steps in zip(talks, [(True, False), (True, True), ()], strict=True):
        talk.grade = Grade(False, steps)
    assert pair_by_outcome(talks) == []
    assert [(winner.id, loser.id) for _, winner, loser in pair_by_outcome(talks, True)] == [("t1", "t0"), ("t1", "t2")]
    talks[1].parsed = Parsed(talks[1].parsed.value, 0.0, "no answer line")
    assert [winner.id for _, winner, _ in pair_by_outcome(talks, True)] == ["t0", "t0"]


def test_the_critic_learns_from_whole_dialogues_with_a_factor_for_each_token() -> None:
    p = plan()
    one = ctx(p, "critic")
    good, bad = talking(p, one, ["1", "2", "#1"], 2), talking(p, one, ["1", "1", "#2"], 2)
    for talk, right in ((good[0], True), (bad[0], False)):
        talk.grade = make_rollout(1, 1, correct=right).grade
    bad[0].problem = good[0].problem
    (made,) = p.recipe.credit(one, Rollouts([good[0], bad[0]]))
    assert made.policy == "critic" and made.labels == [1.0, 0.0] and made.sources == {"answers": 1.0}
    assert made.factors is not None and [row.sum() for row in made.factors] == pytest.approx([3.0, 3.0])
    assert made.notes["coverage"] == 1.0
    assert p.recipe.credit(one, Rollouts([good[0]])) == []


# The actor.


def test_pairs_of_halves_by_hand() -> None:
    scores, groups = [5.0, 1.0, 4.0, 2.0, 7.0, 7.0, float("nan"), 3.0], ["a"] * 4 + ["b"] * 3 + ["c"]
    found = sample_half_pairs(scores, groups, 50, 0.0, random.Random(0))
    assert set(found) == {(0, 1), (0, 3), (2, 1), (2, 3)}  # equal scores make no pair, and one row makes none
    assert sample_half_pairs(scores, groups, 50, 2.5, random.Random(0)) and all(
        scores[best] - scores[worst] >= 2.5 for best, worst in sample_half_pairs(scores, groups, 50, 2.5, random.Random(0))
    )
    assert len(sample_half_pairs(scores, groups, 1, 0.0, random.Random(0))) == 1


@PROPERTY
@given(st.lists(st.integers(0, 5), min_size=2, max_size=16), st.integers(0, 9))
def test_the_winner_is_never_of_the_worse_half(values: list[int], seed: int) -> None:
    scores = [float(value) for value in values]
    for best, worst in sample_half_pairs(scores, ["g"] * len(scores), 4, 0.0, random.Random(seed)):
        assert scores[best] > scores[worst] and scores[best] >= np.median(scores) >= scores[worst]


def test_the_actor_never_reads_the_whole_problem() -> None:
    """Not in a prompt of its train batches, and not in what they hold for later."""
    p = plan(hidden=2, questions=2)
    one = ctx(p)
    recipe, codec = recipe_of(p), engine().policy("generator").codec
    rollouts = recipe.rollout(one)
    ranks = np.random.default_rng(0).normal(size=len(rollouts))
    recipe.score_turns = lambda *_: [[0.0] * (len(t.turn_spans) - 1) + [rank] for t, rank in zip(rollouts, ranks, strict=True)]  # type: ignore[method-assign]
    (made,) = recipe.credit(one, rollouts)
    assert made.policy == "generator" and made.sources == {"critic": 1.0} and made.factors is None
    by_text = {}
    for row in made.rollouts:
        start, end = row.segments[-1].start, row.segments[-1].end
        assert row.mask[start:end].all() and not row.mask[:start].any(), "one turn alone is trained"
        asked = list(list_asked_parts(row.earlier_conversation)) if row.earlier_conversation is not None else []
        left = [part for part in row.problem.data["hidden"] if part not in asked]
        if left:
            assert row.problem.data["whole"] not in codec.decode_ids(row.ids[:start].tolist())
            by_text[row.id] = row
    assert by_text
    assert all(kept.question != kept.winner.text and "?" in kept.question for kept in one.preferences.kept if kept.turn == 0)


def test_candidates_of_a_turn_are_compared_with_each_other_alone() -> None:
    p = plan()
    one = ctx(p)
    recipe = recipe_of(p)
    rollouts = recipe.rollout(one)
    assert [sum(len(t.turn_spans) == turns for t in rollouts) for turns in (1, 2, 3)] == [24, 24, 24]
    recipe.score_turns = lambda *_: [[float(n)] for n in range(len(rollouts))]  # type: ignore[method-assign]
    (made,) = recipe.credit(one, rollouts)
    for winner, loser in zip(made.rollouts[::2], made.rollouts[1::2], strict=True):
        assert winner.problem.id == loser.problem.id and len(winner.turn_spans) == len(loser.turn_spans)
        assert winner.segments[-1].start == loser.segments[-1].start and winner.text != loser.text
    assert {kept.reason for kept in one.preferences.kept} == {"ranked higher by the critic"}
    recipe.score_turns = lambda *_: [[1.0]] * len(rollouts)  # type: ignore[method-assign]
    assert recipe.credit(one, rollouts) == [], "equal scores teach nothing"


def test_whole_dialogues_are_preferred_where_there_is_no_critic() -> None:
    p = plan(credit="trajectory")
    assert [phase.turns for phase in p.recipe.schedule().cycle] == [0, 100]
    one = ctx(p)
    talks = p.recipe.rollout(one)
    for number, talk in enumerate(talks):
        talk.grade = make_rollout(1, 1, correct=number % 3 == 0).grade
    (made,) = p.recipe.credit(one, talks)
    assert made.policy == "generator" and made.sources == {"answers": 1.0}
    assert all(row.length == sum(end - start for start, end in row.turn_spans) for row in made.rollouts)


def test_order_within_problems_by_hand() -> None:
    assert order_accuracy_within("aabbc", [1.0, 0.0, 0.0, 1.0, 5.0], [1.0, 0.0, 1.0, 0.0, 1.0]) == 0.5
    assert order_accuracy_within("aabbc", [1.0, float("nan"), 0.0, 1.0, 5.0], [1.0, 0.0, 0.0, 1.0, 1.0]) == 1.0
    assert order_accuracy_within("aabbc", [0.0] * 5, [1.0] * 5) is None


# The schedule, and what is refused.


def test_a_round_begins_with_a_critic_that_is_the_actor(tmp_path: Path) -> None:
    with short_loop("sweet_rl", tmp_path / "run") as loop:
        loop.run_turn()
        assert isinstance(loop.engine, LocalEngine)
        actor = loop.engine.policy("generator").clone()
        loop.run_turn()
        assert [row["learner"] for row in loop.rows] == ["generator", "critic"]
        for policy in ("generator", "critic"):
            kept = loop.engine.policy(policy).get_tag(BASE)
            assert all(torch.equal(a, b) for a, b in zip(kept, actor, strict=True))
    assert loop.plan.recipe.objectives["critic"].loss.kl_from == loop.plan.recipe.objectives["generator"].loss.kl_from == BASE


def test_the_format_is_shown_in_every_turn() -> None:
    p = plan(format_lines=4)
    made = p.recipe.rollout(ctx(p, phase=FORMAT))
    assert [sum(len(t.turn_spans) == turns for t in made) for turns in (1, 2, 3)] == [4, 4, 4]
    assert all(t.parsed.is_valid for t in made) and all(not t.mask[: t.segments[-1].start].any() for t in made)


def test_what_cannot_be_done_is_refused_in_one_line(tmp_path: Path) -> None:
    bare = tmp_path / "bare.jsonl"
    bare.write_text("".join(f'{{"question": "{n} and {n}?", "answer": "{2 * n}"}}\n' for n in range(40)))
    with pytest.raises(ConfigError, match="keeps back parts of problems"):
        resolve([TINY, {"recipe": "sweet_rl", "task": {"name": "jsonl", "path": str(bare)}, "options": {"formats": 0}}])
    with pytest.raises(ConfigError, match="two sets of weights"):
        resolve([TINY, {"recipe": "sweet_rl", "binding": "shared"}])


@pytest.mark.parametrize("dialect", ["terse", "plain"])
def test_only_the_critic_is_shown_the_reference(dialect: Dialect) -> None:
    problem, critic = Problem("p", "37+?%100", "42"), PrivilegedCritic(dialect)
    plain, more = (
        "".join(part.text for part in prompt)
        for prompt in (critic.prompt(problem), critic.prompt_with_reference(problem, "37+5%100"))
    )
    assert "37+5%100" not in plain and more.endswith(plain) and "37+5%100" in more


def test_a_run_that_was_cut_before_the_actors_turn_ends_in_the_same_bits(tmp_path: Path) -> None:
    assert_resumes("sweet_rl", tmp_path, after=2, lead=2)


# A simulated user, in prose.

PROGRAM = "```python\ndef add(a, b):\n    return a + b\n```"


@pytest.mark.parametrize(
    ("text", "hands", "artefact"),
    [
        ("Should the result be rounded?", False, None),
        ("**FINAL ANSWER:**\nOnce upon a time.", True, "Once upon a time."),
        ("Thanks!\n\n### Final answer\n\nThe end.", True, "The end."),
        (f"Sure, here it is:\n{PROGRAM}", True, f"Sure, here it is:\n{PROGRAM}"),
        ("So the total is \\boxed{7}.", True, "So the total is \\boxed{7}."),
        ("<think>FINAL ANSWER? Not yet.</think>What is the unit?", False, None),
        ("What should the final answer look like?", False, None),
        ("The final answer depends on the size. What size?", False, None),
        ("The final version should rhyme, I think.", False, None),
        ("Final answer: should it be an integer?", False, None),
        ("FINAL ANSWER\n\nWhat is the unit?", False, None),
        ("FINAL ANSWER\n42", True, "42"),
        ("**Final Answer:** 42", True, "42"),
        ("**Final Answer** 42", True, "42"),
        ("My final version:\nWho goes there?\nIs it you?", True, "Who goes there?\nIs it you?"),
        ("FINAL ANSWER\n42\n\nIs that what you want?", True, "42\n\nIs that what you want?"),
        ("", False, None),
    ],
)
def test_what_hands_in_a_result(text: str, hands: bool, artefact: str | None) -> None:
    parsed = Inquirer("plain", 3).parse(text)
    assert isinstance(parsed.value, Solution) == hands and hands_in(skip_thought(text)) == hands
    assert artefact is None or find_artefact(text) == artefact
    assert parsed.is_valid or not text or parsed.value.answer is None


@PROPERTY
@given(
    st.lists(st.sampled_from(["FINAL ANSWER", "\n", "?", "a", "**", "```python\n", "def f", "<think>", "</think>"])).map(
        "".join
    )
)
def test_any_message_is_read(text: str) -> None:
    role = Inquirer("plain", 2)
    first, last = role.parse(text), role.parse(text, conversation(1, 1))
    assert isinstance(first.value, Message | Solution) and isinstance(last.value, Solution)
    assert find_artefact(text) in text and Simulator("plain").parse(text).value.text


def test_a_user_reads_the_reference_and_the_whole_dialogue_and_the_actor_does_not() -> None:
    said = Rollout.from_text("r", "simulator", Problem("p", "", ""), "Two numbers.", Simulator("plain").parse("Two numbers."))
    problem = Problem("p", "Write a function add(a, b).", "SECRET", {"replies": (said,), "form": "program"})
    first, talk = conversation(2), conversation(2, 2)
    first.text, talk.text = "Of what?", "<think>hm</think>Floats too?"
    talk = replace(talk, targets=(first,), problem=problem)
    told = "".join(part.text for part in Simulator("plain").prompt(problem, talk))
    assert "Assistant: Of what?\n\nYou: Two numbers.\n\nAssistant: Floats too?" in told and "SECRET" in told
    actor, critic = Inquirer("plain", 2), PrivilegedCritic("plain", 2)
    for prompt in (actor.prompt(problem), actor.render_reply("Yes.", 2), critic.prompt(problem)):
        assert "SECRET" not in "".join(part.text for part in prompt)
    assert "last question" in "".join(part.text for part in actor.render_reply("Yes.", 2))
    assert [part.text for part in actor.render_reply("Yes.", 1)] == ["Yes."]


@pytest.mark.parametrize(
    ("said", "read"),
    [("User: It does.", "It does."), ("<think>x</think> **You:** Only integers.", "Only integers."), ("Yes.", "Yes.")],
)
def test_a_reply_is_what_the_user_says(said: str, read: str) -> None:
    assert Simulator("plain").parse(said).value.text == read  # type: ignore[union-attr]
    assert Simulator("plain").parse(" ").value.text == "It does not matter." and not Simulator("plain").parse(" ").is_valid  # type: ignore[union-attr]


def test_similarity_and_what_gives_a_reference_away_by_hand() -> None:
    assert compare_words("a b c", "A  c") == pytest.approx(2 * 2 / 5) and compare_words("", "x") == 0.0
    assert compare_words("return a+b", "return a - b") == pytest.approx(2 * 3 / 8)
    problem = Problem("p", "q", "one two three four five six seven eight nine")
    assert gives_away("It is: one two three four five six seven eight!", problem)
    assert not gives_away("one two three four five six seven, and then eight nine", problem)


def test_the_outcome_of_a_program_is_its_share_of_hidden_tests(tmp_path: Path) -> None:
    rows = [
        {"task_id": 601 + n, "text": f"Add {n}.", "code": f"def f(a):\n    return a + {n}", "test_setup_code": "",
         "test_list": [f"assert f({a}) == {a + n}" for a in range(4)]}
        for n in range(1, 30)
    ]  # fmt: skip
    (tmp_path / "mbpp.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = make_task({"name": "code", "dialect": "python", "path": str(tmp_path / "mbpp.jsonl"), "allow_weak_isolation": True,
                      "dev": 4, "test": 4})  # fmt: skip
    problem = task.problem("train", 0)
    assert find_reference(problem) == problem.answer != ""
    half = "def f(a):\n    return 0 if a > 1 else " + problem.answer.partition("return ")[2]
    scores = score_artefacts(task, [(problem, answer, "") for answer in (problem.answer, half, "def f(a): pass", None)])
    assert scores == [1.0, 0.5, 0.0, 0.0]


def simulated(folder: Path, task: dict[str, Any], **options: Any) -> Plan:
    model = chat_folder(folder)
    layers = {"recipe": "sweet_rl", "task": task, "policies": {"generator": {"model": model, "warmup": 0, "lr": 1e-3}}}
    few = {"batch": {"problems": 2, "rollouts": 3}, "sampling": {"max_tokens": 12}, "eval": {"problems": 1, "samples": 1}}
    return resolve([layers, few, {"options": {"candidates": 4, "critic_turns": 1, "measured": 2} | options}])


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Requests with the texts that their users want; single letters, which a random model writes now and then."""
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    rows = [
        {"problem": f"Write text number {n}.", "reference": " ".join("abcdefghijklmnopqrstuvwxyz.,;:!?")} for n in range(60)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_a_file_of_requests_and_references_trains_critic_and_actor(tmp_path: Path, texts: str) -> None:
    """A random model is all three: likeness to the reference makes pairs, and both learn in turn; the simulator does not."""
    fields = {"question": "problem", "solution": "reference"}
    p = simulated(tmp_path, {"name": "jsonl", "path": texts, "fields": fields, "open": True})
    assert set(p.policies) == {"generator", "critic", "simulator"} and p.config.dialect == "plain"
    with RunFolder(tmp_path / "run", 1) as opened, LiveView("", None, quiet=True) as view:
        loop = Loop(p, make_engine(p), opened, view)
        assert isinstance(loop.engine, LocalEngine)
        before = {name: loop.engine.policy(name).clone() for name in p.policies}
        loop.run_turn()
        loop.run_turn()
        rows, engine = loop.rows, loop.engine
        moved = {
            name: not all(torch.equal(a, b) for a, b in zip(before[name], engine.policy(name).clone(), strict=True))
            for name in p.policies
        }
        found = loop.evaluate()
    assert [row["learner"] for row in rows] == ["critic", "generator"]
    assert moved == {"generator": True, "critic": True, "simulator": False}
    assert rows[0]["rollouts/simulator/invalid_rate"] < 1
    assert rows[0]["rollouts/generator/invalid_rate"] < 0.5, "a text is handed in without a box"
    assert rows[0]["credit/critic/pairs"] >= 1 and rows[1]["credit/generator/pairs"] >= 1
    assert rows[1]["credit/generator/asked_chosen"] <= 1.0 and 0 < found["eval/generator/outcome"] < 1
    assert found["eval/generator/success"] is None and found["eval/generator/questions"] > 0


def test_whose_user_knows_nothing_is_told_so_before_a_model_is_loaded(texts: str) -> None:
    fields = {"question": "problem", "answer": ""}
    layers = {"recipe": "sweet_rl", "task": {"name": "jsonl", "path": texts, "fields": fields}}
    with pytest.raises(ConfigError, match=r"needs what its simulated user knows.*task\.fields\.solution"):
        resolve([layers, {"policies": {"generator": {"model": "any/model"}}}])
    with pytest.raises(ConfigError, match=r"options.user = 'simulator' speaks the dialect 'plain', not 'terse'"):
        resolve([TINY, {"recipe": "sweet_rl", "options": {"user": "simulator"}}])


def test_a_dialogue_that_could_not_be_graded_neither_wins_nor_loses() -> None:
    right, unknown, wrong = (make_rollout(1, 1, correct=known) for known in (True, None, False))
    for talks in ([right, unknown, wrong], [unknown, right, wrong]):
        pairs = pair_by_outcome(Rollouts(talks))
        assert [(winner is right, loser is wrong) for _, winner, loser in pairs] == [(True, True)]


@PROPERTY
@given(st.text(st.sampled_from("ab "), max_size=60), st.text(st.sampled_from("ab "), max_size=60))
def test_the_longest_common_run_is_that_of_words(one: str, other: str) -> None:
    expected = SequenceMatcher(None, one.split(), other.split(), autojunk=False).find_longest_match().size
    assert longest_common_run(one, other) == expected == longest_common_run(other, one)


def test_the_longest_common_run_of_long_texts_of_few_words() -> None:
    rng = random.Random(0)
    one, other = (" ".join(rng.choice("ab") for _ in range(4000)) for _ in "xy")
    assert longest_common_run(one, other) > 10 and longest_common_run(one, one) == 4000
