"""TTRL and one-example RLVR: votes, what they are worth, copies of one problem, and a truth that nobody who learns may see."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import FAST, TINY
from engine_helpers import model_folder
from hidden import learned, others_truth, same_after_a_cut
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit import normalise
from milonga.credit.votes import (
    Vote,
    agreement_rewards,
    keep_first_samples,
    leave_one_out_rewards,
    majority_vote,
)
from milonga.errors import ConfigError, DataError
from milonga.randomness import keyed_rng
from milonga.resolve import Plan, resolve
from milonga.tasks import make_task
from milonga.tasks.data import DataTask
from milonga.types import Parsed, Problem, Rollout, Rollouts, Solution

torch.set_num_threads(1)
answers_of = st.lists(st.none() | st.integers(0, 4), min_size=1, max_size=12)


# Votes.


def test_a_vote_by_hand() -> None:
    assert majority_vote([0, 1, 1, None], random.Random(0)) == Vote(1, 0.5)  # who gave no answer counts in the share alone
    assert majority_vote([None, None], random.Random(0)) == Vote(None, 0.0)
    assert agreement_rewards([0, 1, 1, None], 1) == [0.0, 1.0, 1.0, 0.0]
    assert agreement_rewards([None, None], None) == [0.0, 0.0]  # the trap: nobody answered, and nobody is paid for that


def test_a_tie_is_broken_at_random_and_not_by_who_came_first() -> None:
    winners = [majority_vote([0, 1], random.Random(seed)).winner for seed in range(200)]
    assert 60 < sum(winner == 0 for winner in winners) < 140


def test_nobody_votes_for_himself() -> None:
    # Two votes for 0 and two for 1: without its own vote, every sample is in the minority.
    assert leave_one_out_rewards([0, 0, 1, 1], random.Random(0)) == [0.0] * 4
    assert leave_one_out_rewards([0, 0, 0, 1], random.Random(0)) == [1.0, 1.0, 1.0, 0.0]
    assert leave_one_out_rewards([0], random.Random(0)) == [0.0]


@given(answers_of, st.integers(0, 9))
def test_what_wins_is_given_most_often_and_order_does_not_matter(answers: list[int | None], seed: int) -> None:
    found = majority_vote(answers, random.Random(seed))
    counts = [answers.count(a) for a in set(answers) if a is not None]
    assert found.share == max(counts, default=0) / len(answers)
    assert sum(agreement_rewards(answers, found.winner)) == pytest.approx(found.share * len(answers))
    assert majority_vote(answers[::-1], random.Random(seed)) == found


@given(st.lists(st.integers(0, 4), min_size=2, max_size=20), st.integers(0, 4))
def test_a_wrong_majority_still_pays_most_samples_rightly(answers: list[int], truth: int) -> None:
    """The closed form of the paper: all but those that gave the winner and those that are right."""
    found = majority_vote(answers, random.Random(0))
    if found.winner == truth:
        return
    told = agreement_rewards(answers, found.winner)
    hits = np.mean([reward == float(answer == truth) for answer, reward in zip(answers, told, strict=True)])
    assert hits == pytest.approx(1.0 - found.share - answers.count(truth) / len(answers))


def tabular(start: list[float], seed: int, steps: int = 200, votes: int = 64, trained: int = 32) -> float:
    """The share of answer 0 after training a context of answers by its own majority."""
    rng, tie = np.random.default_rng(seed), random.Random(seed)
    logits = np.log(np.array(start))
    for _ in range(steps):
        chances = np.exp(logits) / np.exp(logits).sum()
        drawn = [int(answer) for answer in rng.choice(len(start), size=votes, p=chances / chances.sum())]
        rewards = agreement_rewards(drawn, majority_vote(drawn, tie).winner)[:trained]
        if len(set(rewards)) == 1:
            continue
        for answer, advantage in zip(drawn, normalise(rewards, ["one"] * trained), strict=False):
            logits = logits + 0.5 * advantage / trained * ((np.arange(len(start)) == answer) - chances)
    return float(np.exp(logits[0]) / np.exp(logits).sum())


def test_scattered_errors_are_voted_down_and_a_systematic_one_is_amplified() -> None:
    scattered = [tabular([0.30, *[0.05] * 14], seed) for seed in range(40)]
    assert np.mean([share > 0.9 for share in scattered]) >= 0.95
    systematic = [tabular([0.30, 0.50, *[0.02] * 10], seed) for seed in range(40)]
    assert np.mean([share > 0.5 for share in systematic]) <= 0.15


# Which answers are the same.


def test_answers_are_told_apart_by_text_or_by_the_grader() -> None:
    assert make_task({"name": "chain"}).group_equal_answers(["7", None, "8", " 7"]) == [0, None, 1, 0]

    class Halves:
        """Equal as numbers; what is no number cannot be compared."""

        def compare_answers(self, pairs: Any) -> list[bool | None]:
            def number(text: str) -> float:
                above, _, below = text.partition("/")
                return float(above) / float(below or 1)

            return [None if "?" in a + b else number(a) == number(b) for a, b in pairs]

    task: Any = object.__new__(type("Halved", (DataTask,), {"load": lambda self: {}}))
    task.grader = Halves()
    assert task.group_equal_answers(["1/2", "3", None, "0.5", "?", "6/2", "2/4"]) == [0, 1, None, 0, 2, 1, 0]


# The recipe.


def test_the_warm_up_of_the_paper_is_a_share_of_the_run(tmp_path: Path) -> None:
    """3 % of all updates: 625 turns of eight."""
    p = resolve([{"recipe": "ttrl", "published": True, "policies": {"generator": {"model": model_folder(tmp_path)}}}])
    section = p.policies["generator"]
    assert section.warmup_steps == 0.03 * p.config.turns * section.minibatches == 150


def plan(settings: dict[str, Any] | None = None, **options: Any) -> Plan:
    return resolve([{"recipe": "ttrl", "options": options}, TINY, {"policies": {"generator": FAST}}, settings or {}])


def ctx(p: Plan) -> Context:
    run_context = RunContext(make_engine(p), p.task, p.roles, p.agents, p.config.sampling, 0, p.config.batch.problems)
    return Context(run_context, 1, "generator")


def said(answers: list[str | None], problem: str = "p") -> Rollouts:
    ids = np.arange(3)
    return Rollouts(
        Rollout(
            f"{problem}/{number}", "generator", Problem(problem, "1+2%100", "3"), ids, (), np.zeros(3), "",
            Parsed(Solution((), (), answer), 1.0, None if answer is not None else "no answer line"),
        )
        for number, answer in enumerate(answers)
    )  # fmt: skip


def rewards(rollouts: Rollouts, **options: Any) -> list[float]:
    p = plan(**options)
    at: Any = SimpleNamespace(task=p.task, rng=lambda what, *key: keyed_rng(what, 0, 1, *key))
    found: list[float] = p.recipe.compute_rewards(at, rollouts)[0].tolist()  # type: ignore[attr-defined]
    return found


def test_rewards_follow_the_label() -> None:
    some = said(["3", "5", "5", None])
    assert rewards(some) == [0.0, 1.0, 1.0, 0.0]
    assert rewards(said(["5", "5", "5", "3"]), leave_one_out_vote=True) == [1.0, 1.0, 1.0, 0.0]
    assert rewards(said(["5", "5", "3", "3"]), leave_one_out_vote=True) == [0.0] * 4
    assert rewards(some, min_majority=0.5) == [0.0, 1.0, 1.0, 0.0]
    assert np.isnan(rewards(some, min_majority=0.6)).all()
    assert rewards(some, label="format") == [1.0, 1.0, 1.0, 0.0]
    assert rewards(some, label="random") in ([1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0])
    assert rewards(said([None, None])) == rewards(said([None, None]), label="random") == [0.0, 0.0]


def test_the_first_samples_of_each_problem_learn_and_all_vote() -> None:
    both = Rollouts([*said(["1"] * 4, "p"), *said(["2"] * 4, "q")])
    assert [t.id for t in keep_first_samples(both, 2)] == ["p/0", "p/1", "q/0", "q/1"]
    p = plan(votes=6)
    at = ctx(p)
    rollouts = p.recipe.rollout(at)
    assert len(rollouts) == 4 * 6
    (train_batch,) = list(p.recipe.credit(at, rollouts))
    assert len(train_batch.rollouts) == 4 * 4 and train_batch.sources == {"generator": 1.0}
    with pytest.raises(ConfigError, match=r"less than batch\.rollouts"):
        plan(votes=3)


def test_one_example_fills_the_turn_and_each_copy_is_its_own_group() -> None:
    p = plan(examples=1, label="truth")
    at = ctx(p)
    rollouts = p.recipe.rollout(at)
    assert len({t.problem.text for t in rollouts}) == 1 and len(set(rollouts.problem_ids)) == 4 and at.drawn == 0
    (train_batch,) = list(p.recipe.credit(at, rollouts))
    assert train_batch.sources == {"answers": 1.0} and p.recipe.state == {"examples": [0]}
    for rows in (range(0, 4), range(4, 8)):
        values = [train_batch.advantages[r][train_batch.rollouts[r].mask][0] for r in rows]  # type: ignore[index]
        assert sum(values) == pytest.approx(0, abs=1e-9)


def test_the_example_is_the_one_that_divides_most() -> None:
    p = plan(examples=2, label="truth", select="mid_accuracy", candidates=6)
    at = ctx(p)
    p.recipe.rollout(at)
    chosen = p.recipe.state["examples"]
    shares = []
    for index in range(6):
        fresh = ctx(p)  # the same keys draw the same samples again
        shares.append(float(fresh.ask("generator", [p.task.problem("train", index)], 8).correct.mean()))
    distance = sorted(range(6), key=lambda index: abs(shares[index] - 0.5))
    assert chosen == sorted(distance[:2])


@pytest.mark.filterwarnings("error")
def test_examples_without_any_label_are_chosen_last() -> None:
    p = plan(examples=2, select="mid_accuracy", candidates=3, min_majority=1.0)
    p.recipe.rollout(ctx(p))
    assert len(p.recipe.state["examples"]) == 2


def test_a_test_set_is_learned_on_with_held_out_questions_of_another_file(tmp_path: Path) -> None:
    """And who asks for more questions than there are is told how."""
    pytest.importorskip("math_verify", reason="answers are graded by math-verify, which is not installed")
    ours, others = (tmp_path / name for name in ("test.jsonl", "others.jsonl"))
    for path, first in ((ours, 0), (others, 100)):
        path.write_text("\n".join(f'{{"question": "What is {n} + 1?", "answer": "{n + 1}"}}' for n in range(first, first + 20)))

    def load(**task: Any) -> Plan:
        generator = {"model": model_folder(tmp_path, kind="chat")}
        task = {"name": "jsonl", "path": str(ours), **task}
        return resolve([{"recipe": "ttrl", "task": task, "policies": {"generator": generator}, "options": {"examples": 20}}])

    with pytest.raises(ConfigError, match=r"has 12 problems to learn from.*task.dev_path=OTHER and task.test=0"):
        load()
    with pytest.raises(DataError, match=r"nothing is left to train on.*give others as task.dev_path, and task.test=0"):
        load(dev_path=str(ours))
    found = load(dev_path=str(others), test=0)
    assert found.task.size("train") == found.task.size("dev") == 20


def test_dynamic_sampling_looks_at_the_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    p = plan({"policies": {"generator": {"objective": {"preset": "dapo"}}}})
    at = ctx(p)
    rollouts = p.recipe.rollout(at)
    found, _ = p.recipe.compute_rewards(at, rollouts)  # type: ignore[attr-defined]
    for problem in dict.fromkeys(rollouts.problem_ids):
        assert len({r for r, t in zip(found, rollouts, strict=True) if t.problem.id == problem}) == 2


# The hidden truth.


@pytest.mark.parametrize(("label", "same"), [("majority", True), ("random", True), ("truth", False)])
def test_the_weights_know_nothing_of_a_truth_that_is_hidden(
    label: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TINY | {"options": {"label": label}, "policies": {"generator": FAST}}
    true = learned("ttrl", 2, settings, tmp_path / "true")
    others_truth(monkeypatch)
    assert (learned("ttrl", 2, settings, tmp_path / "other") == true) == same


def test_a_run_goes_on_in_the_same_bits_with_the_example_it_chose(tmp_path: Path) -> None:
    options = {"examples": 1, "select": "mid_accuracy", "candidates": 4}
    assert same_after_a_cut("ttrl", 3, TINY | {"options": options, "policies": {"generator": FAST}}, tmp_path / "run")
