"""The health of a run: each finding by figures on either side of its bound, and advice that the run's config takes."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import milonga
from cases import TINY
from helpers import PROPERTY
from milonga.config import PolicySection, find_section, parse_setting
from milonga.health import BADGES, Finding, find_health
from milonga.resolve import Plan, resolve
from milonga.systems.index import RECIPES
from milonga.tasks.base import PassRate
from short import SHORT

SETTINGS: dict[str, Any] = {"recipe": "tango", "batch": {"problems": 64, "rollouts": 8}, "eval": {"problems": 100}}
SETTINGS |= {
    "options": {"warmup": 6, "n_verifier": 1},
    "policies": {"generator": {"objective": {"preset": "grpo"}}, "verifier": {"objective": {"preset": "grpo"}}},
}
WELL = {
    "learner": "generator",
    "signal": 0.5,
    "rollouts/generator/accuracy": 0.4,
    "rollouts/generator/invalid_rate": 0.02,
    "rollouts/generator/truncated_rate": 0.02,
    "rollouts/generator/length": 100.0,
    "rollouts/verifier/positive_rate": 0.4,
    "rollouts/verifier/share_right": 0.4,
    "rollouts/verifier/invalid_rate": 0.0,
    "learn/generator/entropy": 0.3,
    "learn/generator/kl": 0.01,
    "learn/generator/mismatch": 0.003,
    "learn/generator/lr": 1e-6,
    "learn/generator/peak_gib": 10.0,
    "learn/verifier/loss": 0.0,
}


def make_rows(**changed: Any) -> list[dict[str, Any]]:
    """A start and six turns that are well but for these figures."""
    more = {key.replace("__", "/"): value for key, value in changed.items()}
    return [{"turn": 0, "learner": None, "eval/hacking_gap": 0.0}, *({"turn": turn} | WELL | more for turn in range(1, 7))]


def find(rows: Sequence[Mapping[str, Any]], **more: Any) -> list[Finding]:
    return find_health(rows, SETTINGS | more.pop("settings", {}), **more)


def test_a_run_that_is_well_has_no_findings() -> None:
    assert find(make_rows()) == [] and find([]) == [] and find(make_rows()[:1]) == []


def test_what_was_cut_is_not_called_unreadable_too() -> None:
    """It mostly cannot be read, and another prompt would not help."""
    for cut, unreadable in ((1.0, 0.94), (1.0, 1.0), (0.83, 1.0)):
        rows = make_rows(rollouts__generator__truncated_rate=cut, rollouts__generator__invalid_rate=unreadable)
        assert [(one.badge, one.severe) for one in find(rows)] == [("truncated", True)]
    rows = make_rows(rollouts__generator__truncated_rate=0.3, rollouts__generator__invalid_rate=0.95)
    assert [(one.badge, one.severe) for one in find(rows)] == [("unreadable", True), ("truncated", False)]


def test_what_is_too_little_to_be_called_cut_may_be_unreadable() -> None:
    """Of eight outputs two were cut, which may be an accident, and three cannot be read."""
    rows = [*make_rows()[:1], WELL | {"rollouts/generator/truncated_rate": 0.25, "rollouts/generator/invalid_rate": 0.375}]
    few = {"batch": {"problems": 2, "rollouts": 4}}
    assert [one.badge for one in find(rows, settings=few)] == ["unreadable"]


def test_the_start_alone_says_nothing_of_what_a_run_did() -> None:
    """Before anything has learned no verifier was trained yet, and none could have prevented a guess."""
    ill = {"hacking_gap": 0.5, "verifier/f1": 0.1, "verifier/trivial/error_modal": 0.3}
    ill |= {"generator/accuracy": 0.9, "generator/sound_accuracy": 0.1}
    start = {"turn": 0, "learner": None, **{f"eval/{name}": value for name, value in ill.items()}}
    assert find([start]) == []
    assert {one.badge for one in find([start, *make_rows()[1:]])} == {"gap", "trivial F1", "guessed"}


def test_a_verifier_whose_turns_come_is_not_called_untrained() -> None:
    one_sided = {"eval/verifier/positive_rate": 1.0, "eval/verifier/share_right": 0.4}
    (found,) = find([{"turn": 0, "learner": None, **one_sided}])
    assert found.badge == "one-sided" and found.help == "--set options.warmup=12"
    (found,) = find([{"turn": 0, "learner": None, **one_sided}], settings={"options": {}})
    assert found.help == ""
    rows = [{key: value for key, value in row.items() if key != "learn/verifier/loss"} for row in make_rows()]
    rows[-1]["eval/hacking_gap"] = 0.5
    assert [one.help for one in find(rows)] == ["--set options.n_verifier=2"], "after the generator's first turns"


def test_a_single_verdict_that_can_be_read_is_not_called_one_sided() -> None:
    """Of four checks, one: what it says is what a coin may say. Counted by the metrics, else by the settings."""
    small = {"batch": {"problems": 2, "rollouts": 2}, "eval": {"problems": 2}}
    said = {"verifier/positive_rate": 0.25, "verifier/share_right": 0.0, "verifier/unparsed_rate": 0.75}
    counts = {"verifier/judged_right": 0.0, "verifier/judged_wrong": 4.0}
    start = {"turn": 0, "learner": None, **{f"eval/{name}": value for name, value in (said | counts).items()}}
    assert find([start], settings=small) == []
    assert find([start], settings={"eval": {"problems": 64}}) == [], "the metrics know how many were judged"
    turn = {"turn": 1, "learner": "verifier", **{f"rollouts/{name}": value for name, value in said.items()}}
    assert find([turn], settings=small) == [], "of an older version"
    turn |= {f"rollouts/{name}": value for name, value in counts.items()}
    for turns, badges in ((2, []), (3, ["one-sided"])):
        assert [one.badge for one in find([turn] * turns, settings=small)] == badges, f"{turns} verdicts"


def test_what_cannot_be_read_may_be_paid_by_rewards_of_ones_own() -> None:
    rows = make_rows(rollouts__generator__invalid_rate=1.0)
    own = {"rewards": [{"function": "mine.py:short", "weight": 1.0}]}
    (found,) = find(rows, settings=own)
    assert not found.severe and "another model" not in str(found) and find(rows)[0].severe
    # Whom they pay besides the generator, the flow of credit says.
    flow = {"flow/rewards>partner": 1.0, "flow/answers>verifier": 1.0}
    unread = {"rollouts/partner/invalid_rate": 1.0, "rollouts/verifier/invalid_rate": 1.0}
    found_all = find([row | flow | unread for row in make_rows()], settings=own)
    assert {one.subject: one.severe for one in found_all} == {"partner": False, "verifier": True}
    # Where all share one policy, its flow is that of all but the judge.
    shared = {"flow/rewards>generator": 1.0, "rollouts/reader/invalid_rate": 1.0, "rollouts/verifier/invalid_rate": 1.0}
    found_all = find([row | shared for row in make_rows()], settings=own | {"policies": {"generator": {}}})
    assert {one.subject: one.severe for one in found_all} == {"reader": False, "verifier": True}


def test_each_finding_has_its_sentence_with_the_figure_and_its_setting() -> None:
    """Beyond the bound it is said, to the word; just inside of it, nothing is."""
    said: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "only 19 % of what the generator learns from teaches it anything: --set batch.rollouts=16": (
            {"signal": 0.19},
            {"signal": 0.2},
        ),
        "96 % of the generator's answers are wrong, so few of its groups have both outcomes: --set task.pass_rate=[0.1,0.9]": (
            {"signal": 0.1, "rollouts__generator__accuracy": 0.04},
            {"signal": 0.3, "rollouts__generator__accuracy": 0.04},
        ),
        "20 % of the generator's outputs cannot be read: 'milonga show' says why; try another model or "
        "another prompt (policies.generator.prompt)": (
            {"rollouts__generator__invalid_rate": 0.2},
            {"rollouts__generator__invalid_rate": 0.19},
        ),
        "10 % of the generator's outputs are cut at the limit of their length: raise --max-tokens (sampling.max_tokens)": (
            {"rollouts__generator__truncated_rate": 0.1},
            {"rollouts__generator__truncated_rate": 0.09},
        ),
        # 100 tokens of 0.0069 nats are ln 2 = 0.693: half of all pairs of samples are the same text.
        "the generator's entropy is 0.0069 a token: most samples of a prompt are the same text: "
        "--set policies.generator.objective.entropy_coef=0.001": (
            {"learn__generator__entropy": 0.0069},
            {"learn__generator__entropy": 0.0070},
        ),
        "the generator is 0.50 away from its start (KL a token): --set policies.generator.lr=5e-07": (
            {"learn__generator__kl": 0.5},
            {"learn__generator__kl": 0.49},
        ),
        "the log-probabilities of the generator's sampler and learner differ by 0.050: "
        "--set policies.generator.dtype=float32": (
            {"learn__generator__mismatch": 0.05},
            {"learn__generator__mismatch": 0.049},
        ),
        "the verifier calls 81 % of the solutions right, and 40 % are: its verdicts are one-sided: --set options.warmup=12": (
            {"rollouts__verifier__positive_rate": 0.81},
            {"rollouts__verifier__positive_rate": 0.8},
        ),
        "the verifier calls 19 % of the solutions right, and 40 % are: its verdicts are one-sided: --set options.warmup=12": (
            {"rollouts__verifier__positive_rate": 0.19},
            {"rollouts__verifier__positive_rate": 0.2},
        ),
        "the verifier calls 95 % of the solutions right, and 60 % are: its verdicts are one-sided: --set options.warmup=12": (
            {"rollouts__verifier__share_right": 0.6, "rollouts__verifier__positive_rate": 0.95},
            {"rollouts__verifier__share_right": 0.6, "rollouts__verifier__positive_rate": 0.94},
        ),
        "the share of solutions that the verifier calls right is 11 percentage points less than are: it is too strict: "
        "--set options.n_verifier=2": ({"eval__hacking_gap": -0.11}, {"eval__hacking_gap": -0.09}),
        "the verifier's F1 on first errors, 0.300, is not above 0.300, which needs no look at the steps: knowing whether there "
        "is an error, and naming the most common place: --set options.warmup=12": (
            {"eval__verifier__f1": 0.3, "eval__verifier__trivial__error_modal": 0.3},
            {"eval__verifier__f1": 0.31, "eval__verifier__trivial__error_modal": 0.3},
        ),
        "11 % of the solutions have a right answer and a wrong step: answers may be guessed: a verifier's step rewards are for "
        "that": (
            {"eval__generator__accuracy": 0.5, "eval__generator__sound_accuracy": 0.39},
            {"eval__generator__accuracy": 0.5, "eval__generator__sound_accuracy": 0.41},
        ),
        "all of the generator's last 6 updates were skipped: something in them was not finite: "
        "--set policies.generator.lr=5e-07": ({"learn__generator__skipped": 1}, {"learn__generator__skipped": 0}),
        "6 samples of the last 6 turns were left out: too long, or their grader failed: the lines of the run say which": (
            {"dropped": 1},
            {"dropped": 0},
        ),
        "the verifier's score has moved 10 points away from the true accuracy, to 10 above it: the generator may be fooling "
        "it: --set options.n_verifier=2": ({"eval__hacking_gap": 0.1}, {"eval__hacking_gap": 0.09}),
    }
    for text, (beyond, inside) in said.items():
        assert [str(one) for one in find(make_rows(**beyond))] == [text]
        assert find(make_rows(**inside)) == [], text


def test_verdicts_are_compared_with_the_solutions_that_were_judged() -> None:
    """A perfect verifier of pairs: 5 % of the generator's solutions are right, half of its pairs, and it says so of both."""
    pairs = make_rows(rollouts__generator__accuracy=0.05)
    for at, row in enumerate(pairs[1:]):
        row["rollouts/verifier/positive_rate"] = row["rollouts/verifier/share_right"] = (0.05, 0.5)[at % 2]
    assert find(pairs) == []
    # Without the share of an older version, the generator's accuracy has to do.
    for row in pairs:
        row.pop("rollouts/verifier/share_right", None)
    assert [one.badge for one in find(pairs)] == ["one-sided"]


def test_a_verdict_that_cannot_be_read_takes_no_side() -> None:
    """Of 100 verdicts 75 cannot be read and 10 say right: of those that can be read 40 %, as many as are right."""
    share = {"rollouts__verifier__positive_rate": 0.1, "rollouts__verifier__unparsed_rate": 0.75}
    assert find(make_rows(**share)) == []
    invalid = find(make_rows(**share, rollouts__verifier__invalid_rate=0.75))
    assert [(one.badge, one.subject) for one in invalid] == [("unreadable", "verifier")]
    # 25 of 25 say right, and 40 % are.
    all_right = make_rows(rollouts__verifier__positive_rate=0.25, rollouts__verifier__unparsed_rate=0.75)
    assert [one.text for one in find(all_right)] == [
        "the verifier calls 100 % of the solutions right, and 40 % are: its verdicts are one-sided"
    ]
    nothing_left = make_rows(rollouts__verifier__positive_rate=0.0, rollouts__verifier__unparsed_rate=0.95)
    assert find(nothing_left) == []


def test_a_judge_that_is_trained_is_advised_more_of_it_and_another_one_otherwise() -> None:
    """By its own policy or the one that all share; by the options that the recipe has."""

    def advise(rows: Sequence[Mapping[str, Any]], options: dict[str, Any], *policies: str) -> str:
        (found,) = find(rows, settings={"options": options, "policies": {name: {} for name in policies}})
        assert found.badge == "one-sided"
        return found.help

    trained = make_rows(rollouts__verifier__positive_rate=1.0)
    assert advise(trained, {"warmup": 3, "n_verifier": 2}, "generator", "verifier") == "--set options.warmup=6"
    assert advise(trained, {"n_verifier": 2}, "generator", "verifier") == "--set options.n_verifier=4"
    assert advise(trained, {"warmup": 0, "n_verifier": 2}, "generator", "verifier") == "--set options.n_verifier=4"
    assert advise(trained, {}, "generator", "verifier") == "give it more of the turns"
    still = [{key: value for key, value in row.items() if key != "learn/verifier/loss"} for row in trained]
    other = "take a recipe that trains it, or a stronger one (policies.verifier.model)"
    assert advise(still, {"warmup": 3}, "generator", "verifier") == other
    shared = [row | {"learn/generator/loss": 0.1} for row in still]
    assert advise(shared, {}, "generator") == "give it more of the turns"


def test_a_gap_that_began_below_zero_has_grown_from_zero() -> None:
    """From 50 points below the truth to 12 above it: 12 points away from it, and not 62."""
    rows = make_rows(eval__hacking_gap=0.12)
    rows[0]["eval/hacking_gap"] = -0.5
    (found,) = find(rows)
    assert found.text.startswith("the verifier's score has moved 12 points away from the true accuracy, to 12 above it")
    # Sixteen problems cannot tell 12 points from none, wherever it began.
    assert find(rows, settings={"eval": {"problems": 16}}) == []


def test_problems_are_only_chosen_by_their_pass_rate_where_some_may_have_one() -> None:
    """Of a model that solves none, or all, no problem would be kept and the run could not begin."""

    def advise(accuracy: float) -> str:
        (found,) = find(make_rows(signal=0.0, rollouts__generator__accuracy=accuracy))
        assert found.badge == "no signal"
        return found.help

    assert advise(0.03) == advise(0.97) == "--set task.pass_rate=[0.1,0.9]"
    assert advise(0.0) == advise(0.02) == "take easier problems, or a stronger model (policies.generator.model)"
    assert advise(1.0) == advise(0.98) == "take harder problems"


def test_two_agents_with_one_badge_are_two_findings() -> None:
    cut = find(make_rows(rollouts__generator__truncated_rate=0.95, rollouts__verifier__truncated_rate=0.12))
    assert [(one.badge, one.subject, one.severe) for one in cut] == [
        ("truncated", "generator", True),
        ("truncated", "verifier", False),
    ]


def test_a_run_shows_the_findings_of_each_of_its_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four tokens the generator's are all cut, and nothing can be read of the verifier's eight; on a console whose lines
    stay, both are said."""
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    short = {**TINY, "sampling": {"max_tokens": 4}, "options": {"warmup": 0, "n_generator": 1}}
    milonga.run("tango", turns=1, out=tmp_path / "run", settings=short)
    said = screen.getvalue()
    assert "health: truncated: 100 % of the generator's outputs are cut at the limit" in said
    assert "health: unreadable: 100 % of the verifier's outputs cannot be read" in said


def test_a_phase_that_ended_long_ago_is_over() -> None:
    """A verifier that was bad in a warm-up, a policy that was away, a learner without a signal: fifty turns later no more."""
    begun = make_rows(
        learner="verifier",
        signal=0.0,
        rollouts__verifier__truncated_rate=0.9,
        rollouts__verifier__positive_rate=1.0,
        learn__verifier__kl=2.0,
        learn__verifier__entropy=0.1,
    )
    assert {one.badge for one in find(begun)} == {"truncated", "no signal", "KL away", "one-sided"}
    alone = {key: value for key, value in WELL.items() if "verifier" not in key}
    later = [{"turn": turn} | alone for turn in range(7, 57)]
    assert find([*begun, *later]) == []
    assert find([*begun, *later[1:]]) != []
    # Evaluations are rare, so the last of them is as true as ever.
    gaps = [*make_rows(eval__hacking_gap=0.3), *({"turn": turn} | alone for turn in range(7, 107))]
    assert [one.badge for one in find(gaps)] == ["gap grows"]


def test_a_mismatch_is_advised_nothing_that_is_so_already() -> None:
    def advise(dtype: str, sampler: str) -> str:
        settings = {"policies": {"generator": {"dtype": dtype}}, "sampling": {"sampler": sampler, "max_tokens": 9}}
        (found,) = find(make_rows(learn__generator__mismatch=0.1), settings=settings)
        assert found.badge == "mismatch"
        return found.help

    assert advise("bfloat16", "auto") == advise("auto", "vllm") == "--set policies.generator.dtype=float32"
    assert advise("float32", "vllm") == "--set sampling.sampler=auto"
    assert advise("float32", "auto") == ""


def test_what_few_outputs_show_is_not_said_yet() -> None:
    """Two of twenty outputs; verdicts on four problems; a gap on sixteen: each would be said of a larger batch."""
    small = {"batch": {"problems": 2, "rollouts": 2}, "eval": {"problems": 16}}
    assert find(make_rows(rollouts__generator__truncated_rate=0.1), settings=small) == []
    assert [one.badge for one in find(make_rows(rollouts__generator__truncated_rate=0.15), settings=small)] == ["truncated"]
    # One over the square root of ten problems is 0.32, of sixteen 0.25.
    assert find(make_rows(rollouts__verifier__positive_rate=0.1), settings=small) == []
    assert [one.badge for one in find(make_rows(rollouts__verifier__positive_rate=0.05), settings=small)] == ["one-sided"]
    assert find(make_rows(eval__hacking_gap=0.24), settings=small) == []
    assert [one.badge for one in find(make_rows(eval__hacking_gap=0.25), settings=small)] == ["gap grows"]


@pytest.mark.parametrize(("problems", "least"), [(8, 8**-0.5), (16, 0.25), (64, 0.125), (100, 0.1), (1000, 0.1), (-4, 1.0)])
def test_guesses_and_gaps_are_said_by_the_same_bound(problems: int, least: float) -> None:
    """One over the root of the number of problems, and 10 points at least; of a number that cannot be, the most."""
    settings = {"eval": {"problems": problems}}
    for badge, make in (
        ("guessed", lambda less: {"eval__generator__accuracy": 1.0, "eval__generator__sound_accuracy": 1.0 - less}),
        ("gap grows", lambda more: {"eval__hacking_gap": more}),
    ):
        assert find(make_rows(**make(least - 0.01)), settings=settings) == []
        assert [one.badge for one in find(make_rows(**make(least + 1e-9)), settings=settings)] == [badge]


def test_who_has_nothing_to_learn_beside_one_that_learns_is_no_alarm() -> None:
    rows = [*make_rows(), {"turn": 7, "learner": "verifier", "signal": 0.0}]
    assert [(one.badge, one.severe) for one in find(rows)] == [("no signal", False)]


def test_memory_and_a_slow_grader_are_seen_beside_the_metrics() -> None:
    """90 % of 11.1 GiB are 9.99; 30 % of four seconds are 1.2."""
    (full,) = find(make_rows(), machine={"gpu_gib": [80.0, 11.1]})
    assert str(full) == "learning the generator held 10.0 of 11.1 GiB of the GPU: --set policies.generator.recompute=true"
    assert find(make_rows(), machine={"gpu_gib": [11.2]}) == []
    # Resumed on another GPU after turn 3: what was held before, was held on that one.
    rows = [row | ({"learn/generator/peak_gib": 70.0} if 0 < row["turn"] <= 3 else {}) for row in make_rows()]
    assert find(rows, machine={"turn": 3, "gpu_gib": [24.0]}) == []
    assert [one.badge for one in find(rows, machine={"turn": 2, "gpu_gib": [24.0]})] == ["memory"]
    (slow,) = find(make_rows(), timing=[{"turn": 0, "eval_s": 60.0}, {"turn": 1, "turn_s": 4.0, "idle_s": 1.2}])
    assert slow.text == "30 % of a turn, 1.2 s, go into prompts, parsing and grading"
    for fine in ({"turn": 1, "turn_s": 4.0, "idle_s": 1.1}, {"turn": 1, "turn_s": 1.0, "idle_s": 0.9}):
        assert find(make_rows(), timing=[fine]) == []


def test_what_a_run_said_when_it_stalled_is_its_finding() -> None:
    rows = make_rows(signal=0.0)
    (found,) = find(rows)
    assert found.severe and found.text == "nothing of what the generator learns from teaches it anything"
    rows[-1]["stalled"] = "the generator found nothing to learn from in 5 turns in a row: its reason"
    assert [str(one) for one in find(rows)] == [rows[-1]["stalled"]]


def test_what_is_meant_to_be_so_is_no_finding() -> None:
    """A policy that imitates becomes sure; one that is always right has nothing to explore; samples of earlier turns differ."""
    sure = make_rows(learn__generator__entropy=0.0)
    assert [one.badge for one in find(sure)] == ["entropy gone"]
    imitating = {"policies": {"generator": {"objective": {"preset": "cross_entropy"}}}}
    assert find(sure, settings=imitating) == []
    assert find(make_rows(learn__generator__entropy=0.0, rollouts__generator__accuracy=0.95)) == []
    assert find(make_rows(learn__generator__mismatch=0.3), settings={"staleness": 1}) == []


def test_figures_are_of_the_last_turns_and_before_the_first_of_the_evaluation() -> None:
    rows = make_rows()
    rows[1]["rollouts/generator/truncated_rate"] = 1.0  # the first of six: no longer recent
    assert find(rows) == []
    (found,) = find([{"turn": 0, "learner": None, "eval/generator/invalid_rate": 0.0, "eval/generator/truncated_rate": 0.95}])
    assert found.badge == "truncated" and found.severe
    doubled = find(make_rows(rollouts__generator__truncated_rate=0.5), settings={"sampling": {"max_tokens": 96}})
    assert [one.help for one in doubled] == ["--set sampling.max_tokens=192"]


def test_what_is_severe_comes_first_and_data_is_plain() -> None:
    found = find(make_rows(rollouts__generator__truncated_rate=0.95, learn__generator__kl=2.0, signal=0.1))
    assert [(one.badge, one.severe) for one in found] == [("truncated", True), ("no signal", False), ("KL away", False)]
    assert found[0].to_json() == {
        "badge": "truncated",
        "text": "95 % of the generator's outputs are cut at the limit of their length",
        "help": "raise --max-tokens (sampling.max_tokens)",
        "settings": ["sampling.max_tokens"],
        "severe": True,
        "subject": "generator",
    }


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.just(10**400) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["generator", "objective", "preset", "lr"]), inner)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from([*WELL, "stalled", "eval/hacking_gap", "eval/generator/accuracy", "turn_s", "idle_s", "gpu_gib"])
TABLES = st.sampled_from(["policies", "batch", "options", "sampling", "staleness", "task", "rewards", "dialect"])


@PROPERTY
@given(st.lists(st.dictionaries(KEYS, ANYTHING), max_size=4), st.dictionaries(TABLES, ANYTHING))
def test_no_rows_or_settings_of_a_stranger_make_it_fail(rows: list[dict[str, Any]], settings: dict[str, Any]) -> None:
    for machine in (None, *rows):
        for one in find_health(rows, settings, rows, machine):
            assert one.badge in BADGES and one.text


def has_key(plan: Plan, key: str) -> bool:
    """Whether a run's config has a key: of the config itself, or an option of its task or recipe."""
    first, _, rest = key.partition(".")
    if first == "task":
        return rest in plan.task.Options.model_fields or rest in PassRate.model_fields
    if first == "options":
        return rest in plan.recipe.Options.model_fields
    if first == "policies":
        return rest.partition(".")[0] in plan.config.policies and rest.partition(".")[2] in PolicySection.model_fields
    current: Any = type(plan.config)
    for part in key.split("."):
        field = getattr(current, "model_fields", {}).get(part)
        if field is None:
            return False
        current = find_section(field.annotation)
    return True


ILL = {
    "signal": 0.1,
    "rollouts__generator__truncated_rate": 0.5,
    "rollouts__generator__invalid_rate": 1.0,
    "rollouts__verifier__positive_rate": 0.99,
    "eval__hacking_gap": 0.5,
}


@pytest.mark.parametrize("recipe", [*RECIPES])
def test_every_setting_that_is_advised_is_one_that_the_run_takes(recipe: str) -> None:
    """All findings at once, of every policy: a value that is advised is accepted, a key that is named exists."""
    layers = [TINY, SHORT[recipe].settings, {"recipe": recipe}]
    plan = resolve(layers)
    figures = {"entropy": 1e-6, "kl": 2.0, "mismatch": 0.5, "lr": 1e-4, "peak_gib": 79.0, "loss": 0.0, "skipped": 1}
    ill = ILL | {f"learn__{policy}__{name}": value for policy in plan.policies for name, value in figures.items()}
    ill |= {
        f"rollouts__{agent}__{name}": value
        for agent in plan.agents
        for name, value in {"length": 10.0, "truncated_rate": 0.5, "invalid_rate": 1.0}.items()
    }
    rows = [
        {key: value for key, value in row.items() if not key.startswith("rollouts/") or key.split("/")[1] in plan.agents}
        for row in make_rows(**ill, learner=plan.recipe.lead)
    ]
    settings = plan.config.model_dump(mode="json")
    slow = [{"turn": 1, "turn_s": 10.0, "idle_s": 9.0}]
    found = find_health(rows, settings, slow, {"gpu_gib": [80.0]})
    assert {"unreadable", "truncated", "skipped", "KL away", "mismatch", "memory", "slow grader"} <= {
        one.badge for one in found
    }
    for one in found:
        if one.help.startswith("--set "):
            resolve([*layers, parse_setting(one.help.removeprefix("--set "))])
        else:
            assert all(has_key(plan, key) for key in one.settings), one


def test_the_bound_of_equal_samples_is_what_entropy_says() -> None:
    """Of two texts with chances p and 1 - p, the chance that two samples agree is at least exp(-entropy)."""
    for p in (0.5, 0.9, 0.99):
        entropy = -(p * math.log(p) + (1 - p) * math.log(1 - p))
        assert p**2 + (1 - p) ** 2 >= math.exp(-entropy) - 1e-12
