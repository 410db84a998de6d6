"""Targets of value heads, and weights of classes, against numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY, make_rollout
from milonga.credit import compute_class_weights, mask_after_error, outcome_targets, step_targets
from milonga.types import Rollouts

NAN = float("nan")


def test_labels_stop_at_the_first_error() -> None:
    assert mask_after_error([1, 1, 0, 1, 0])[:3] == [1.0, 1.0, 0.0]
    assert np.isnan(mask_after_error([1, 1, 0, 1, 0])[3:]).all()
    assert mask_after_error([1, 1]) == [1.0, 1.0]
    assert mask_after_error([]) == []


@PROPERTY
@given(st.lists(st.booleans(), max_size=8), st.lists(st.booleans(), max_size=8))
def test_what_follows_the_first_error_changes_nothing(before: list[bool], after: list[bool]) -> None:
    head = [True] * len(before) + [False]
    first = mask_after_error([float(x) for x in head + before])
    second = mask_after_error([float(x) for x in head + after])
    assert first[: len(head)] == second[: len(head)]
    assert np.isnan(first[len(head) :]).all()


def test_step_targets_stand_at_the_ends_of_steps() -> None:
    rollout = make_rollout(2, 6, step_ends=[2, 5])
    (row,) = step_targets([[1.0, 0.0]], Rollouts([rollout]))
    assert row[3] == 1.0 and row[6] == 0.0
    assert np.isnan(np.delete(row, [3, 6])).all()


def test_labels_that_do_not_match_the_steps_ask_for_nothing() -> None:
    rollout = make_rollout(2, 6, step_ends=[2, 5])
    for labels in ([1.0], None, [1.0, 1.0, 1.0]):
        assert np.isnan(step_targets([labels], Rollouts([rollout]))[0]).all()


def test_outcome_targets_stand_at_the_end() -> None:
    rows = outcome_targets([1.0, NAN], Rollouts([make_rollout(2, 3), make_rollout(1, 2)]))
    assert rows[0][-1] == 1.0 and np.isnan(rows[0][:-1]).all()
    assert np.isnan(rows[1]).all()


def test_balanced_weights_by_hand() -> None:
    # One right and three wrong: 4 / 2 = 2 for the right one, 4 / 6 for each wrong one.
    assert compute_class_weights([1, 0, 0, 0]) == pytest.approx([2, 2 / 3, 2 / 3, 2 / 3])
    assert compute_class_weights([1, 1]) == [1.0, 1.0]
    assert compute_class_weights([1, NAN, 0]) == [1.0, 0.0, 1.0]
    assert compute_class_weights([]) == []


@PROPERTY
@given(st.lists(st.sampled_from([0.0, 1.0, NAN]), min_size=1, max_size=20))
def test_balanced_classes_count_alike_and_one_on_average(labels: list[float]) -> None:
    weights = np.array(compute_class_weights(labels))
    known = [w for w, label in zip(weights, labels, strict=True) if not np.isnan(label)]
    right = [w for w, label in zip(weights, labels, strict=True) if label == 1.0]
    wrong = [w for w, label in zip(weights, labels, strict=True) if label == 0.0]
    if known:
        assert np.mean(known) == pytest.approx(1.0)
    if right and wrong:
        assert sum(right) == pytest.approx(sum(wrong))
