"""Claims: what must be so before one is tested, how many seeds it takes, and what may be said in the end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import TINY
from helpers import Command
from keep_claims import DOCS, judge_today
from milonga.claims import (
    PILOT_SEED,
    count_reached,
    count_seeds,
    find_unmet,
    judge_claim,
    judge_reached,
    plan_claim,
    plan_pilot,
    summarise_claim,
)
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
    assert count_seeds(some_claim(spread=0.05)) == count_seeds(some_claim(effect=0.1, spread=0.1)) == 10
    assert len(plan_claim(some_claim(spread=0.05)).seeds) == 10 and len(plan_claim(some_claim(spread=0.05), 3).seeds) == 3


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=12))
def test_an_interval_of_another_level_is_that_of_the_same_values(values: list[float]) -> None:
    whole = stats.t_interval(values)
    assert whole is not None
    assert stats.narrow_interval(whole, len(values), stats.LEVEL) == pytest.approx(whole)
    low, high = stats.narrow_interval(whole, len(values), 0.9)
    assert whole[0] - 1e-12 <= low <= high <= whole[1] + 1e-12


# What must be so first.


def reader(measured: Mapping[tuple[str, int, bool], float]) -> Any:
    return lambda one: measured.get((one.metric, one.arm, one.start))


def test_a_condition_says_what_was_measured_and_what_should_be() -> None:
    claim = some_claim(conditions=(ROOM, LEARNS, beat_blind_choice(ACCURACY, picks="eval/verifier/best_of_k")))
    bad = {
        ("", 1, False): 0.9,
        ("", 1, True): 0.95,
        ("eval/verifier/best_of_k", 1, False): 0.3,
        (ACCURACY, 1, False): 0.4,
    }
    assert find_unmet(claim, reader(bad)) == [
        "nothing is left to be gained: generator/accuracy of 'grpo' at its end is 0.900, and should be at most 0.85",
        "what it is compared with gets worse than it was at its start: generator/accuracy of 'grpo' at its end is 0.900, "
        "generator/accuracy of 'grpo' at its start 0.950; the difference should be at least -0.02",
        "what it is compared with picks worse than blind choice: verifier/best_of_k of 'grpo' at its end is 0.300, "
        "generator/accuracy of 'grpo' at its end 0.400; the difference should be at least 0",
    ]
    assert find_unmet(claim, reader({("", 1, False): 0.85, ("", 1, True): 0.86})) == []  # bounds are inclusive
    assert find_unmet(claim, reader({})) == []  # what nobody measured


@pytest.mark.parametrize("name", list(CLAIMS))
@pytest.mark.parametrize("full", [False, True])
def test_every_claim_can_be_planned(name: str, full: bool) -> None:
    claim = CLAIMS.get(name)
    comparison = plan_claim(claim, 5, full)
    assert claim.recipe == name and 2 <= len(claim.arms) <= 3 and claim.says.endswith(".")
    assert any(arm.recipe == name for arm in comparison.arms)
    assert comparison.reference.plan.config.eval.split == "test"
    assert comparison.seeds == (100, 101, 102, 103, 104) and math.isfinite(claim.turns)


@pytest.mark.parametrize("name", list(CLAIMS))
def test_every_claim_has_conditions_that_its_pilot_measures(name: str) -> None:
    pilot = plan_pilot(CLAIMS.get(name))
    assert pilot is not None and pilot.seeds == (PILOT_SEED,) and PILOT_SEED < 100


def test_a_condition_on_what_no_arm_measures_is_refused() -> None:
    claim = some_claim(conditions=(Condition("it is not there", Measured("eval/verifier/f2", arm=0)),))
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
    assert found["verdict"] == "not testable" and found["interval"] is None and found["seeds"] == [0]
    assert found["unmet"][0].startswith(
        "it is too good: generator/accuracy of 'grpo: policies.generator.lr=1e-9' at its end is"
    )
    assert not out.exists() and json.loads((tmp_path / "runs-pilot" / "claim.json").read_text()) == found
    assert "not testable" in (tmp_path / "runs-pilot" / "report.html").read_text()
    found = milonga("claim", f"{tmp_path / 'met.py'}:CLAIM", "--out", str(out), "--seeds", "100,", "--json").json
    assert (found["verdict"], found["unmet"], found["seeds"]) == ("undecided", [], [100]) and (out / "claim.json").is_file()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_results_have_the_verdict_that_their_claim_gives_today(path: Path) -> None:
    found = json.loads(path.read_text())
    assert found["today"] == judge_today(found) and found["verdict"] in ("holds", "does not hold", "undecided")


def test_a_threshold_is_part_of_what_is_found() -> None:
    result = ends_of([0.9] * 6, [0.1] * 6)
    difference = {"arm": "tango", "metric": ACCURACY, "values": [0.8] * 6, "interval": (0.8, 0.8), "mean": 0.8, "p": 0.0}
    cost = dict.fromkeys(("turns", "tokens", "flops"), 1.0)
    result["arms"] = {name: arm | cost for name, arm in result["arms"].items()}
    for arm in result["arms"].values():
        arm["metrics"][ACCURACY]["final"] = 0.5
    result |= {"differences": [difference | {"problems": None, "smallest_effect": None}], "seeds": list(range(6))}
    found = summarise_claim(some_claim(threshold=0.5), result | {"failed": [], "out": "."})
    assert (found["verdict"], found["p"], found["reached"]["wins"]) == ("holds", 2 / 2**6, 6)
