"""Tango without ground truth: labels by votes, consistency, collusion by hand, the remedies, and a truth that stays hidden."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import FAST, TINY
from hidden import learned, others_truth, same_after_a_cut
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit.votes import verdict_consistency
from milonga.errors import ConfigError
from milonga.patterns.voting import collusion_metrics, mean_final_verdicts, mean_step_verdicts, tally_votes
from milonga.randomness import keyed_rng
from milonga.resolve import Plan, resolve
from milonga.types import Grade, Parsed, Problem, Rollout, Rollouts, Solution, Verification

torch.set_num_threads(1)
OPTIONS = {"warmup": 0, "n_generator": 1, "votes": 4, "checks": 2, "audit": 4}
BOTH = {"generator": FAST, "verifier": FAST}


def plan(recipe: str = "tango_free", **options: Any) -> Plan:
    return resolve([{"recipe": recipe, "options": OPTIONS | options}, TINY])


def ctx(p: Plan, learner: str, turn: int = 1) -> Context:
    run_context = RunContext(make_engine(p), p.task, p.roles, p.agents, p.config.sampling, 0, p.config.batch.problems)
    return Context(run_context, turn, learner)


def solution(answer: str | None, number: int, problem: str = "p", truth: str = "3", steps: int = 2) -> Rollout:
    value = Solution(("1+2=3",) * steps, tuple(range(1, steps + 1)), answer)
    spans = tuple((k, k + 1) for k in range(steps))
    parsed = Parsed(value, 1.0, None if answer is not None else "no answer line")
    asked = Problem(problem, "1+2%100", truth)
    grade = Grade(answer == truth)
    return Rollout(f"{problem}/{number}", "generator", asked, np.arange(9), (), np.zeros(9), "", parsed, spans, grade=grade)


def check(target: Rollout, final: bool | None, steps: tuple[bool, ...] | None = None, number: int = 0) -> Rollout:
    parsed = Parsed(Verification(steps, final), 1.0)
    id = f"{target.id}!{number}"
    return Rollout(id, "verifier", target.problem, np.arange(3), (), np.zeros(3), "", parsed, targets=(target,))


AT: Any = SimpleNamespace(task=plan().task, rng=lambda what, *key: keyed_rng(what, 0, 1, *key))


# What takes the place of truth.


def test_consistency_by_hand() -> None:
    assert verdict_consistency([True, True, False]) == [0.5, 0.5, 0.0]
    assert verdict_consistency([True, None, True]) == [1.0, 0.0, 1.0]  # the unreadable earns nothing and counts for nobody
    assert verdict_consistency([True]) == verdict_consistency([True, None])[:1] == [0.0]  # nobody to agree with


@given(st.lists(st.none() | st.booleans(), max_size=9))
def test_consistency_is_a_share_and_blind_to_which_verdict_is_which(verdicts: list[bool | None]) -> None:
    found = verdict_consistency(verdicts)
    assert all(0 <= share <= 1 for share in found)
    assert found == verdict_consistency([None if v is None else not v for v in verdicts])


def test_belief_is_the_share_of_readable_verdicts_that_say_right() -> None:
    some = Rollouts([solution("3", 0), solution("4", 1), solution("5", 2), solution(None, 3)])
    said = [(0, True), (0, False), (0, True), (1, None), (1, False), (2, None), (3, True)]
    checks = Rollouts(check(some[row], final, number=n) for n, (row, final) in enumerate(said))
    found = mean_final_verdicts(some, checks)
    assert found[0] == pytest.approx(2 / 3) and found[1] == 0.0
    assert np.isnan(found[2])  # nothing could be read: unknown, not wrong
    assert found[3] == 0.0  # no answer earns nothing, whatever the verifier says


def test_step_verdicts_are_averaged_over_the_checks_that_reach_them() -> None:
    some = Rollouts([solution("3", 0), solution("4", 1)])
    verdicts = [(True, True), (True, False), (False,)]
    checks = Rollouts(check(some[0], True, steps, n) for n, steps in enumerate(verdicts))
    assert mean_step_verdicts(some, checks) == [[pytest.approx(1 / 3), 0.0], None]
    (alone,) = mean_step_verdicts(some[:1], checks[2:])
    assert alone is not None and alone[0] == -1.0 and np.isnan(alone[1])


def test_the_vote_says_of_others_too_whether_they_give_the_winner() -> None:
    voters = Rollouts([solution("5", 0), solution("5", 1), solution("3", 2)])
    others = [solution("5", 7), solution("3", 8), solution(None, 9), solution("3", 10)]
    (cast,) = tally_votes(AT, voters, others).values()
    assert cast.vote.share == pytest.approx(2 / 3)  # four more threes would have won, had they a voice
    assert cast.gives == {"p/0": 1, "p/1": 1, "p/2": 0, "p/7": 1, "p/8": 0, "p/9": 0, "p/10": 0}


def test_collusion_by_hand() -> None:
    """Four problems whose answer is 3: right; wrong and endorsed; wrong and refused; nothing answered."""
    answers = {"a": ["3", "3", "4"], "b": ["4", "4", "3"], "c": ["4", "4", "3"], "d": [None, None, None]}
    says = {"a": True, "b": True, "c": False, "d": True}
    solutions = Rollouts(solution(answer, n, name) for name, some in answers.items() for n, answer in enumerate(some))
    checks = Rollouts(check(s, says[s.problem.id], number=n) for s in solutions for n in range(2))
    found = collusion_metrics(list(tally_votes(AT, solutions).values()), checks)
    assert found["collusion"] == 1 / 4 and found["consensus_wrong"] == 3 / 4 and found["endorsement"] == pytest.approx(1 / 3)
    # a: all three rightly labelled. b, c: none (the right one refused, two wrong ones taken). d: nobody is right, nobody taken.
    assert found["label_accuracy"] == pytest.approx((3 + 0 + 0 + 3) / 12)
    assert found["majority_share"] == pytest.approx((2 / 3 * 3 + 0) / 4) and found["verdict_consistency"] == 1.0


# The recipe.


def test_a_verifier_turn_judges_one_that_gives_the_winner_and_one_that_does_not() -> None:
    p = plan()
    at = ctx(p, "verifier")
    rollouts = p.recipe.rollout(at)
    voters, checks = rollouts.of("generator"), rollouts.of("verifier")
    assert len(voters) == 4 * 4
    labels = p.recipe.make_labels(at, voters, checks.targets)  # type: ignore[attr-defined]
    for problem in dict.fromkeys(voters.problem_ids):
        told = [labels[t.id] for t in checks.targets if t.problem.id == problem]
        assert told in ([1.0, 0.0], [1.0], [0.0])
        assert (len(told) == 2) == (0 < sum(labels[t.id] for t in voters if t.problem.id == problem) < 4)
    (train_batch,) = p.recipe.credit(at, rollouts)
    assert train_batch.sources == {"generator": pytest.approx(2 / 3), "verifier": pytest.approx(1 / 3)}
    assert all(t.agent == "verifier" for t in train_batch.rollouts)


def test_the_verifier_is_paid_for_the_label_and_for_agreeing_with_itself() -> None:
    p = plan(self_consistency=0.5, format_weight=0.0, reweight=False)
    at = ctx(p, "verifier")
    checks = p.recipe.rollout(at).of("verifier")[:4]  # the four checks of one solution
    finals = [True, True, False, None]
    for rollout, final in zip(checks, finals, strict=True):
        rollout.parsed = Parsed(Verification(None, final), 1.0)
    train_batch = p.recipe.credit_judge(at, checks, {checks[0].target.id: 1.0})  # type: ignore[attr-defined]
    # 1 + 0.5 * 1/2 twice; 0 + 0 for who stands alone; 0 for what cannot be read.
    rewards = np.array([1.25, 1.25, 0.0, 0.0])
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    assert [float(a[t.mask][0]) for a, t in zip(train_batch.advantages, checks, strict=True)] == pytest.approx(
        expected.tolist()
    )


def test_too_small_a_majority_teaches_nothing() -> None:
    voters = Rollouts([solution("5", 0), solution("5", 1), solution("3", 2)])
    labels = [plan(min_majority=least).recipe.make_labels(AT, voters, voters) for least in (0.6, 0.7)]  # type: ignore[attr-defined]
    assert labels[0] == {"p/0": 1.0, "p/1": 1.0, "p/2": 0.0}
    assert all(np.isnan(value) for value in labels[1].values())
    nobody = Rollouts([solution(None, 0), solution(None, 1)])
    assert all(np.isnan(v) for v in plan().recipe.make_labels(AT, nobody, nobody).values())  # type: ignore[attr-defined]


def test_dynamic_sampling_is_refused_since_it_looks_at_the_truth() -> None:
    with pytest.raises(ConfigError, match="no truth by which problems could be chosen"):
        resolve([{"recipe": "tango_free"}, TINY, {"policies": {"generator": {"objective": {"preset": "dapo"}}}}])


# The remedies.


def test_labelled_problems_have_their_truth_as_label() -> None:
    p = plan(labelled=2, labelled_share=0.5)
    at = ctx(p, "verifier")
    rollouts = p.recipe.rollout(at)
    voters, checks = rollouts.of("generator"), rollouts.of("verifier")
    labels = p.recipe.make_labels(at, voters, checks.targets)  # type: ignore[attr-defined]
    told = [t for t in checks.targets if t.problem.id.startswith("labelled/")]
    assert len({t.problem.id for t in voters if t.problem.id.startswith("labelled/")}) == 2 and at.drawn == 2
    assert {t.problem.text for t in told} <= {p.task.problem("train", index).text for index in range(2)}
    assert told and all(labels[t.id] == t.correct for t in told)
    (train_batch,) = p.recipe.credit(at, rollouts)
    assert 0 < train_batch.sources["answers"] < 2 / 3


def test_anchors_vote_and_judge_and_never_learn() -> None:
    p = plan(anchors=3)
    for learner, agent in (("verifier", "generator"), ("generator", "verifier")):
        at = ctx(p, learner)
        rollouts = p.recipe.rollout(at)
        frozen = rollouts.select(lambda t, agent=agent: t.agent == agent and not t.mask.any())  # type: ignore[misc]
        live = rollouts.select(lambda t, agent=agent: t.agent == agent and t.mask.any())  # type: ignore[misc]
        targets = len({t.problem.id if learner == "verifier" else t.target.id for t in frozen})
        assert len(frozen) == 3 * targets and len(live) == (4 if learner == "verifier" else 2) * targets
        (train_batch,) = p.recipe.credit(at, rollouts)
        assert all(t.mask.any() for t in train_batch.rollouts)
        if learner == "verifier":
            assert all(t.target.mask.any() for t in train_batch.rollouts)


def test_the_adversary_is_paid_for_what_passes_and_does_not_give_the_winner() -> None:
    p = plan("tango_free_adversary")
    at = ctx(p, "adversary")
    rollouts = p.recipe.rollout(at)
    attempts = rollouts.of("adversary")
    for rollout in rollouts:
        if rollout.agent == "verifier":
            rollout.parsed = Parsed(Verification(None, True), 1.0)  # everything passes
        else:
            number = int(rollout.id.rpartition("/")[2])
            answer = "5" if rollout.agent == "generator" else ("5", "77", None, "5")[number]
            rollout.parsed = Parsed(Solution((), (), answer), 1.0)
    (train_batch,) = p.recipe.credit(at, rollouts)
    assert (
        train_batch.policy == "adversary"
        and list(train_batch.rollouts) == list(attempts)
        and train_batch.sources == {"verifier": 1.0}
    )
    rewards = np.array([0.0, 1.0, 0.0, 0.0])  # only the second has an answer that did not win
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    values = [float(a[t.mask][0]) for a, t in zip(train_batch.advantages or [], attempts, strict=True)]
    assert values == pytest.approx(4 * expected.tolist())


def test_the_verifier_meets_the_adversary_which_has_no_voice() -> None:
    p = plan("tango_free_adversary")
    at = ctx(p, "verifier")
    rollouts = p.recipe.rollout(at)
    checks = rollouts.of("verifier")
    assert sum(t.agent == "adversary" for t in checks.targets) == 4
    assert all(t.agent != "adversary" for t in rollouts)  # nobody votes but those who are played as voters
    assert len(next(iter(p.recipe.credit(at, rollouts))).rollouts) == len(checks)


# The hidden truth.


@pytest.mark.parametrize("recipe", ["tango_free", "tango_free_adversary"])
def test_the_weights_know_nothing_of_a_truth_that_is_hidden(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TINY | {"options": OPTIONS | {"anchors": 1}, "policies": BOTH}
    true = learned(recipe, 2, settings, tmp_path / "true")
    others_truth(monkeypatch)
    assert learned(recipe, 2, settings, tmp_path / "other") == true


def test_of_labelled_problems_alone_the_truth_reaches_the_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TINY | {"options": OPTIONS | {"labelled": 2, "labelled_share": 0.5}, "policies": BOTH}
    true = learned("tango_free", 2, settings, tmp_path / "true")
    with monkeypatch.context() as patch:
        others_truth(patch, spare=lambda index: index < 2)
        assert learned("tango_free", 2, settings, tmp_path / "spared") == true
    others_truth(monkeypatch)
    assert learned("tango_free", 2, settings, tmp_path / "other") != true


def test_a_run_goes_on_in_the_same_bits(tmp_path: Path) -> None:
    settings = TINY | {"options": OPTIONS | {"labelled": 2, "anchors": 1}, "policies": BOTH}
    assert same_after_a_cut("tango_free_adversary", 2, settings, tmp_path / "run")
