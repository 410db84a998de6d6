"""RLP: what a thought is worth, by hand and with a real model; the two templates; and the traps."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import milonga
from cases import FAST, TINY
from helpers import PROPERTY, make_rollouts
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit import outcome_advantages
from milonga.errors import ConfigError, UserError
from milonga.randomness import keyed_rng
from milonga.resolve import Plan, resolve
from milonga.runfolder.files import JsonLines
from milonga.systems.rlp.recipe import Rlp
from milonga.systems.rlp.roles import Predictor, Thinker
from milonga.systems.rlp.thinking import (
    append_target,
    copy_rate,
    cut_lines,
    group_stds,
    make_plain_prompts,
    sample_thoughts,
    score_next_tokens,
    swap_thoughts,
)
from milonga.tasks import make_task
from milonga.types import Parsed, Problem, Rollout, Rollouts, Solution
from test_resume import assert_same, die, finish

torch.set_num_threads(1)
SMALL: dict[str, Any] = TINY | {"options": {"format_turns": 1, "format_lines": 4, "pick": "answer", "measured": 4}}


def plan(**settings: Any) -> Plan:
    return resolve([{"recipe": "rlp"}, SMALL, {"policies": {"generator": FAST}}, settings])


@cache
def engine() -> Any:
    return make_engine(plan())


def fresh(p: Plan, turn: int = 1) -> Context:
    """A context with the policy, and its average, as they start."""
    engine().copy("generator", "generator", "ref")
    engine().snapshot("generator", "ema")
    sampling, seed, problems = p.config.sampling, p.config.seed, p.config.batch.problems
    return Context(RunContext(engine(), p.task, p.roles, p.agents, sampling, seed, problems), turn, "generator")


def weights() -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in engine().policy("generator").parameters]


def text_of(ids: np.ndarray) -> str:
    return str(engine().policy("generator").codec.decode_ids([int(i) for i in ids]))


# The roles.


words = st.text(alphabet="ab 0#<>/\n=thinkanswer", max_size=12)


@PROPERTY
@given(words, words, st.sampled_from(["terse", "tagged"]))
def test_a_written_thought_reads_back(thought: str, rest: str, dialect: Any) -> None:
    role = Thinker(dialect)
    thought = thought.replace(role.closing_tag, "")
    found = role.parse(role.write(thought, rest))
    if role.closing_tag in (thought + role.closing_tag)[: -len(role.closing_tag)]:
        return  # taking a closing tag out may have made another
    assert found.is_valid and found.value.steps == (thought,) and found.value.answer == (rest or None)
    assert role.write(thought, rest)[: found.value.ends[0]].endswith(role.closing_tag)
    assert Predictor(dialect).parse(Predictor(dialect).write(rest)).value.answer == (rest or None)


@PROPERTY
@given(st.text(max_size=40), st.sampled_from(["terse", "tagged"]))
def test_any_text_can_be_read(text: str, dialect: Any) -> None:
    role = Thinker(dialect)
    found = role.parse(text)
    assert found.is_valid == (role.closing_tag in text) == bool(found.value.steps)
    assert all(0 < end <= len(text) for end in found.value.ends)


@pytest.mark.parametrize("dialect", ["terse", "tagged"])
def test_the_tags_of_a_thought_are_in_one_template_alone(dialect: Any) -> None:
    thinker, predictor = Thinker(dialect), Predictor(dialect)
    place = Problem("p", thinker.render_question(Problem("q", "3+4%10", "7")), "7")
    before = "".join(part.text for part in thinker.prompt(place))
    without = "".join(part.text for part in predictor.prompt(place))
    assert without == place.text
    assert before == (without[:-1] if dialect == "terse" else without) + thinker.opening_tag
    assert thinker.opening_tag not in without and thinker.closing_tag not in without
    assert all(part.foreign for part in predictor.prompt(place)) and not thinker.prompt(place)[-1].foreign
    assert thinker.stop == (thinker.closing_tag,) and predictor.stop == ()


def test_in_prose_a_line_ends_where_it_ends_and_an_example_shows_the_form() -> None:
    thinker, place = Thinker("plain"), Problem("p", "The sum of 2 and 3 is", "")
    thinker.example = True
    shown = "".join(part.text for part in thinker.prompt(place))
    assert shown.endswith("\n\nThe sum of 2 and 3 is<think>") and shown.count("</think>") == 2
    thinker.example = False
    assert [part.text for part in thinker.prompt(place)] == ["The sum of 2 and 3 is", "<think>"]
    found = thinker.parse("2+3=5</think> 5\nNext line")
    assert found.value == Solution(("2+3=5",), (13,), "5") and thinker.parse("no end").value == Solution((), (), None)
    assert Predictor("plain").parse(" 5\n").value == Solution((), (), "5") and Predictor("plain").stop == ("\n",)


@PROPERTY
@given(st.text(max_size=40))
def test_any_prose_can_be_read(text: str) -> None:
    found = Thinker("plain").parse(text)
    assert found.is_valid == ("</think>" in text) and Predictor("plain").parse(text).is_valid == bool(text.strip())


def test_worked_solutions_are_shown_as_thoughts_and_nothing_is_shown_without_them(tmp_path: Path) -> None:
    """A task that cannot choose which step is wrong shows right ones; one without work used to teach empty thoughts."""
    worked = [{"question": f"{n}+1?", "answer": f"{n}+1 is one more.\nSo {n + 1}.\n#### {n + 1}"} for n in range(40)]
    (tmp_path / "worked.jsonl").write_text("\n".join(map(json.dumps, worked)))
    task: dict[str, Any] = {"name": "jsonl", "path": str(tmp_path / "worked.jsonl"), "answer_after": "####"}
    made, role = make_task(task), Thinker("plain")
    problem = made.problem("train", 0)
    number = problem.text.removesuffix("+1?")
    assert role.demonstrate(made, problem, keyed_rng("test"))[1] == (
        f"{number}+1 is one more.\nSo {int(number) + 1}.\n</think>{int(number) + 1}"
    )
    (tmp_path / "bare.jsonl").write_text("\n".join(json.dumps({"question": f"{n}+1?", "answer": n + 1}) for n in range(40)))
    bare = {"recipe": "rlp", "task": {"name": "jsonl", "path": str(tmp_path / "bare.jsonl")}}
    named = {"policies": {"generator": {"model": "a/model"}}}
    with pytest.raises(ConfigError, match=r"which task 'jsonl' does not have for all problems; set options\.format_turns=0"):
        resolve([bare, named, {"options": {"format_turns": 2}}])
    assert resolve([bare, named]).config.policies["generator"].chat == "off"
    with pytest.raises(ConfigError, match="needs to know which answers are right"):
        resolve([bare, named, {"task": {"fields": {"answer": ""}}, "options": {"pick": "answer"}}])


def test_a_text_is_a_line_of_its_own_and_one_token_is_cut_before_it() -> None:
    at = fresh(plan())
    (place,) = cut_lines(at, [Problem("p", "12+34", "")], "random")
    assert place.text + place.data["next"] == "12+34"[: len(place.text) + 1] and place.data["line"] == "12+34"
    (short,) = cut_lines(at, [Problem("p", "7", "")], "random")
    assert (short.text, short.data["next"]) == ("", "7")


@pytest.mark.parametrize("dialect", ["terse", "tagged"])
def test_a_demonstrated_thought_can_be_read(dialect: Any) -> None:
    task, role = make_task({"name": "chain", "ops": 3}), Thinker(dialect)

    for problem in task.draw_problems("train", 0, 20):
        target, text = role.demonstrate(task, problem, keyed_rng("test", problem.id))
        found = role.parse(text)
        assert target is None and found.is_valid
        # The answer is what the last step came to, right or wrong.
        assert found.value.steps[0].splitlines()[-1].endswith(f"={found.value.answer}")


# Lines and places.


def test_a_line_is_cut_before_its_answer_or_at_any_token() -> None:
    p = plan()
    ctx = fresh(p)
    problems = ctx.problems(40)
    for problem, place in zip(problems, cut_lines(ctx, problems, "answer", 2), strict=True):
        assert place.text == f">{problem.text}=" and place.data["next"] == problem.answer[:2]
        assert place.data["line"] == place.text + problem.answer and place.answer == problem.answer
    places = cut_lines(ctx, problems, "random")
    assert all(p.data["line"].startswith(p.text + p.data["next"]) for p in places)
    assert all(len(p.data["next"]) == 1 and 0 < len(p.text) < len(p.data["line"]) for p in places)
    assert len({len(p.text) for p in places}) > 5
    assert places == cut_lines(ctx, problems, "random") and len({p.id for p in places}) == 40


def test_what_follows_never_changes_the_thoughts() -> None:
    """The trap of a leak: thoughts are sampled from what stands before the place alone."""
    p = plan()
    thoughts = []
    for answer in ("11", "99"):
        ctx = fresh(p)
        problems = [replace(problem, answer=answer) for problem in ctx.problems()]
        thoughts.append(sample_thoughts(ctx, cut_lines(ctx, problems, "answer"), 2))
    assert [t.problem.data["next"] for t in thoughts[0]] != [t.problem.data["next"] for t in thoughts[1]]
    assert all(np.array_equal(a.ids, b.ids) for a, b in zip(*thoughts, strict=True))


# The reward.


def test_a_prediction_is_scored_behind_the_closing_tag_in_the_very_tokens_of_the_thought() -> None:
    p = plan()
    ctx = fresh(p)
    thoughts = sample_thoughts(ctx, cut_lines(ctx, ctx.problems(8), "answer"), 2)
    closed, loose = thoughts.select(lambda t: t.parsed.is_valid), thoughts.select(lambda t: not t.parsed.is_valid)
    assert len(closed)
    for rollout in closed:
        asked = append_target(ctx, rollout)
        assert np.array_equal(asked.ids[: len(rollout.ids)], rollout.ids)
        assert text_of(asked.ids[asked.mask]) == rollout.problem.data["next"]
    cutoff = replace(closed[0], text="3", parsed=Parsed(Solution((), (), None), 0.0, "not closed"), finish="length")
    for rollout in [*loose, cutoff]:
        asked = append_target(ctx, rollout)
        assert text_of(asked.ids).endswith("#" + rollout.problem.data["next"]) and asked.mask.sum() == 1
        assert int(engine().policy("generator").codec.tokenizer.eos_token_id) not in asked.ids
    # The same number as that of the whole text, of which the first part is known.
    rollout = closed[0]
    role = p.roles["generator"]
    assert isinstance(role, Thinker)
    (given_,) = ctx.write("generator", [rollout.problem], [rollout.text + rollout.problem.data["next"]])
    expected = engine().score("generator", Rollouts([given_]))[0][len(rollout.ids)]
    assert score_next_tokens(ctx, Rollouts([rollout]))[0] == pytest.approx(expected, abs=1e-5)


def test_without_a_thought_only_the_beginning_of_the_line_is_seen() -> None:
    p = plan()
    ctx = fresh(p)
    places = cut_lines(ctx, ctx.problems(), "answer")
    for place, bare in zip(places, make_plain_prompts(ctx, places), strict=True):
        asked = append_target(ctx, bare)
        assert text_of(asked.ids).removeprefix("<bos>") == place.text + place.data["next"]
        assert text_of(asked.ids[asked.mask]) == place.data["next"]


def test_leave_one_out_by_hand() -> None:
    rollouts = make_rollouts([3, 5, 2, 4])
    objective = plan().recipe.objectives["generator"]
    found = outcome_advantages(np.array([0.2, -0.1, 0.5, 0.0]), rollouts, ["p"] * 4, objective.estimator)
    assert [a[-1] for a in found] == pytest.approx([0.0667, -0.3333, 0.4667, -0.2], abs=1e-4)
    # No division by the std, and the mean over a thought's own tokens: neither noise nor length is blown up.
    assert objective.estimator.advantage == "leave_one_out" and objective.loss.aggregate == "sequence_mean"
    loss = objective.loss
    assert (loss.clip_low, loss.clip_high, loss.kl_coef, loss.entropy_coef) == (0.2, 0.2, 0.0, 0.0)
    assert objective.estimator.kl_coef == 0.0


def test_equal_rewards_move_nothing() -> None:
    p = plan()
    ctx = fresh(p)
    thoughts = sample_thoughts(ctx, cut_lines(ctx, ctx.problems(), "answer"), 4)
    estimator = p.recipe.objectives["generator"].estimator
    advantages = outcome_advantages(np.full(len(thoughts), 0.7), thoughts, thoughts.problem_ids, estimator)
    before = weights()
    engine().learn(p.recipe.train_batch("generator", thoughts, advantages=advantages))
    assert all(torch.equal(a, b) for a, b in zip(before, weights(), strict=True))


def test_only_the_tokens_of_the_thought_are_trained() -> None:
    """The reward has no gradient: the token that it is about is not in the train batch at all."""
    p = plan()
    ctx = fresh(p)
    rollouts = p.recipe.rollout(ctx)
    (train_batch,) = p.recipe.credit(ctx, rollouts)
    assert train_batch.policy == "generator" and train_batch.sources == {"text": 1.0} and train_batch.advantages is not None
    assert any(a.any() for a in train_batch.advantages)
    for rollout, advantage in zip(train_batch.rollouts, train_batch.advantages, strict=True):
        assert rollout.grade is None and rollout.origin == "sampled"
        own = rollout.segments[-1]
        assert text_of(rollout.ids[: own.start]).removeprefix("<bos>") == rollout.problem.text[:-1] + "\n"
        assert own.end == len(rollout.ids) and not advantage[: own.start].any()
    assert train_batch.notes["reward"] == pytest.approx(train_batch.notes["ce_baseline"] - train_batch.notes["ce_thought"])


def test_the_slow_copy_says_what_thinking_gains_and_cancels_in_the_advantage() -> None:
    p = plan()
    ctx = fresh(p)
    rollouts = p.recipe.rollout(ctx)
    (one,) = p.recipe.credit(ctx, rollouts)
    for tensor in engine().policy("generator").tags["ema"]:
        tensor.mul_(0.9)
    (other,) = p.recipe.credit(ctx, rollouts)
    assert other.notes["ce_baseline"] != one.notes["ce_baseline"] and other.notes["ce_thought"] == one.notes["ce_thought"]
    assert one.advantages is not None and other.advantages is not None
    assert all(a == pytest.approx(b, abs=1e-9) for a, b in zip(one.advantages, other.advantages, strict=True))


def test_the_average_decays_towards_the_weights_and_can_start_anew() -> None:
    made = make_engine(plan(policies={"generator": {"ema": 0.9}}))
    policy = made.policy("generator")
    live = policy.clone()
    policy.tags["ema"] = [tensor + 1.0 for tensor in live]
    for _ in range(3):
        made.publish("generator")
    for mean, tensor in zip(policy.tags["ema"], live, strict=True):
        assert torch.allclose(mean - tensor, torch.full_like(tensor, 0.9**3), atol=1e-5)
    made.snapshot("generator", "ema")
    assert all(torch.equal(mean, tensor) for mean, tensor in zip(policy.tags["ema"], live, strict=True))
    with pytest.raises(ValueError, match="not a name"):
        make_engine(resolve([{"recipe": "grpo"}, TINY])).snapshot("generator", "ema")


# Figures.


def test_thoughts_change_places_between_lines() -> None:
    p = plan()
    ctx = fresh(p)
    thoughts = sample_thoughts(ctx, cut_lines(ctx, ctx.problems(3), "answer"), 1)
    moved = swap_thoughts(thoughts)
    for rollout, other, got in zip(thoughts, [*thoughts[1:], thoughts[0]], moved, strict=True):
        assert got.problem == rollout.problem and got.text == other.text
        start = rollout.segments[-1].start
        assert np.array_equal(got.ids[:start], rollout.ids[:start])
        assert np.array_equal(got.ids[start:], other.ids[other.segments[-1].start :])
    assert np.isfinite(score_next_tokens(ctx, moved)).all()


def test_copied_and_empty_thoughts_are_counted() -> None:
    def thought(text: str) -> Rollout:
        parsed = Thinker("terse").parse(text)
        return Rollout.from_text("t", "generator", Problem("p", ">3+4%10=", "7"), text, parsed)

    assert copy_rate(Rollouts([thought("3+4#"), thought("#"), thought("3+4=7\n#"), thought("3+")])) == pytest.approx(2 / 3)
    assert copy_rate(Rollouts([])) == 0.0
    assert group_stds(np.array([1.0, 3.0, 5.0, 5.0]), ["a", "a", "b", "b"]).tolist() == [1.0, 0.0]


def test_a_model_whose_thoughts_make_no_difference_is_refused() -> None:
    cold = plan(sampling={"temperature": 1e-4})  # all thoughts about a place are alike
    ctx = fresh(cold)
    rollouts = cold.recipe.rollout(ctx)
    with pytest.raises(UserError, match="make no difference"):
        list(cold.recipe.credit(ctx, rollouts))
    cold.recipe.state["begun"] = True
    assert len(list(cold.recipe.credit(ctx, rollouts))) == 1


# Runs.


def test_the_format_comes_first_and_the_slow_copy_starts_behind_it(tmp_path: Path) -> None:
    settings = SMALL | {
        "options": SMALL["options"] | {"format_turns": 2},
        "policies": {"generator": FAST},
        "eval": TINY["eval"] | {"every": 1},
    }
    milonga.run("rlp", turns=2, out=tmp_path / "run", settings=settings, quiet=True)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()
    assert [row["learner"] for row in rows[1:]] == ["predictor", "predictor", "generator", "generator"]
    assert [row["lead_turn"] for row in rows[1:]] == [0, 0, 1, 2]
    assert rows[1]["flow/demonstrations>generator"] == 1.0 and rows[3]["flow/text>generator"] == 1.0
    assert all(row["learn/generator/grad_norm"] > 0 for row in rows[1:])
    # Behind the format the average is far away; it then starts anew, and is one small step behind after the first turn.
    apart = [abs(row["eval/generator/ce_baseline"] - row["eval/generator/ce_plain"]) for row in rows]
    assert apart[2] > 10 * apart[3] > 0
    last = rows[-1]
    assert last["eval/generator/gain"] == pytest.approx(last["eval/generator/ce_baseline"] - last["eval/generator/ce_thought"])


@pytest.mark.parametrize(("mode", "kinds"), [("only", ["cross_entropy"]), ("also", ["policy_gradient", "cross_entropy"])])
def test_next_token_training_on_the_same_lines(mode: str, kinds: list[str]) -> None:
    p = plan(options={"next_token": mode})
    ctx = fresh(p)
    train_batches = list(p.recipe.credit(ctx, p.recipe.rollout(ctx)))
    assert [train_batch.loss.kind for train_batch in train_batches] == kinds
    lines = train_batches[-1].rollouts
    assert len(lines) == 4 and len({t.problem.id for t in lines}) == 4
    assert all(t.text == t.problem.data["line"] and text_of(t.ids[t.mask]).startswith(t.text) for t in lines)


def test_thinker_and_predictor_are_one_model() -> None:
    with pytest.raises(ConfigError, match="one model"):
        plan(binding="own")
    assert set(plan().agents.values()) == {"generator"} and isinstance(plan().recipe, Rlp)


def test_a_killed_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    config = SMALL | {
        "recipe": "rlp",
        "turns": 2,
        "policies": {"generator": FAST},
        "keep": {"checkpoint_every": 1, "rollouts_every": 1},
    }
    finish(tmp_path / "whole", config)
    die(tmp_path / "run", config, "learning", 3)  # in the second turn of thoughts: the average has moved, and is saved
    finish(tmp_path / "run", config)
    assert_same(tmp_path / "run", tmp_path / "whole")
    states = [json.loads(path.read_text())["recipe"] for path in (tmp_path / "run" / "checkpoints").rglob("run.json")]
    assert states and all(state == {"begun": True} for state in states)
