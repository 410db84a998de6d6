"""The health of a run: each finding by figures on either side of its bound, and advice that the run's config takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import TINY
from helpers import PROPERTY
from milonga.config import PolicySection, find_section, parse_setting
from milonga.health import BADGES, Finding, find_health, to_json
from milonga.resolve import Plan, resolve
from milonga.systems.index import RECIPES
from milonga.tasks.base import PassRate
from short import SHORT

SETTINGS = {"recipe": "tango", "batch": {"rollouts": 8}, "options": {"warmup": 6, "n_verifier": 1}}
SETTINGS |= {"policies": {"generator": {"objective": {"preset": "grpo"}}, "verifier": {"objective": {"preset": "grpo"}}}}
WELL = {
    "learner": "generator",
    "signal": 0.5,
    "rollouts/generator/accuracy": 0.4,
    "rollouts/generator/invalid_rate": 0.02,
    "rollouts/generator/truncated_rate": 0.02,
    "rollouts/generator/length": 100.0,
    "rollouts/verifier/positive_rate": 0.4,
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


def test_each_finding_has_its_sentence_with_the_figure_and_its_setting() -> None:
    """Beyond the bound it is said, to the word; just inside of it, nothing is."""
    said: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "only 19 % of what the generator samples teaches it anything: --set batch.rollouts=16": (
            {"signal": 0.19},
            {"signal": 0.2},
        ),
        "96 % of the generator's answers are wrong, so few of its groups have both outcomes: --set task.pass_rate=[0.1,0.9]": (
            {"signal": 0.1, "rollouts__generator__accuracy": 0.04, "rollouts__verifier__positive_rate": 0.05},
            {"signal": 0.3, "rollouts__generator__accuracy": 0.04, "rollouts__verifier__positive_rate": 0.05},
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
        "the verifier calls 81 % of the solutions right, of which 40 % are: its verdicts are one-sided: "
        "--set options.warmup=12": (
            {"rollouts__verifier__positive_rate": 0.81},
            {"rollouts__verifier__positive_rate": 0.8},
        ),
        "the verifier calls 19 % of the solutions right, of which 40 % are: its verdicts are one-sided: "
        "--set options.warmup=12": (
            {"rollouts__verifier__positive_rate": 0.19},
            {"rollouts__verifier__positive_rate": 0.2},
        ),
        "the verifier calls 95 % of the solutions right, of which 60 % are: its verdicts are one-sided: "
        "--set options.warmup=12": (
            {"rollouts__generator__accuracy": 0.6, "rollouts__verifier__positive_rate": 0.95},
            {"rollouts__generator__accuracy": 0.6, "rollouts__verifier__positive_rate": 0.94},
        ),
        "the verifier's score has moved 10 points away from the true accuracy, to 10 above it: the generator may be fooling "
        "it: --set options.n_verifier=2": ({"eval__hacking_gap": 0.1}, {"eval__hacking_gap": 0.09}),
    }
    for text, (beyond, inside) in said.items():
        assert [str(one) for one in find(make_rows(**beyond))] == [text]
        assert find(make_rows(**inside)) == [], text


def test_memory_and_a_slow_grader_are_seen_beside_the_metrics() -> None:
    """90 % of 11.1 GiB are 9.99; 30 % of four seconds are 1.2."""
    (full,) = find(make_rows(), machine={"gpu_gib": [80.0, 11.1]})
    assert str(full) == "learning the generator held 10.0 of 11.1 GiB of the GPU: --set policies.generator.recompute=true"
    assert find(make_rows(), machine={"gpu_gib": [11.2]}) == []
    (slow,) = find(make_rows(), timing=[{"turn": 0, "eval_s": 60.0}, {"turn": 1, "turn_s": 4.0, "idle_s": 1.2}])
    assert slow.text == "30 % of a turn, 1.2 s, go into prompts, parsing and grading"
    for fine in ({"turn": 1, "turn_s": 4.0, "idle_s": 1.1}, {"turn": 1, "turn_s": 1.0, "idle_s": 0.9}):
        assert find(make_rows(), timing=[fine]) == []


def test_what_a_run_said_when_it_stalled_is_its_finding() -> None:
    rows = make_rows(signal=0.0)
    (found,) = find(rows)
    assert found.severe and found.text == "nothing of what the generator samples teaches it anything"
    rows[-1]["stalled"] = "the generator found nothing to learn from in 5 turns in a row: its reason"
    assert [str(one) for one in find(rows)] == [rows[-1]["stalled"]]


def test_what_is_meant_to_be_so_is_no_finding() -> None:
    """A policy that imitates becomes sure; one that is always right has nothing to explore; samples of earlier turns differ."""
    sure = make_rows(learn__generator__entropy=0.0)
    assert [one.badge for one in find(sure)] == ["entropy gone"]
    imitating = {"policies": {"generator": {"objective": {"preset": "cross_entropy"}}}}
    assert find(sure, settings=imitating) == []
    assert (
        find(
            make_rows(learn__generator__entropy=0.0, rollouts__generator__accuracy=0.95, rollouts__verifier__positive_rate=0.97)
        )
        == []
    )
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
    assert to_json(found)[0] == {
        "badge": "truncated",
        "text": "95 % of the generator's outputs are cut at the limit of their length",
        "help": "raise --max-tokens (sampling.max_tokens)",
        "settings": ["sampling.max_tokens"],
        "severe": True,
    }


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
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
    "rollouts__generator__invalid_rate": 0.5,
    "rollouts__verifier__positive_rate": 0.99,
    "eval__hacking_gap": 0.5,
}


@pytest.mark.parametrize("recipe", [*RECIPES])
def test_every_setting_that_is_advised_is_one_that_the_run_takes(recipe: str) -> None:
    """All findings at once, of every policy: a value that is advised is accepted, a key that is named exists."""
    layers = [TINY, SHORT[recipe].settings, {"recipe": recipe}]
    plan = resolve(layers)
    figures = {"entropy": 1e-6, "kl": 2.0, "mismatch": 0.5, "lr": 1e-4, "peak_gib": 79.0, "loss": 0.0}
    ill = ILL | {f"learn__{policy}__{name}": value for policy in plan.policies for name, value in figures.items()}
    ill |= {
        f"rollouts__{agent}__{name}": value
        for agent in plan.agents
        for name, value in {"length": 10.0, "truncated_rate": 0.5, "invalid_rate": 0.5}.items()
    }
    rows = [
        {key: value for key, value in row.items() if not key.startswith("rollouts/") or key.split("/")[1] in plan.agents}
        for row in make_rows(**ill, learner=plan.recipe.lead)
    ]
    settings = plan.config.model_dump(mode="json")
    slow = [{"turn": 1, "turn_s": 10.0, "idle_s": 9.0}]
    found = find_health(rows, settings, slow, {"gpu_gib": [80.0]})
    assert {"truncated", "unreadable", "KL away", "mismatch", "memory", "slow grader"} <= {one.badge for one in found}
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
