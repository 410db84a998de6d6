"""Qwen2.5-Math-PRM: labels by consensus, what they mean, and what they must not see."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import TINY
from helpers import PROPERTY
from milonga.api import make_engine
from milonga.context import Context
from milonga.credit import find_first_zero
from milonga.engine.local import LocalEngine
from milonga.errors import ConfigError
from milonga.evals.metrics import harmonic_mean, process_f1
from milonga.patterns.value_head import NAN
from milonga.resolve import Plan, resolve
from milonga.roles.scorer import StepScorer, aggregate_scores
from milonga.systems.qwen_prm.recipe import QwenPrm, QwenPrmOptions, labels_from_first_error
from milonga.tasks.base import ANSWERS
from milonga.types import Grade, Rollouts

KINDS = get_args(QwenPrmOptions.model_fields["labels"].annotation)


def plan(labels: str = "consensus_hard", **options: Any) -> Plan:
    more = {"completions": 3, "replay": 0.0, "labels": labels} | options
    return resolve([{"recipe": "qwen_prm", "options": more}, TINY, {"task": {"ops": 3}, "batch": {"problems": 8}}])


@cache
def engine() -> LocalEngine:
    made = make_engine(plan())
    assert isinstance(made, LocalEngine)
    return made


def ctx(p: Plan) -> Context:
    run_context = p.make_run_context(engine())
    return Context(run_context, 1, "verifier")


@cache
def sample_rollouts() -> Rollouts:
    p = plan()
    return p.recipe.rollout(ctx(p))


def labels_of(kind: str, **options: Any) -> list[list[float] | None]:
    p = plan(kind, **options)
    assert isinstance(p.recipe, QwenPrm)
    return p.recipe.label_steps(ctx(p), sample_rollouts())


def same(a: list[float] | None, b: list[float] | None) -> bool:
    return (a is None) == (b is None) and (a is None or np.array_equal(a, b, equal_nan=True))  # type: ignore[arg-type]


# Labels.


def test_labels_of_a_known_first_error() -> None:
    assert labels_from_first_error(3, -1) == [1.0, 1.0, 1.0]
    assert same(labels_from_first_error(4, 1), [1.0, 0.0, NAN, NAN])
    assert labels_from_first_error(1, 0) == [0.0] and labels_from_first_error(3, None) is None


@PROPERTY
@given(st.integers(1, 8), st.data())
def test_labels_and_first_errors_say_the_same(count: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(-1, count - 1))
    labels = labels_from_first_error(count, first)
    assert labels is not None and len(labels) == count and find_first_zero(labels) == first
    assert np.isnan(labels).sum() == (0 if first == -1 else count - 1 - first)


def test_consensus_keeps_what_both_agree_on_and_drops_the_rest() -> None:
    p = plan()
    assert isinstance(p.recipe, QwenPrm)
    mc, judge, both = labels_of("mc_hard"), labels_of("judge"), labels_of("consensus_hard")
    kept = 0
    for value, verdict, label in zip(mc, judge, both, strict=True):
        assert value is not None
        agree = verdict is not None and find_first_zero(value) == find_first_zero(verdict)
        assert same(label, value if agree else None)
        assert not agree or same(label, verdict)
        kept += agree
    assert 0 < kept < len(both)


def test_soft_labels_stop_where_hard_ones_do() -> None:
    for soft, hard in (("mc_soft", "mc_hard"), ("consensus_soft", "consensus_hard")):
        for share, label in zip(labels_of(soft), labels_of(hard), strict=True):
            assert (share is None) == (label is None)
            if share is not None and label is not None:
                assert np.array_equal(np.isnan(share), np.isnan(label))
                assert np.array_equal(np.nan_to_num(share) > 0, np.nan_to_num(label) > 0)
    assert any(0 < x < 1 for share in labels_of("mc_soft") for x in share or [])


def test_nothing_is_labelled_after_the_first_error() -> None:
    for kind in KINDS:
        for labels in labels_of(kind):
            first = find_first_zero(labels or [])
            assert labels is None or first == -1 or np.isnan(labels[first + 1 :]).all()


def test_what_is_written_after_a_first_error_changes_no_target() -> None:
    """Steps after it have no meaning as labels: truth that differs only there makes the same train batch."""
    p = plan("truth")
    before = next(iter(p.recipe.credit(ctx(p), sample_rollouts()))).targets
    grades = [t.grade for t in sample_rollouts()]
    for solution in sample_rollouts():
        assert solution.grade is not None and solution.grade.steps is not None
        first = solution.grade.first_error
        flipped = tuple(right if first == -1 or k <= first else not right for k, right in enumerate(solution.grade.steps))  # type: ignore[operator]
        solution.grade = Grade(solution.grade.correct, flipped)
    after = next(iter(p.recipe.credit(ctx(p), sample_rollouts()))).targets
    for solution, grade in zip(sample_rollouts(), grades, strict=True):
        solution.grade = grade
    assert before is not None and after is not None
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_only_truth_sees_the_truth_of_steps(kind: str) -> None:
    before = labels_of(kind)
    grades = [t.grade for t in sample_rollouts()]
    for solution in sample_rollouts():
        assert solution.grade is not None
        solution.grade = Grade(solution.grade.correct, tuple(not right for right in solution.grade.steps or ()))
    after = labels_of(kind)
    for solution, grade in zip(sample_rollouts(), grades, strict=True):
        solution.grade = grade
    assert all(same(a, b) for a, b in zip(before, after, strict=True)) == (kind != "truth")


def test_votes_of_the_judge_are_about_the_first_error() -> None:
    p = plan("judge", votes=3)
    assert isinstance(p.recipe, QwenPrm)
    found = p.recipe.judge_first_errors(ctx(p), sample_rollouts())
    checks = ctx(p).judge("judge", sample_rollouts(), 3)
    for number, solution in enumerate(sample_rollouts()):
        said = [c.parsed.value.steps for c in checks if c.target.id == solution.id]
        firsts = [find_first_zero(steps) for steps in said if steps is not None]
        assert found[number] is None if not firsts else firsts.count(found[number]) == max(map(firsts.count, firsts))  # type: ignore[arg-type]


def test_arms_may_learn_from_equally_many_solutions() -> None:
    for kind in ("consensus_hard", "mc_hard", "truth"):
        p = plan(kind, solutions=5)
        (train_batch,) = p.recipe.credit(ctx(p), sample_rollouts())
        assert len(train_batch.rollouts) == train_batch.notes["solutions"] == 5


def test_sources_name_who_labelled() -> None:
    found = {kind: plan(kind).recipe.sources() for kind in KINDS}  # type: ignore[attr-defined]
    assert found["consensus_hard"] == {"answers": 0.5, "judge": 0.5}
    assert (found["mc_soft"], found["judge"], found["truth"]) == ({"answers": 1.0}, {"judge": 1.0}, {"steps": 1.0})


# Aggregation and what is needed.


def test_aggregation_follows_from_the_meaning_of_the_labels() -> None:
    for kind in KINDS:
        role = plan(kind).roles["verifier"]
        assert isinstance(role, StepScorer) and role.aggregate == ("last_step" if kind.startswith("mc") else "product")
    role = plan("mc_hard", aggregate="product").roles["verifier"]
    assert isinstance(role, StepScorer) and role.aggregate == "product"
    assert aggregate_scores([0.9, 0.4], 0.7, "last_step") == 0.4


def test_the_f1_of_the_paper() -> None:
    assert harmonic_mean(0.6, 0.9) == pytest.approx(0.72)
    assert process_f1([-1] * 4, [-1, -1, 0, 2])["f1"] == 0.0  # always "none"


def test_only_labels_of_truth_need_a_task_that_knows_its_steps(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text("".join(f'{{"question": "{i}+1", "answer": "{i + 1}"}}\n' for i in range(40)))
    task = {"name": "jsonl", "path": str(file)}
    config = {"recipe": "qwen_prm", "task": task, "policies": {"generator": {"model": "a/model"}}}
    assert resolve([config]).recipe.needs == {ANSWERS}
    with pytest.raises(ConfigError, match="exact truth of each step"):
        resolve([config, {"options": {"labels": "truth"}}])
