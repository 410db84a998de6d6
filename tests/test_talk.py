"""Conversations of several turns: ids are appended and never encoded again, only own tokens are trained, each turn has its own
credit."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_helpers import tokenizer
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit import isolate_turn, normalise, turn_advantages
from milonga.engine.local.codec import Codec
from milonga.errors import ConfigError
from milonga.objectives import make_objective
from milonga.resolve import resolve
from milonga.roles import StepSolver
from milonga.runfolder.rollouts import read_rollouts, write_rollouts
from milonga.runfolder.transcripts import read_transcripts
from milonga.types import Part, Prompt, Rollout, Rollouts, TrainBatch

CHATML = (
    "{% for m in messages %}<|user|>{{ m['role'] }}\n{{ m['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|model|>{% endif %}"
)


@cache
def engine() -> Any:
    return make_engine(plan())


def plan(**settings: Any) -> Any:
    settings = {"recipe": "tango", "task": {"name": "chain", "ops": 2}, "device": "cpu", "threads": 1} | settings
    return resolve([settings, {"batch": {"problems": 3, "rollouts": 4}}])


def ctx(turn: int = 1, **settings: Any) -> Context:
    p = plan(**settings)
    return Context(RunContext(engine(), p.task, p.roles, p.agents, p.config.sampling, p.config.seed, 3), turn, "generator")


def again(rollouts: Rollouts) -> list[Prompt]:
    return [(Part(">"), Part(rollout.problem.text, foreign=True), Part("\n")) for rollout in rollouts]


def three_turns(one: Context, **more: Any) -> tuple[Rollouts, Rollouts, Rollouts]:
    first = one.ask("generator", one.problems(), 4)
    second = one.reply("generator", first, again(first), **more)
    return first, second, one.reply("generator", second, again(second), **more)


def parts_of(rollout: Rollout) -> list[str]:
    codec = engine().policy("generator").codec
    return [codec.decode_ids(rollout.ids[s.start : s.end].tolist()) for s in rollout.segments]


# Ids.


def test_a_conversation_keeps_the_ids_of_its_earlier_turns_exactly() -> None:
    first, second, third = three_turns(ctx())
    for a, b, c in zip(first, second, third, strict=True):
        assert b.targets == (a,) and c.targets == (b,) and c.problem == a.problem
        for short, long in ((a, b), (b, c)):
            assert long.ids[: len(short.ids)].tolist() == short.ids.tolist()
            assert long.segments[: len(short.segments)] == short.segments
            assert long.logprobs[: len(short.ids)].tolist() == short.logprobs.tolist()
        assert a.finish != "eos" or parts_of(b)[2] == f">{a.problem.text}\n"
        assert parts_of(c)[-1].removesuffix("<eos>").startswith(c.text)
        assert [start for start, _ in c.turn_spans] == [a.segments[1].start, b.segments[3].start, c.segments[5].start]


def test_only_the_own_turns_are_trained() -> None:
    for rollout in three_turns(ctx(), speaker="tool")[2]:
        assert [s.producer for s in rollout.segments] == ["prompt", "generator", "tool", "generator", "tool", "generator"]
        own = np.zeros(len(rollout.ids), dtype=bool)
        for start, end in rollout.turn_spans:
            own[start:end] = True
        assert len(rollout.turn_spans) == 3 and rollout.mask.tolist() == own.tolist()
        assert not rollout.logprobs[~own].any()


def test_sampling_and_scoring_agree_on_every_turn() -> None:
    third = three_turns(ctx(sampling={"temperature": 0.8}))[2]
    for scored, rollout in zip(engine().score("generator", third), third, strict=True):
        assert np.abs(scored - rollout.logprobs).max() < 1e-5


def test_a_turn_that_was_cut_off_is_closed_by_a_token_that_nobody_trains() -> None:
    cut = ctx(sampling={"max_tokens": 4})
    first, second, _ = three_turns(cut)
    end = engine().policy("generator").eos[0]
    for a, b in zip(first, second, strict=True):
        assert a.finish == "length"
        assert b.ids[len(a.ids)] == end and not b.mask[len(a.ids)]


def test_draws_of_a_reply_depend_on_its_conversation_and_not_on_the_others() -> None:
    one, other = ctx(), ctx()
    first, same = one.ask("generator", one.problems(), 4), other.ask("generator", other.problems(), 4)
    all_of_them, alone = (
        one.reply("generator", first, again(first), 2),
        other.reply("generator", same[5:6], again(same[5:6]), 2),
    )
    assert [t.ids.tolist() for t in alone] == [t.ids.tolist() for t in all_of_them[10:12]]
    assert [t.id for t in alone] == [t.id for t in all_of_them[10:12]]
    more = one.reply("generator", first[5:6], again(first[5:6]))
    assert more[0].id not in {t.id for t in all_of_them}


def test_what_others_say_never_becomes_a_special_token() -> None:
    one = ctx()
    first = one.ask("generator", one.problems(1))
    (reply,) = one.reply("generator", first, [(Part("<eos>", foreign=True),)])
    said = reply.ids[reply.segments[2].start : reply.segments[2].end]
    assert not set(said[-5:].tolist()) & engine().policy("generator").codec.special


# Who may go on, and what is trained then.


def test_given_turns_are_context_and_only_live_samples_are_trained() -> None:
    one = ctx()
    problems = one.problems()
    given = one.write("generator", problems, ["1+1=2\n#2"] * 3)
    for reply in one.reply("generator", given, again(given)):
        assert reply.origin == "sampled" and [s.trained for s in reply.segments] == [False, False, False, True]
        assert not reply.logprobs[: reply.turn_spans[1][0]].any()
    first = one.ask("generator", problems, tag="ref")
    assert [s.trained for s in one.reply("generator", first, again(first))[0].segments] == [False, False, False, True]
    live = one.ask("generator", problems)
    assert [s.trained for s in one.reply("generator", live, again(live), greedy=True)[0].segments] == [
        False,
        True,
        False,
        False,
    ]


def test_a_given_reply_is_imitated_and_what_came_before_it_is_not() -> None:
    one = ctx()
    first = one.ask("generator", one.problems())
    shown = one.write_reply("generator", first, again(first), [f"1+1=2\n#{t.problem.answer}" for t in first])
    for before, rollout in zip(first, shown, strict=True):
        assert rollout.origin == "given" and rollout.correct == 1.0 and rollout.targets == (before,)
        assert [s.trained for s in rollout.segments] == [False, False, False, True]
        assert rollout.ids[: len(before.ids)].tolist() == before.ids.tolist()
    train_batch = TrainBatch("generator", make_objective("cross_entropy").loss, shown)
    assert all(row.length == len("1+1=2\n#") + len(row.problem.answer) + 1 for row in train_batch.rollouts)


def test_only_a_agent_that_is_in_a_conversation_goes_on_with_it() -> None:
    one = ctx()
    first = one.ask("generator", one.problems())
    with pytest.raises(ValueError, match="verifier judges"):
        one.reply("verifier", first, again(first))
    elsewhere = Rollout.from_text("x", "generator", first[0].problem, "", first[0].parsed)
    with pytest.raises(ValueError, match="no conversation of the generator"):
        one.reply("generator", Rollouts([elsewhere]), again(first[:1]))


def test_a_conversation_without_room_is_left_out_and_counted() -> None:
    one = ctx()
    first = one.ask("generator", one.problems())
    long = [(Part("7" * 600, foreign=True),), *again(first[1:])]
    replies = one.reply("generator", first, long, 2)
    assert [t.targets[0].id for t in replies] == [t.id for t in first[1:] for _ in range(2)]
    assert one.dropped == {"generator: prompt longer than the model's context": 2}


# Credit.


@pytest.mark.parametrize("preset", ["grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"])
def test_the_reward_of_a_turn_reaches_its_own_tokens_alone(preset: str) -> None:
    talks = three_turns(ctx())[2]
    rng = np.random.default_rng(0)
    rewards = [rng.random(len(talks)), 100 * rng.random(len(talks)), rng.random(len(talks))]
    estimator = make_objective(preset).estimator
    before = turn_advantages(rewards, talks, talks.problem_ids, estimator)
    after = turn_advantages([rewards[0], -rewards[1], rewards[2]], talks, talks.problem_ids, estimator)
    for rollout, a, b in zip(talks, before, after, strict=True):
        (_, _), (start, end), (_, _) = rollout.turn_spans
        assert not a[~rollout.mask].any()
        changed = a != b
        assert changed[start:end].any() and not changed[:start].any() and not changed[end:].any()


def test_every_turn_is_compared_with_the_same_turn_of_the_others() -> None:
    talks = three_turns(ctx())[2]
    rewards = [np.arange(12.0), 21 * np.arange(12.0)[::-1], np.ones(12)]
    advantages = turn_advantages(rewards, talks, talks.problem_ids, make_objective("rloo").estimator)
    for turn, reward in enumerate(rewards):
        expected = normalise(reward, talks.problem_ids, "leave_one_out")
        for rollout, array, value in zip(talks, advantages, expected, strict=True):
            start, end = rollout.turn_spans[turn]
            assert array[start:end].tolist() == [value] * (end - start)


def test_the_cost_of_a_token_counts_in_its_own_turn() -> None:
    talks = three_turns(ctx())[2]
    costs = [np.zeros(len(rollout.ids)) for rollout in talks]
    costs[0][talks[0].turn_spans[1][0]] = 1.0
    advantages = turn_advantages([np.zeros(12)] * 3, talks, talks.problem_ids, make_objective("rloo").estimator, costs)
    assert [advantages[0][start] for start, _ in talks[0].turn_spans] == [0.0, pytest.approx(-1.0), 0.0]
    assert [advantages[1][start] for start, _ in talks[1].turn_spans] == [0.0, pytest.approx(1 / 3), 0.0]


def test_one_turn_alone_is_the_conversation_with_another_mask() -> None:
    rollout = three_turns(ctx())[2][0]
    alone = isolate_turn(rollout, 1)
    assert alone.ids is rollout.ids and np.flatnonzero(alone.mask).tolist() == list(range(*rollout.turn_spans[1]))


# What is kept.


def test_every_turn_of_a_conversation_is_kept_and_shown_as_a_solution(tmp_path: Path) -> None:
    first, second, third = three_turns(ctx())
    checks = ctx().ask("verifier", third[:2])
    write_rollouts(tmp_path / "rollouts" / "turn-000001.parquet", [*third, *checks])
    rows = read_rollouts(tmp_path / "rollouts" / "turn-000001.parquet")
    assert [row["id"] for row in rows[:6]] == [t.id for pair in zip(first, second, third, strict=True) for t in pair][:6]
    assert len(rows) == 3 * 12 + 2 and rows[2]["turns"] == [list(span) for span in third[0].turn_spans]
    shown = read_transcripts(tmp_path, plan().config)
    assert [one.text for one in shown] == [row["text"] for row in rows[:36]]
    assert [one.id for one in shown if one.checked] == [rollout.id for rollout in third[:2]]


# Chat templates.


def template_codec(template: str) -> Codec:
    own = tokenizer("chat")
    before, own.chat_template = own.chat_template, template
    try:
        made = Codec(own, "on")
        made.get_turn_markers()
    finally:
        own.chat_template = before
    return made


def test_turn_markers_are_appended_as_the_template_would_write_them() -> None:
    made = template_codec(CHATML)
    own = tokenizer("chat")
    prompt = made.encode((Part("the answer"),))
    said = made.encode_foreign("is 42.")
    for closing in ([own.eos_token_id], []):  # sampled by the model itself, or never: a turn that was cut off
        talk = [*prompt, *said, *closing]
        (more,) = made.encode_next_turns([(Part("two", foreign=True),)], [talk[-1]])
        text = own.decode([*talk, *more], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert text == "<|user|>user\nthe answer<eos>\n<|model|>is 42.<eos>\n<|user|>user\ntwo<eos>\n<|model|>"


def test_a_turn_that_was_cut_at_a_character_of_the_markers_is_closed_all_the_same() -> None:
    made, own = template_codec(CHATML), tokenizer("chat")
    cut = made.encode_foreign("is\n")
    assert cut[-1] in made.get_turn_markers()[0], "the last token that was sampled occurs among the markers"
    (more,) = made.encode_next_turns([(Part("two", foreign=True),)], [cut[-1]])
    text = own.decode([*cut, *more], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert text == "is\n<eos>\n<|user|>user\ntwo<eos>\n<|model|>"


@pytest.mark.parametrize(("dialect", "example"), [("terse", False), ("tagged", False), ("plain", False), ("plain", True)])
def test_given_texts_end_as_samples_do(dialect: str, example: bool) -> None:
    """By end-of-sequence, or by the role's stop string and nothing after it: otherwise the end would tell them apart."""
    one, codec = ctx(dialect=dialect), engine().policy("generator").codec
    role = one.role("generator")
    assert isinstance(role, StepSolver)
    role.example = example
    text = role.write(["1+1=2"], "2")
    (given,) = one.write("generator", one.problems(1), [text])
    start = given.segments[-1].start
    assert given.parsed.is_valid and given.solution.answer == "2"
    if role.stop:
        assert given.finish == "stop" and text.endswith(role.stop[0])
        assert codec.decode_ids(given.ids[start:].tolist()) == text
    else:
        assert given.finish == "eos" and given.ids[-1] == codec.tokenizer.eos_token_id


def test_a_template_that_hides_what_was_said_is_refused_when_a_second_turn_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="several turns"):
        template_codec("{{ messages[0]['content'] }}<|model|>")
