"""Claims: what must be so before one is tested, how many seeds it takes, and what may be said in the end."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cases import TINY
from helpers import Command
from keep_claims import DOCS, judge_today
from milonga.claims import (
    MOST_SEEDS,
    PILOT_SEEDS,
    check_claim,
    check_conditions,
    count_reached,
    count_seeds,
    find_deciding_p,
    find_visible,
    judge_claim,
    judge_reached,
    list_seeds,
    plan_claim,
    plan_pilot,
    summarise_claim,
)
from milonga.cli.claims import list_claims
from milonga.comparing import stats
from milonga.errors import ConfigError
from milonga.systems.claim import LEARNS, ROOM, Claim, Condition, Measured, beat_blind_choice
from milonga.systems.index import CLAIMS

ACCURACY, F1 = "eval/generator/accuracy", "eval/verifier/f1"
KEPT = sorted((DOCS / "claims").glob("*.json"))


def some_claim(**fields: Any) -> Claim:
    given = {"recipe": "tango", "says": "", "arms": ("tango", "grpo"), "metric": ACCURACY, "turns": 2}
    return Claim(**{**given, "task": {"name": "chain"}, **fields})


# What may be said.


@pytest.mark.parametrize(
    ("interval", "higher", "verdict"),
    [
        ((0.02, 0.1), True, "holds"),
        ((-0.02, 0.1), True, "undecided"),
        ((-0.1, 0.005), True, "does not hold"),
        ((-0.1, -0.02), True, "does not hold"),
        ((-0.1, -0.02), False, "holds"),
        ((-0.005, 0.1), False, "does not hold"),
        # Of five values: 0.02 +- 0.038 has the end of its 90 % interval at 0.02 + 0.038 * 2.132 / 2.776 = 0.0492; then 0.0507.
        ((-0.018, 0.058), True, "does not hold"),
        ((-0.02, 0.06), True, "undecided"),
        # Surely larger than nothing, and surely smaller than what would matter.
        ((0.01, 0.04), True, "does not hold"),
        (None, True, "undecided"),
    ],
)
def test_what_may_be_said_of_a_claim(interval: Any, higher: bool, verdict: str) -> None:
    assert judge_claim(some_claim(higher=higher), interval, 5) == verdict


def test_a_claim_needs_three_pairs_and_the_problems_agreement() -> None:
    assert judge_claim(some_claim(), (0.02, 0.1), 2) == "undecided"
    assert judge_claim(some_claim(), (0.02, 0.1), 5, (-0.01, 0.2)) == "undecided"


def ends_of(tango: list[float], grpo: list[float], seeds: tuple[int, ...] = ()) -> dict[str, Any]:
    """A comparison of which only the ends of the runs are known."""
    arms = {
        name: {"seeds": list(seeds or range(len(ends))), "values": ends} for name, ends in (("tango", tango), ("grpo", grpo))
    }
    return {"metric": ACCURACY, "arms": {name: {"metrics": {ACCURACY: found}} for name, found in arms.items()}}


def test_of_runs_that_break_through_or_not_the_share_of_seeds_is_tested() -> None:
    """Six seeds in which only the first arm breaks through, and two in which both do: p = 2 / 2^6."""
    claim = some_claim(threshold=0.5)
    found = count_reached(claim, 0.5, ends_of([0.9] * 8, [0.1] * 6 + [0.8] * 2))
    assert found == {"threshold": 0.5, "shares": [1.0, 0.25], "wins": 6, "losses": 0, "p": 2 / 2**6}
    assert judge_reached(claim, found) == "holds"
    assert judge_reached(claim, count_reached(claim, 0.5, ends_of([0.1] * 6, [0.9] * 6))) == "does not hold"
    assert judge_reached(claim, count_reached(claim, 0.5, ends_of([0.9] * 5, [0.1] * 5))) == "undecided"  # p = 2 / 2^5
    lower = count_reached(some_claim(higher=False), 0.5, ends_of([0.1] * 6, [0.9] * 6))
    assert (lower["wins"], lower["losses"]) == (6, 0)


# How many seeds.


@pytest.mark.parametrize(("wins", "losses", "p"), [(0, 0, 1.0), (1, 1, 1.0), (5, 0, 0.0625), (1, 7, 18 / 256), (8, 0, 2 / 256)])
def test_the_sign_test_is_exact(wins: int, losses: int, p: float) -> None:
    assert stats.sign_test(wins, losses) == stats.sign_test(losses, wins) == pytest.approx(p, rel=1e-12)


def test_ten_seeds_show_an_effect_as_large_as_their_spread() -> None:
    """(2.262 + 0.883) / sqrt(10) = 0.995, and (2.306 + 0.889) / sqrt(9) = 1.065."""
    assert stats.plan_seeds(0.1, 0.1) == 10
    assert stats.plan_seeds(0.1, 0.0) == stats.FEWEST_PAIRS
    with pytest.raises(ValueError, match="no number of seeds"):
        stats.plan_seeds(0.0, 0.1)


@given(st.floats(0.05, 1.0), st.floats(0.01, 0.3))
def test_a_plan_is_the_inverse_of_what_could_be_seen(effect: float, spread: float) -> None:
    """So many values of that standard deviation show the effect; one less would not."""

    def seen(seeds: int) -> float:
        step = spread * math.sqrt((seeds - 1) / (2 * (seeds // 2)))
        values = [step] * (seeds // 2) + [-step] * (seeds // 2) + [0.0] * (seeds % 2)
        found = stats.smallest_effect(values)
        assert found is not None
        return found

    seeds = stats.plan_seeds(effect, spread)
    assert seen(seeds) <= effect * (1 + 1e-9)
    assert seeds == stats.FEWEST_PAIRS or seen(seeds - 1) > effect * (1 - 1e-9)


def test_the_seeds_of_a_claim_follow_from_its_spread() -> None:
    assert count_seeds(some_claim()) == 5
    assert count_seeds(some_claim(spread=0.05)) == 10
    # To show 0.1 takes five seeds; to rule out 0.05 where there is nothing, (1.895 + 0.896) * 0.05 / sqrt(8) = 0.0493, eight.
    assert count_seeds(some_claim(effect=0.1, spread=0.05)) == 8
    assert count_seeds(some_claim(spread=0.5)) == MOST_SEEDS and count_seeds(some_claim(threshold=0.5)) == 8
    # What the spread is known from is not counted again, however many seeds are asked for.
    assert plan_claim(some_claim(spread=0.05), "3").seeds == plan_claim(some_claim(spread=0.05), 3).seeds == (200, 201, 202)
    assert plan_claim(some_claim(spread=0.05), "100,104").seeds == (100, 104)
    assert list_seeds(some_claim()) == tuple(range(100, 105))
    assert plan_claim(some_claim(spread=0.05)).seeds == list_seeds(some_claim(spread=0.05)) == tuple(range(200, 210))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"arms": ("tango",)}, "has 1 arms"),
        ({"arms": ("tango", "tango")}, "has an arm twice"),
        ({"conditions": (Condition("it is bad"),)}, "“it is bad” has no bound"),
        ({"matters": 0.0}, "matters is 0.0"),
        ({"effect": 0.03}, "one below 0.05 does not matter"),
        ({"effect": -0.1}, "lower `matters` or raise `effect`"),
        ({"spread": -1.0}, "spread is -1.0"),
        ({"conditions": (Condition("it is bad", Measured(arm=2), most=1),)}, "a condition is on arm 2"),
        ({"conditions": (LEARNS,), "higher": False}, "higher is better"),
    ],
)
def test_a_claim_that_nothing_could_test_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        some_claim(**fields)


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=12))
def test_an_interval_of_another_level_is_that_of_the_same_values(values: list[float]) -> None:
    whole = stats.t_interval(values)
    assert whole is not None
    assert stats.narrow_interval(whole, len(values), stats.LEVEL) == pytest.approx(whole)
    low, high = stats.narrow_interval(whole, len(values), 0.9)
    assert whole[0] - 1e-12 <= low <= high <= whole[1] + 1e-12


def test_what_few_seeds_can_show_is_said(milonga: Command) -> None:
    """Twenty seeds that spread by 0.5 show (2.093 + 0.861) * 0.5 / sqrt(20) = 0.330."""
    assert find_visible(some_claim(spread=0.5), 20) == pytest.approx(0.330, abs=5e-4)
    assert find_visible(some_claim(), 20) is None and find_visible(some_claim(spread=0.5), 2) is None
    (row,) = milonga("claim", "asl", "--list", "--json").json["claims"]
    assert len(row["seeds"]) == MOST_SEEDS and row["visible"] > 0.4 > row["matters"]


@pytest.mark.parametrize("name", [*CLAIMS])
def test_one_claim_is_told_in_words_that_fit_the_terminal(name: str) -> None:
    screen = io.StringIO()
    list_claims(Console(file=screen, width=80, force_terminal=True, color_system=None), name)
    lines, words = screen.getvalue().splitlines(), " ".join(screen.getvalue().split())
    assert max(map(len, lines)) <= 80 and not re.search(r"\d\.\d{4}|True|False|None|visible:|gpu:|matters:", words)
    claim = CLAIMS.get(name)
    assert f"difference that would matter: {claim.matters:.3f}" in words
    assert f"wants a GPU: {'yes' if claim.gpu else 'no'}" in words and words.count("condition: ") == len(claim.conditions)


# What must be so first.


def reader(measured: Mapping[tuple[str, int, bool], float]) -> Any:
    return lambda one: [measured[key]] if (key := (one.metric, one.arm, one.start)) in measured else []


def test_a_condition_says_what_was_measured_and_what_should_be() -> None:
    claim = some_claim(conditions=(ROOM, LEARNS, beat_blind_choice(ACCURACY, picks="eval/verifier/best_of_k")))
    bad = {
        ("", 1, False): 0.9,
        ("", 1, True): 0.95,
        ("eval/verifier/best_of_k", 1, False): 0.3,
        (ACCURACY, 1, False): 0.4,
    }
    unmet, unknown = check_conditions(claim, reader(bad))
    assert not unknown and unmet == [
        "nothing is left to be gained: generator/accuracy of 'grpo' at its end is 0.900, and should be at most 0.85",
        "what it is compared with gets worse than it was at its start: generator/accuracy of 'grpo' at its end is 0.900, "
        "generator/accuracy of 'grpo' at its start 0.950; the difference should be at least -0.02",
        "what it is compared with picks worse than blind choice: verifier/best_of_k of 'grpo' at its end is 0.300, "
        "generator/accuracy of 'grpo' at its end 0.400; the difference should be at least 0",
    ]
    # Bounds are inclusive, 0.84 - 0.86 is -0.02, and of what nobody measured nothing is said but that.
    unmet, unknown = check_conditions(claim, reader({("", 1, False): 0.84, ("", 1, True): 0.86}))
    assert unmet == [] and unknown == ["it was not measured whether what it is compared with picks worse than blind choice"]
    assert check_conditions(some_claim(conditions=(ROOM,)), reader({("", 1, False): 0.85})) == ([], [])
    assert check_conditions(claim, reader({})) == ([], [f"it was not measured whether {each.why}" for each in claim.conditions])


def test_a_bound_is_missed_by_more_than_the_error_of_the_seeds() -> None:
    """The mean of three is 0.87 in both, with standard errors of 0.03 and 0.01."""
    claim = some_claim(conditions=(ROOM,))
    assert check_conditions(claim, lambda one: [0.81, 0.91, 0.89])[0] == []
    assert check_conditions(claim, lambda one: [0.86, 0.86, 0.89])[0] != []
    # Of a difference the pairs count: here both move together, and the end is always 0.04 below the start.
    ends = {False: [0.2, 0.4, 0.6], True: [0.24, 0.44, 0.64]}
    assert check_conditions(some_claim(conditions=(LEARNS,)), lambda one: ends[one.start])[0] != []


def test_the_p_of_a_verdict_is_that_of_the_test_it_rests_on() -> None:
    """Five values, mean 0 and standard error 0.01: 0.05 lies 5 errors away, which Student's t of 4 degrees leaves to 0.37 %."""
    half = 0.01 * stats.student_quantile(0.975, 4)
    found = {"seeds": [1, 2, 3, 4, 5], "interval": (-half, half), "p": 1.0, "reached": None}
    assert find_deciding_p(some_claim(), found, "does not hold") == pytest.approx(0.003745, rel=1e-3)
    assert find_deciding_p(some_claim(), found, "undecided") == 1.0
    assert find_deciding_p(some_claim(higher=False), found | {"interval": (-half + 0.05, half + 0.05)}, "does not hold") < 1e-3
    assert find_deciding_p(some_claim(), found | {"interval": None, "p": None}, "does not hold") is None


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=8), st.floats(-1, 1))
def test_a_one_sided_p_agrees_with_the_interval(values: list[float], bound: float) -> None:
    interval = stats.t_interval(values)
    assert interval is not None
    low, high = stats.narrow_interval(interval, len(values), 0.9)
    if high - low > 1e-6 and abs(high - bound) > 1e-9:
        assert (stats.p_below(interval, len(values), bound) < 0.05) == (high < bound)


@pytest.mark.parametrize("name", list(CLAIMS))
@pytest.mark.parametrize("full", [False, True])
def test_every_claim_can_be_planned(name: str, full: bool) -> None:
    claim = CLAIMS.get(name)
    comparison = plan_claim(claim, 5, full)
    assert claim.recipe == name and 2 <= len(claim.arms) <= 3 and claim.says.endswith(".")
    assert any(arm.recipe == name for arm in comparison.arms)
    assert comparison.reference.plan.config.eval.split == "test"
    first = 100 if claim.spread is None else 200
    assert comparison.seeds == tuple(range(first, first + 5)) and math.isfinite(claim.turns)


@pytest.mark.parametrize("name", list(CLAIMS))
def test_every_claim_has_conditions_that_its_pilot_measures(name: str) -> None:
    pilot = plan_pilot(CLAIMS.get(name))
    assert pilot is not None and pilot.seeds == PILOT_SEEDS and max(PILOT_SEEDS) < 100


def test_a_condition_on_what_no_arm_measures_is_refused() -> None:
    claim = some_claim(conditions=(Condition("it is not there", Measured("eval/verifier/f2", arm=0), most=1),))
    with pytest.raises(ConfigError, match=r"'eval/verifier/f2', which 'tango' has not.*verifier/f1"):
        plan_pilot(claim)
    assert plan_pilot(some_claim()) is None


# In whole.

OWN = """
from milonga.systems.claim import Claim, Condition

CLAIM = Claim(
    "mine", says="It learns.", arms=("grpo", "grpo:policies.generator.lr=1e-9"), metric="eval/generator/accuracy", turns=1,
    task={task}, settings={settings}, conditions=(Condition("it is too good", most={most}),), spread=0.0,
)
"""


def test_a_pilot_decides_whether_the_seeds_are_run(milonga: Command, tmp_path: Path) -> None:
    settings = {key: value for key, value in TINY.items() if key not in ("task", "turns", "seed")}
    out = tmp_path / "runs"
    for name, most in (("unmet", -1), ("met", 1)):
        (tmp_path / f"{name}.py").write_text(OWN.format(task=TINY["task"], settings=settings, most=most))
    found = milonga("claim", f"{tmp_path / 'unmet.py'}:CLAIM", "--out", str(out), "--json").json
    assert found["verdict"] == "not testable" and found["interval"] is None and found["seeds"] == [0, 1, 2]
    assert found["conditions"] == "unmet"
    assert found["unmet"][0].startswith(
        "it is too good: generator/accuracy of 'grpo: policies.generator.lr=1e-9' at its end is"
    )
    assert not out.exists() and json.loads((tmp_path / "runs-pilot" / "claim.json").read_text()) == found
    page = (tmp_path / "runs-pilot" / "report.html").read_text()
    assert "not testable" in page and "Cannot be tested so: it is too good" in page
    found = milonga("claim", f"{tmp_path / 'met.py'}:CLAIM", "--out", str(out), "--seeds", "100,", "--json").json
    assert (found["verdict"], found["unmet"], found["seeds"]) == ("undecided", [], [100]) and (out / "claim.json").is_file()
    assert found["conditions"] == "met"
    unchecked = milonga(
        "claim", f"{tmp_path / 'unmet.py'}:CLAIM", "--out", str(tmp_path / "more"), "--seeds", "100,", "--anyway", "--json"
    )
    assert unchecked.json["conditions"] == "not checked" and "No pilot has shown" in unchecked.err
    assert "No pilot has shown that it can be tested" in (tmp_path / "more" / "report.html").read_text()
    assert judge_today(unchecked.json)["unknown"] == ["no pilot has shown that it can be tested"]


def test_a_bad_folder_is_found_before_the_pilot(milonga: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    done = milonga("claim", "prime", "--out", str(tmp_path / "full"))
    assert done.code == 2 and "is not empty" in done.err and not (tmp_path / "full-pilot").exists()
    monkeypatch.chdir(tmp_path / "full")
    assert "is not empty" in milonga("claim", "prime", "--out", ".").err


def test_a_pilot_whose_runs_fail_meets_no_condition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = some_claim(conditions=(ROOM,))
    failed = [{"arm": "grpo", "seed": 1, "error": "memory"}]
    arms = {name: {"metrics": {}, "turns": 0.0, "tokens": 0.0, "flops": 0.0} for name in claim.arms}
    result = {"metric": ACCURACY, "arms": arms, "differences": [], "seeds": [0, 1, 2], "failed": failed, "out": str(tmp_path)}
    monkeypatch.setattr("milonga.claims.run_planned_comparison", lambda *given: result)
    pilot = plan_pilot(claim)
    assert pilot is not None
    found = check_claim(claim, pilot, tmp_path)
    assert found is not None and found["unmet"] == [
        "it was not measured whether nothing is left to be gained",
        "a run of the pilot failed: grpo, seed 1: memory",
    ]
    # The same pilot, whole: what the unfinished one said is gone.
    assert (tmp_path / "claim.json").is_file()
    monkeypatch.setattr("milonga.claims.run_planned_comparison", lambda *given: result | {"failed": []})
    monkeypatch.setattr("milonga.claims.check_conditions", lambda *given: ([], []))
    assert check_claim(claim, pilot, tmp_path) is None and not (tmp_path / "claim.json").exists()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_results_have_the_verdict_that_their_claim_gives_today(path: Path) -> None:
    found = json.loads(path.read_text())
    assert found["today"] == judge_today(found)
    assert found["verdict"] in ("holds", "does not hold", "undecided") or "conditions" in found


def test_a_threshold_is_part_of_what_is_found() -> None:
    result = ends_of([0.9] * 6, [0.1] * 6)
    difference = {"arm": "tango", "metric": ACCURACY, "values": [0.8] * 6, "interval": (0.8, 0.8), "mean": 0.8, "p": 0.0}
    cost = dict.fromkeys(("turns", "tokens", "flops"), 1.0)
    result["arms"] = {name: arm | cost for name, arm in result["arms"].items()}
    for arm in result["arms"].values():
        arm["metrics"][ACCURACY]["final"] = 0.5
    result |= {"differences": [difference | {"problems": None, "smallest_effect": None}], "seeds": list(range(6))}
    found = summarise_claim(some_claim(threshold=0.5), result | {"failed": [], "out": "."}, "met")
    assert (found["verdict"], found["p"], found["reached"]["wins"], found["pairs"]) == ("holds", 2 / 2**6, 6, 6)
    # What was tested under its conditions is kept as it was judged then.
    assert judge_today(found)["verdict"] == "holds"
