"""Who learns when: the order of learners, conditions that look at rows alone, and cursors from which the path goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.resolve import resolve
from milonga.schedule import Cursor, Gate, Phase, Plateau, Schedule, alternate, always, until, warm_up

Rows = list[dict[str, Any]]
START = Cursor()


def walk(schedule: Schedule, turns: int, measure: Callable[[int], float | None] = lambda turn: None) -> list[str]:
    """The learners of the first turns; `measure` is the metric of each turn."""
    return [learner for learner, _ in steps(schedule, turns, measure)]


def steps(
    schedule: Schedule,
    turns: int,
    measure: Callable[[int], float | None] = lambda turn: None,
    cursor: Cursor = START,
    rows: Sequence[dict[str, Any]] = ({"turn": 0},),
) -> list[tuple[str, Cursor]]:
    """As the loop does it: advance, learn, count; each turn's learner and the cursor that a checkpoint would hold."""
    out: list[tuple[str, Cursor]] = []
    seen = list(rows)
    for _ in range(turns):
        cursor = schedule.advance(cursor, seen)
        phase = schedule.get_phase(cursor.phase)
        if phase is None:
            break
        seen.append({"turn": len(seen), "metric": measure(len(seen))})
        cursor = Cursor(cursor.phase, cursor.done + 1)
        out.append((phase.learner, cursor))
    return out


def test_warm_up_comes_first_and_then_turns_alternate() -> None:
    schedule = warm_up("v", 2) + alternate(g=3, v=1)
    assert walk(schedule, 10) == ["v", "v", "g", "g", "g", "v", "g", "g", "g", "v"]


def test_a_warm_up_of_nothing_and_a_share_of_nothing_are_left_out() -> None:
    assert walk(warm_up("v", 0) + alternate(g=2, v=0), 4) == ["g"] * 4
    assert walk(always("g"), 3) == ["g"] * 3


def test_nothing_follows_a_cycle() -> None:
    with pytest.raises(ValueError, match="cycle"):
        always("g") + warm_up("v", 1)


def test_a_schedule_without_turns_says_so_and_one_without_cycle_ends() -> None:
    with pytest.raises(ValueError, match="turns"):
        Schedule(cycle=(Phase("g", 0),)).advance(Cursor(), [])
    assert walk(warm_up("v", 2), 5) == ["v", "v"]
    assert warm_up("v", 2).get_phase(1) is None


def test_a_gate_opens_at_its_bound_and_not_before_a_turn() -> None:
    schedule = until("v", Gate("metric", 0.5)) + always("g")
    assert walk(schedule, 5, lambda turn: 0.2 * turn) == ["v", "v", "v", "g", "g"]
    assert walk(schedule, 3, lambda turn: 1.0) == ["v", "g", "g"]


def test_a_gate_looks_at_the_last_known_value_of_its_own_phase() -> None:
    gate = Gate("metric", 0.5)
    assert not gate([{"turn": 1}, {"turn": 2, "metric": None}])
    assert gate([{"metric": 0.1}, {"metric": 0.5}, {"metric": None}])
    assert not gate([{"metric": 0.9}, {"metric": 0.4}])
    # High values before the phase do not open it.
    schedule = warm_up("g", 2) + until("v", gate) + always("g")
    values = {1: 0.9, 2: 0.9, 3: 0.1, 4: 0.6}
    assert walk(schedule, 6, values.get) == ["g", "g", "v", "v", "g", "g"]


def test_a_gate_that_never_opens_ends_at_its_limit() -> None:
    assert walk(until("v", Gate("metric", 2.0), at_most=3) + always("g"), 5, lambda turn: 0.0) == ["v"] * 3 + ["g"] * 2


def test_a_plateau_ends_when_the_best_is_old() -> None:
    rises_then_stays = {1: 0.1, 2: 0.3, 3: 0.3, 4: 0.2}
    schedule = until("v", Plateau("metric", patience=2)) + always("g")
    assert walk(schedule, 6, lambda turn: rises_then_stays.get(turn, 0.0)) == ["v"] * 4 + ["g"] * 2
    assert not Plateau("metric", 2)([{"metric": 0.3}, {"metric": 0.2}, {"metric": 0.4}])
    assert Plateau("metric", 2, least_gain=0.1)([{"metric": 0.3}, {"metric": 0.35}, {"metric": 0.39}])
    assert not Plateau("metric", 1)([{"turn": 1}, {"turn": 2}])


def test_turns_until_counts_everyones_turns() -> None:
    schedule = warm_up("v", 2) + alternate(g=3, v=1)
    assert [schedule.count_turns_until("g", n) for n in (1, 3, 4, 6)] == [3, 5, 7, 9]
    assert schedule.count_turns_until("v", 4) == 10
    assert schedule.count_turns_by_learner("g", 6) == {"g": 6, "v": 3}
    assert always("g").count_turns_until("g", 7) == 7
    assert always("g").count_turns_until("v", 1) is None
    assert warm_up("v", 2).count_turns_until("v", 3) is None
    assert (until("v", Gate("metric", 1.0)) + always("g")).count_turns_until("g", 3) is None
    assert Schedule(intro=(Phase("g"),)).count_turns_until("g", 3) == 3


SCHEDULES = st.builds(
    lambda intro, cycle: Schedule(tuple(intro), tuple(cycle)),
    st.lists(st.builds(Phase, st.sampled_from("gv"), st.integers(0, 3)), max_size=3),
    st.lists(st.builds(Phase, st.sampled_from("gv"), st.integers(1, 3)), min_size=1, max_size=3),
)
GATED = st.builds(
    lambda schedule, bound, patience: Schedule(
        (*schedule.intro, Phase("x", None, Gate("metric", bound)), Phase("y", 5, Plateau("metric", patience))),
        schedule.cycle,
    ),
    SCHEDULES,
    st.floats(0, 1),
    st.integers(1, 3),
)


@PROPERTY
@given(SCHEDULES, st.integers(1, 12))
def test_turns_until_agrees_with_walking(schedule: Schedule, count: int) -> None:
    total = schedule.count_turns_until("g", count)
    learners = walk(schedule, 200)
    if total is None:
        assert learners.count("g") < count
    else:
        assert learners[:total].count("g") == count and learners[total - 1] == "g"


@PROPERTY
@given(GATED, st.lists(st.none() | st.floats(0, 1), min_size=12, max_size=12), st.integers(0, 11))
def test_from_any_saved_cursor_the_path_goes_on(schedule: Schedule, values: list[float | None], stop: int) -> None:
    def measure(turn: int) -> float | None:
        return values[turn % 12]

    whole = steps(schedule, 30, measure)
    cursor = whole[stop - 1][1] if stop else Cursor()
    rows: Rows = [{"turn": 0}, *({"turn": t, "metric": measure(t)} for t in range(1, stop + 1))]
    assert steps(schedule, 30 - stop, measure, cursor, rows) == whole[stop:]


@PROPERTY
@given(GATED, st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_cursors_never_go_back_and_phases_are_entered_at_their_first_turn(schedule: Schedule, values: list[float]) -> None:
    cursors = [cursor for _, cursor in steps(schedule, 40, lambda turn: values[turn % 12])]
    for before, after in pairwise(cursors):
        assert after == Cursor(before.phase, before.done + 1) or (after.phase > before.phase and after.done == 1)


def test_recipes_have_the_schedules_of_their_papers() -> None:
    def learners(recipe: str, **options: int) -> list[str]:
        return walk(resolve([{"recipe": recipe, "options": options}]).recipe.schedule(), 6)

    assert learners("tango", warmup=1, n_generator=2, n_verifier=1) == [
        *("verifier", "generator", "generator"),
        *("verifier", "generator", "generator"),
    ]
    assert set(learners("grpo")) == set(learners("oracle")) == set(learners("frozen")) == {"generator"}
    assert set(learners("verifier_only")) == {"verifier"}
