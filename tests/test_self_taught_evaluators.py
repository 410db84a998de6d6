"""Self-Taught Evaluators: one parser, labels by construction, both orders, balance, restarts from the seed, and what loses."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import TINY
from helpers import GRAMMARS, PROPERTY, make_rollout
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit import downsample_to_balance, filter_right_rows
from milonga.engine.local import LocalEngine
from milonga.errors import ConfigError
from milonga.resolve import Plan, resolve
from milonga.roles import Dialect
from milonga.schedule import Cursor
from milonga.systems.self_taught_evaluators.duels import (
    Built,
    build_pairs,
    classify_judgement,
    compute_duel_metrics,
    duel_both_orders,
    majority_verdict,
    pair_sampled_solutions,
)
from milonga.systems.self_taught_evaluators.judgements import cap_unreadable, compute_pool_metrics
from milonga.systems.self_taught_evaluators.recipe import COLLECT, PREFER, SEED, TRAIN, SelfTaughtEvaluators
from milonga.systems.self_taught_evaluators.roles import PairJudge
from milonga.tasks import make_task
from milonga.tasks.base import assign_split
from milonga.tasks.corruption import garble_text
from milonga.types import Parsed, Rollout, Rollouts
from short import assert_resumes, short_loop

JUDGE = "self_taught_evaluators"


@cache
def engine() -> Any:
    made = make_engine(plan())
    made.snapshot("judge", PREFER)
    return made


def plan(**options: Any) -> Plan:
    return resolve([TINY, {"recipe": JUDGE, "options": options}])


def ctx(p: Plan, phase: str = COLLECT, turn: int = 1) -> Context:
    return Context(RunContext(engine(), p.task, p.roles, p.agents, p.config.sampling, 0, 4), turn, "judge", phase)


def said(duel: Rollout, verdict: str | None, number: int = 0) -> Rollout:
    """A judgement that somebody else gave."""
    text = {"A": "=+", "B": "=-", "tie": "=?", None: ""}[verdict]
    made = Rollout.from_text(f"{duel.id}/{number}", "judge", duel.problem, text, PairJudge("terse").parse(text))
    made.targets = (duel,)
    return made


def duels(count: int = 2) -> Rollouts:
    pairs = [
        Built(make_rollout(1, 2, id=f"g{n}", correct=True), make_rollout(1, 2, id=f"b{n}", correct=False)) for n in range(count)
    ]
    return duel_both_orders(pairs)


# The parser.


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("[A]", "A"),
        ("At first [A], but no.\n[B]", "B"),
        ("[B] and then more words", "B"),
        ("[C]", "tie"),
        ("[D]", None),
        ("[A] or [X]", None),
        ("A is better", None),
        ("[a]", None),
        ("", None),
    ],
)
def test_the_last_bracket_is_the_verdict(text: str, verdict: str | None) -> None:
    parsed = PairJudge("tagged").parse(text)
    assert parsed.value.verdict == verdict and parsed.is_valid == (verdict is not None)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("7+\n=+", "A"), ("7+\n8-\n=-", "B"), ("=?", "tie"), ("7+\n", None), ("=+\n7+", None), ("7=+", None), ("=+=-", None)],
)
def test_the_last_line_is_the_terse_verdict(text: str, verdict: str | None) -> None:
    assert PairJudge("terse").parse(text).value.verdict == verdict


@pytest.mark.parametrize("dialect", GRAMMARS)
@pytest.mark.parametrize("verdict", ["A", "B"])
def test_a_written_judgement_reads_back(dialect: Dialect, verdict: Any) -> None:
    judge = PairJudge(dialect)
    text = judge.write([[("7", True), ("12", False)], [("7", True), ("12", True)]], verdict)
    assert judge.parse(text).value.verdict == verdict


@pytest.mark.parametrize("dialect", GRAMMARS)
def test_a_judge_sees_both_solutions_in_their_order_and_not_which_is_better(dialect: Dialect) -> None:
    judge = PairJudge(dialect)
    good, bad = make_rollout(1, 3, correct=True), make_rollout(1, 5, correct=False)
    good.text, bad.text = "GOOD", "BAD"
    prompts = ["".join(part.text for part in judge.prompt(d.problem, d)) for d in duel_both_orders([Built(good, bad)])]
    assert prompts[0].index("GOOD") < prompts[0].index("BAD") and prompts[1].index("BAD") < prompts[1].index("GOOD")
    assert prompts[0].replace("GOOD", "x").replace("BAD", "x") == prompts[1].replace("GOOD", "x").replace("BAD", "x")
    with pytest.raises(ValueError, match="two solutions"):
        judge.prompt(good.problem, None)


def test_the_seed_has_the_bias_and_the_noise_that_were_asked_for() -> None:
    task, judge, rng = make_task({"name": "chain", "ops": 2}), PairJudge("terse", 0.2, 0.6), random.Random(0)
    firsts, wrong = 0, 0
    for problem in task.draw_problems("train", 0, 400):
        target, text = judge.demonstrate(task, problem, rng)
        assert target is not None
        better = target.parsed.value.better
        firsts += better == "A"
        wrong += judge.parse(text).value.verdict != better
        assert text.count("\n") == 4 and [t.correct for t in target.targets].count(1.0) >= 1
    assert 0.53 < firsts / 400 < 0.67 and 0.14 < wrong / 400 < 0.26


# Construction.


@pytest.mark.parametrize("task", [{"name": "chain", "ops": 3}, {"name": "last_letter"}])
def test_a_related_problem_asks_something_else_in_the_same_split(task: dict[str, Any]) -> None:
    made, rng = make_task(task), random.Random(1)
    for split in ("train", "dev"):
        for problem in made.draw_problems(split, 0, 30):  # type: ignore[arg-type]
            other = made.make_related_problem(problem, rng)
            assert other is not None and other.text != problem.text and (split != "train" or assign_split(other.text) == split)
            assert len(other.text.split()) == len(problem.text.split())
            shown = made.demonstrate(other, rng)
            assert made.grade(other, shown.answer, shown.steps).is_sound


def test_one_operation_or_operand_of_a_chain_is_changed_or_as_many_as_were_asked_for() -> None:
    task, rng = make_task({"name": "chain", "ops": 3}), random.Random(0)
    for problem in task.draw_problems("train", 0, 20):
        for changes, expected in ((1, 1), (2, 2), (9, 3)):
            other = task.make_related_problem(problem, rng, changes)
            assert other is not None
            both = zip(problem.data["chain"], other.data["chain"], strict=True)
            assert sum(a != b for a, b in both) == expected
            assert all(a[0] == b[0] or a[1] == b[1] for a, b in zip(problem.data["chain"], other.data["chain"], strict=True))


@pytest.mark.parametrize("answers", ["written", "sampled"])
@pytest.mark.parametrize("negatives", ["modified", "digits"])
def test_the_label_comes_from_the_construction(answers: Any, negatives: Any) -> None:
    p = plan()
    one = ctx(p)
    pairs = build_pairs(one, one.problems(8), answers, negatives, 1)
    assert len(pairs) == 8 and all(pair.good.problem is pair.bad.problem for pair in pairs)
    assert all(pair.good.text != pair.bad.text for pair in pairs) or answers == "sampled"
    if answers == "written":
        assert all(pair.good.correct == 1.0 for pair in pairs)
    if (answers, negatives) == ("written", "modified"):
        assert sum(pair.construction_failed for pair in pairs) <= 1  # modulo 100 another operand may lead to the same answer


def test_a_construction_that_failed_is_counted_and_left_out() -> None:
    right, wrong = make_rollout(1, 1, correct=True), make_rollout(1, 1, correct=False)
    assert not Built(right, wrong).construction_failed
    assert all(Built(*sides).construction_failed for sides in ((right, right), (wrong, wrong), (wrong, right)))
    for checked in (True, False):
        p = plan(answers="sampled", checked=checked)
        rollouts = p.recipe.rollout(ctx(p))
        errors = p.recipe.state["construction_errors"]
        assert 0 < errors < 1 and len(rollouts) == (4 * (1 - errors) if checked else 4) * 2 * 4


def test_a_garbled_text_differs_in_one_sign_of_the_same_kind() -> None:
    for seed in range(30):
        made = garble_text("37+5=42\n#42", random.Random(seed))
        apart = [(a, b) for a, b in zip("37+5=42\n#42", made, strict=True) if a != b]
        assert len(apart) == 1 and apart[0][0].isdigit() and apart[0][1].isdigit()
    assert garble_text("+\n", random.Random(0)) == "+\n"


# The filter.


def test_what_is_right_is_kept_where_enough_of_its_input_is() -> None:
    right, groups = [True, True, False, True, False, False], ["a", "a", "a", "b", "b", "b"]
    assert filter_right_rows(right, groups) == right
    assert filter_right_rows(right, groups, 0.5) == [True, True, False, False, False, False]


@PROPERTY
@given(st.lists(st.tuples(st.booleans(), st.sampled_from("AB")), max_size=30), st.integers(0, 9))
def test_balance_keeps_equally_many_of_both_places(rows: list[tuple[bool, str]], seed: int) -> None:
    kept, places = [keep for keep, _ in rows], [place for _, place in rows]
    found = downsample_to_balance(kept, places, random.Random(seed))
    counts = [sum(f and p == place for f, p in zip(found, places, strict=True)) for place in set(places)]
    wanted = [sum(k and p == place for k, p in zip(kept, places, strict=True)) for place in set(places)]
    assert counts == [min(wanted, default=0)] * len(wanted)
    assert all(k or not f for f, k in zip(found, kept, strict=True))


def test_a_biased_judge_is_balanced_only_where_that_is_asked_for() -> None:
    shown = duels(6)
    # Right on every duel whose better solution is first, and on one of the others.
    judged = Rollouts(said(d, "A" if number != 1 else "B") for number, d in enumerate(shown))
    for balance, expected in ((True, [1, 1]), (False, [6, 1])):
        recipe = plan(balance=balance).recipe
        assert isinstance(recipe, SelfTaughtEvaluators)
        recipe.collect(ctx(plan()), judged)
        kept = [one["better"] for one in recipe.state["pool"] if one["keep"]]
        assert [kept.count(place) for place in "AB"] == expected


def test_each_iteration_has_a_pool_of_its_own_unless_all_are_kept() -> None:
    for accumulate, sizes in ((False, [4, 8, 4]), (True, [4, 8, 12])):
        recipe = plan(accumulate=accumulate).recipe
        assert isinstance(recipe, SelfTaughtEvaluators)
        found = []
        for turn, iteration in ((1, 0), (2, 0), (9, 1)):
            one = ctx(plan(), turn=turn)
            one.round = iteration
            recipe.collect(one, Rollouts(said(d, "A") for d in duels(2)))
            found.append(len(recipe.state["pool"]))
        assert found == sizes


def test_only_what_was_kept_weighs_in_the_train_batch() -> None:
    p = plan(rows=64)
    recipe = p.recipe
    assert isinstance(recipe, SelfTaughtEvaluators)
    one = ctx(p)
    target = duel_both_orders(build_pairs(one, one.problems(4), "written", "modified", 1))
    texts = ["=+" if d.parsed.value.better == "A" else ("=-" if n % 4 else "=?") for n, d in enumerate(target)]
    recipe.state["construction_errors"] = 0.0
    recipe.collect(one, one.write("judge", target, texts))
    (train_batch,) = recipe.credit(ctx(p, TRAIN), Rollouts([]))
    assert (
        train_batch.loss.kind == "cross_entropy"
        and train_batch.sources == {"construction": 1.0}
        and train_batch.weights is not None
    )
    pool = recipe.state["pool"]
    assert [weight > 0 for weight in train_batch.weights] == [row["keep"] for row in pool]
    assert [t.problem.text for t in train_batch.rollouts] == [row["question"] for row in pool]
    assert all(
        t.text == row["text"] and t.ids.tolist() == list(row["ids"]) for t, row in zip(train_batch.rollouts, pool, strict=True)
    )
    assert train_batch.notes["right"] + train_batch.notes["tie"] == 1.0 and train_batch.notes["wrong"] == 0.0
    recipe.state["pool"] = [{**row, "keep": False} for row in pool]
    assert recipe.credit(ctx(p, TRAIN), Rollouts([])) == []


# The metric.


def test_a_judge_that_always_says_a_is_half_right_and_never_consistent() -> None:
    found = compute_duel_metrics(Rollouts(said(d, "A") for d in duels(5)))
    assert found == {"pair_accuracy": 0.5, "consistency": 0.0, "first_rate": 1.0, "unreadable": 0.0}


def test_figures_of_both_orders_by_hand() -> None:
    a, b, c, d = duels(2)  # two pairs: the better one is first in a and c, second in b and d
    right = Rollouts([said(a, "A"), said(b, "B"), said(c, "A"), said(d, "B")])
    assert compute_duel_metrics(right) == {"pair_accuracy": 1.0, "consistency": 1.0, "first_rate": 0.5, "unreadable": 0.0}
    wrong = Rollouts([said(a, "B"), said(b, "A"), said(c, None), said(d, "tie")])
    assert compute_duel_metrics(wrong) == {"pair_accuracy": 0.0, "consistency": 0.5, "first_rate": 0.5, "unreadable": 0.25}
    voted = [said(a, "A", 0), said(a, "A", 1), said(a, "B", 2), said(b, "B", 0), said(b, None, 1), said(b, "A", 2)]
    assert compute_duel_metrics(Rollouts(voted))["pair_accuracy"] == 0.5  # the second vote is divided
    assert compute_duel_metrics(Rollouts([]))["pair_accuracy"] is None


def test_majorities() -> None:
    assert majority_verdict(["A", "B", "A", None]) == "A" and majority_verdict([None, None]) is None
    assert majority_verdict(["A", "B", None]) == "tie" and majority_verdict(["tie", "tie", "A"]) == "tie"


def test_real_pairs_are_of_one_right_and_one_wrong_sample() -> None:
    rights = [("p", True), ("p", True), ("p", False), ("q", True), ("r", False), ("s", None)]
    solutions = Rollouts(make_rollout(1, 1, problem=name, correct=c, id=f"{name}{n}") for n, (name, c) in enumerate(rights))
    (pair,) = pair_sampled_solutions(solutions)
    assert (pair.good.id, pair.bad.id) == ("p0", "p2")


# Restarts and the final stage.


def test_every_iteration_begins_from_the_seed() -> None:
    schedule = plan(seed_turns=2, iters=2).recipe.schedule()
    assert [p.name for p in schedule.intro] == [SEED, COLLECT, TRAIN, COLLECT, TRAIN, PREFER]
    entered = [[(a.kind, a.source) for a in p.enter] for p in schedule.intro]
    assert entered == [[], [("snapshot", SEED)], [("reset", SEED)], [], [("reset", SEED)], [("snapshot", PREFER)]]
    assert [p.name for p in schedule.cycle] == [PREFER] and not schedule.cycle[0].enter
    going_on = plan(restart="continue").recipe.schedule()
    assert not any(a.kind == "reset" for phase in going_on.intro for a in phase.enter)


def test_a_training_phase_starts_from_the_weights_of_the_seed(tmp_path: Path) -> None:
    with short_loop(JUDGE, tmp_path / "run") as loop:
        loop.run_turn()
        assert isinstance(loop.engine, LocalEngine)
        policy = loop.engine.policy("judge")
        seeded = policy.clone()
        for _ in range(2):
            loop.run_turn()
        moved = policy.clone()
        assert any(not torch.equal(a, b) for a, b in zip(moved, seeded, strict=True)), "it has learned in between"
        loop.enter_phase(loop.schedule.intro[2], Cursor(2, 0))
        assert all(torch.equal(a, b) for a, b in zip(policy.clone(), seeded, strict=True))


def test_right_judgements_win_against_others_of_the_same_input_and_order() -> None:
    p = plan(max_pairs=2, max_unreadable=1.0)
    one = ctx(p, PREFER)
    target = duel_both_orders(build_pairs(one, one.problems(2), "written", "modified", 1))
    texts = {"A": ["=+", "1+\n=+", "=-", "=?", "7+"], "B": ["=+", "=+", "=?", "", "7"]}
    rows = [(d, text) for d in target for text in texts[d.parsed.value.better]]
    rollouts = one.write("judge", [d for d, _ in rows], [text for _, text in rows])
    (train_batch,) = p.recipe.credit(one, rollouts)
    assert train_batch.loss.kind == "dpo" and train_batch.loss.nll_coef == 1.5 and train_batch.loss.kl_from == PREFER
    pairs = list(zip(train_batch.rollouts[::2], train_batch.rollouts[1::2], strict=True))
    assert len(pairs) == 4, "two of each input in which anything is right"
    for winner, loser in pairs:
        assert (
            winner.target.id == loser.target.id
            and classify_judgement(winner) == "right"
            and classify_judgement(loser) != "right"
        )
    assert {kept.reason for kept in one.preferences.kept} <= {f"right against {why}" for why in ("wrong", "tie", "unreadable")}
    assert sum(value for key, value in train_batch.notes.items() if key.startswith("rejected")) == pytest.approx(1.0)


def test_losers_without_a_verdict_are_capped() -> None:
    rollout = make_rollout(1, 1)
    pairs = [(f"right against {why}", rollout, rollout) for why in ["wrong"] * 8 + ["unreadable"] * 9]
    assert [reason for reason, _, _ in cap_unreadable(pairs, 0.2)].count("right against unreadable") == 2
    assert (
        len(cap_unreadable(pairs, 0.0)) == 8 and len(cap_unreadable(pairs, 1.0)) == 17 and cap_unreadable(pairs[8:], 0.2) == []
    )


def test_inputs_that_are_never_judged_rightly_are_lost_and_counted() -> None:
    rows = [("x", "right"), ("x", "wrong"), ("y", "tie"), ("y", "unreadable")]
    pool = [{"input": target, "cause": why, "keep": why == "right", "better": "A"} for target, why in rows]
    found = compute_pool_metrics(pool)
    assert found["lost_inputs"] == 0.5 and found["right_first"] == 1.0
    assert [found[key] for key in ("right", "wrong", "tie", "unreadable", "kept")] == [0.25] * 5


def test_a_task_that_cannot_change_its_problems_is_refused(tmp_path: Path) -> None:
    bare = tmp_path / "bare.jsonl"
    bare.write_text("".join(f'{{"question": "{n} and {n}?", "answer": "{2 * n}"}}\n' for n in range(40)))
    task = {"name": "jsonl", "path": str(bare)}
    with pytest.raises(ConfigError, match="changes what problems ask"):
        resolve([TINY, {"recipe": JUDGE, "task": task, "options": {"seed_turns": 0, "answers": "sampled"}}])


def test_a_run_that_was_cut_between_collecting_and_training_ends_in_the_same_bits(tmp_path: Path) -> None:
    assert_resumes(JUDGE, tmp_path, after=2)


def test_a_judgement_that_cannot_be_read_says_why() -> None:
    parsed: Parsed = PairJudge("terse").parse("7+\n8")
    assert not parsed.is_valid and parsed.invalid == "no verdict at the end" and parsed.value.verdict is None
