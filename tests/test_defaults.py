"""Defaults that fit the model: rates, warm-ups and noise of the miniature belong to embedded models alone; a default run
reaches all stages of its recipe; a model that is named for one agent is seated everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_helpers import model_folder
from milonga.config import flatten_keys
from milonga.errors import ConfigError
from milonga.objectives.rates import decay_factor, warm_up_factor
from milonga.recipe import ALLOWED
from milonga.resolve import Plan, resolve
from milonga.runfolder.note import Note
from milonga.schedule import Cursor
from milonga.systems.index import RECIPES

ENDPOINT = "openai:http://127.0.0.1:9/v1#judge"
TASKS = {
    "absolute_zero": "code",
    "cure": "code",
    "mars": "haystack",
    "search_self_play": "search",
    "self_play_swe": "bugs",
    "tango_code": "code",
}
"""Recipes that do not work with the default task."""
BOUND = [
    (name, binding) for name in RECIPES for binding, permission in RECIPES.get(name).bindings.items() if permission == ALLOWED
]
"""Each recipe with each binding that it allows."""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that is not embedded."""
    return model_folder(tmp_path_factory.mktemp("models"))


def plan(recipe: str, model: str | None = None, **settings: Any) -> Plan:
    """The plan of a default run. A model is named for the solving agent alone, or for the one policy that all share."""
    found = RECIPES.get(recipe)
    binding = settings.get("binding", found.defaults.get("binding"))
    named = found.lead if binding == "shared" else found.solving
    models = {} if model is None else {"policies": {named: {"model": model}}}
    return resolve([{"recipe": recipe, "task": TASKS.get(recipe, "chain")}, models, settings])


def reached_phases(p: Plan) -> set[int]:
    """Numbers of the phases that have a turn before the lead agent has had all its own. Conditions never hold: a phase with one
    takes all the turns that it may."""
    schedule, cursor, led = p.recipe.schedule(), Cursor(), 0
    reached: set[int] = set()
    while led < p.config.turns:
        cursor = schedule.advance(cursor, [{}] * cursor.done)
        phase = schedule.get_phase(cursor.phase)
        assert phase is not None
        reached.add(cursor.phase)
        led += phase.learner == p.recipe.lead
        cursor = Cursor(cursor.phase, cursor.done + 1)
    return reached


@pytest.mark.parametrize("kind", ["embedded", "real"])
@pytest.mark.parametrize("recipe", list(RECIPES))
def test_a_default_run_reaches_every_phase(recipe: str, kind: str, real: str) -> None:
    p = plan(recipe, real if kind == "real" else None)
    schedule = p.recipe.schedule()
    wanted = {number for number, phase in enumerate(schedule.intro + schedule.cycle) if phase.turns != 0}
    assert wanted <= reached_phases(p)


@pytest.mark.parametrize(("recipe", "binding"), BOUND)
def test_no_other_model_learns_at_the_rates_of_the_miniature(recipe: str, binding: str, real: str) -> None:
    p = plan(recipe, real, binding=binding)
    assert all(section.model == real and section.learning_rate <= 5e-5 for section in p.policies.values())
    assert all(section.warmup_steps == 5 for section in p.policies.values())


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_no_other_model_imitates_a_flawed_teacher(recipe: str, real: str) -> None:
    spoilt = {"noise", "seed_noise", "slip", "flip", "corrupt"} - ({"noise"} if recipe == "search_self_play" else set())
    options = plan(recipe, real).config.options
    assert {name: options[name] for name in spoilt & options.keys() if options[name]} == {}


def test_embedded_models_keep_their_own() -> None:
    p = plan("score")
    assert (p.config.options["formats"], p.config.options["noise"], p.config.turns) == (12, 0.3, 52)
    assert plan("rstar_math").policies["verifier"].lr == 2e-4 and plan("sft").policies["generator"].lr == 2e-4
    assert plan("score", turns=7, options={"noise": 0.5}).config.turns == 7, "the user's own win"
    assert all(section.warmup_steps == 0 for section in p.policies.values())


def test_a_model_exported_from_an_embedded_one_has_its_defaults(tmp_path: Path) -> None:
    Note(("generator",), "terse", "embedded", "grpo", "chain", 3).write(tmp_path)
    p = plan("genrm", str(tmp_path))
    assert p.config.options["corrupt"] == 0.1 and p.policies["verifier"].lr == 3e-4
    assert (p.policies["generator"].learning_rate, p.policies["generator"].warmup_steps) == (1e-4, 0)
    assert p.policies["verifier"].model == "embedded", "beside a miniature the embedded model is right"


@pytest.mark.parametrize("recipe", ["tango", "marti", "v_star", "self_taught_evaluators"])
def test_a_resolved_config_of_another_model_resolves_to_itself(recipe: str, real: str) -> None:
    config = plan(recipe, real).config
    assert resolve([config.model_dump(mode="json", exclude_none=True)]).config == config


# Who gets which model.


def test_the_generators_model_is_seated_everywhere_else_it_was_named(real: str) -> None:
    assert {name: section.model for name, section in plan("marti", real).policies.items()} == dict.fromkeys(
        ("generator", "verifier", "refiner"), real
    )
    both = plan("tango", real, policies={"verifier": {"model": "a/verifier", "lr": 2e-6}}).policies
    assert (both["generator"].model, both["verifier"].model) == (real, "a/verifier")
    lead = resolve([{"recipe": "verifier_only", "policies": {"verifier": {"model": real}}}])
    assert lead.policies["generator"].model == real
    judge = plan("frozen", real, policies={"verifier": {"model": ENDPOINT}}).policies
    assert (judge["generator"].model, judge["verifier"].model) == (real, ENDPOINT)


def test_an_embedded_model_beside_another_is_refused(real: str) -> None:
    with pytest.raises(ConfigError, match=r"policies\.generator\.model is 'embedded', a miniature.* name another model"):
        resolve([{"recipe": "frozen", "policies": {"verifier": {"model": ENDPOINT}}}])
    with pytest.raises(ConfigError, match=r"policies\.verifier\.model is 'embedded', a miniature"):
        plan("verifier_only", ENDPOINT)
    with pytest.raises(ConfigError, match=r"policies\.verifier\.model is 'embedded/base', a miniature"):
        plan("tango", real, policies={"verifier": {"model": "embedded/base"}})
    known = plan("frozen", policies={"verifier": {"model": ENDPOINT}}, dialect="terse")
    assert known.policies["generator"].model == "embedded", "whoever names the dialect knows what the server speaks"


def test_problems_in_words_need_a_model_that_is_named(tmp_path: Path, real: str) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text("".join(f'{{"question": "what is {n}?", "answer": "{n}"}}\n' for n in range(60)))
    task = {"name": "jsonl", "path": str(file)}
    with pytest.raises(ConfigError, match=r"task 'jsonl' is written in words.* name a model with --generator"):
        plan("grpo", task=task)
    assert plan("grpo", real, task=task).task.max_tokens == 1024
    assert plan("grpo", "embedded", task=task).config.dialect == "terse", "it was asked for"


PUBLISHED = [name for name in RECIPES if RECIPES.get(name).published]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_settings_of_a_paper_are_settings_of_its_recipe(name: str, real: str) -> None:
    """Every key exists and every value is allowed, for a model that is not embedded."""
    found = plan(name, real, published=True)
    assert found.config.published


def test_published_lies_above_the_defaults_and_below_what_is_set(real: str) -> None:
    ours, theirs = plan("tango", real), plan("tango", real, published=True, turns=7, options={"warmup": 3})
    assert ours.config.options["alpha"] == 0.3 and theirs.config.options["alpha"] == 0.1
    assert theirs.config.batch.problems == 256 and theirs.config.options["warmup"] == 3 and theirs.config.turns == 7
    assert theirs.recipe.objectives["verifier"].loss.kl_coef == 0.001


@pytest.mark.parametrize(
    ("more", "policies"),
    [({}, ["generator", "partner"]), ({"options": {"workflow": "chain"}}, ["generator", "verifier", "refiner"]),
     ({"binding": "shared"}, ["generator"])],
)  # fmt: skip
def test_settings_of_a_paper_are_for_the_policies_of_the_run(more: dict[str, Any], policies: list[str], real: str) -> None:
    found = plan("marti", real, published=True, **more)
    assert list(found.policies) == policies and {section.lr for section in found.policies.values()} == {1e-6}
    assert all(objective.loss.ratio == "sequence_mean" for objective in found.recipe.objectives.values())


@pytest.mark.parametrize("name", ["sft", "curriculum", "tango_free", "tango_code"])
def test_a_recipe_without_a_paper_says_so(name: str) -> None:
    with pytest.raises(ConfigError, match="names no settings of a paper"):
        plan(name, published=True)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("cure", {"policies.generator.warmup": 0, "options.format_fail_value": 0.0}),
        ("rstar_math", {"options.guided": 3, "options.more": 64, "options.more_from": 4, "turns": 4}),
        ("self_rewarding", {"policies.generator.schedule": "cosine", "policies.generator.lr_end": 0.1}),
        ("self_taught_evaluators", {"policies.judge.schedule": "cosine", "policies.judge.lr_end": 0.1}),
    ],
)
def test_what_a_paper_says_is_what_published_resolves_to(name: str, values: dict[str, Any], real: str) -> None:
    found = flatten_keys(plan(name, real, published=True).config.model_dump(mode="json"))
    assert {key: found[key] for key in values} == values


SAMPLING = {"collect", "search"}
"""Phases in which outputs are kept for later and nothing is learned."""


def list_rate_factors(p: Plan) -> dict[str, list[list[tuple[float, float]]]]:
    """Policy to the factors of its rate, by warm-up and by decay, at the end of each turn that it learns in: a list for each
    time between two resets.

    A policy whose agents are no learners of the schedule learns in the turns of the others. Conditions never hold, as above.
    """
    schedule, cursor, led, entered = p.schedule, Cursor(), 0, -1
    learners = {phase.learner for phase in schedule.intro + schedule.cycle}
    teaching = {name: {a for a, policy in p.agents.items() if policy == name} & learners or learners for name in p.policies}
    factors: dict[str, list[list[tuple[float, float]]]] = {name: [[]] for name in p.policies}
    while led < p.config.turns:
        cursor = schedule.advance(cursor, [{}] * cursor.done)
        phase = schedule.get_phase(cursor.phase)
        assert phase is not None
        for action in phase.enter if cursor.phase != entered else ():
            if action.kind != "snapshot":
                factors[action.policy].append([])
        entered = cursor.phase
        for name, section in p.policies.items():
            if phase.name not in SAMPLING and phase.learner in teaching[name]:
                steps = (len(factors[name][-1]) + 1) * section.epochs * section.minibatches
                decay = decay_factor(section.schedule, led / p.config.turns, section.lr_end)
                factors[name][-1].append((warm_up_factor(steps - 1, section.warmup_steps), decay))
        led += phase.learner == p.recipe.lead and phase.counts
        cursor = Cursor(cursor.phase, cursor.done + 1)
    return {name: [one for one in found if one] for name, found in factors.items()}


def test_a_warm_up_is_counted_between_resets(real: str) -> None:
    """Three rounds of eight turns of the reward model, which is set back in each, and two of the policy, which is not."""
    policies = {"verifier": {"warmup": 100, "minibatches": 4}, "generator": {"model": real, "warmup": 10}}
    found = list_rate_factors(plan("apo", real, policies=policies, turns=6))
    assert {name: [round(one[-1][0], 6) for one in some] for name, some in found.items()} == {
        "generator": [0.6],
        "verifier": [0.32] * 3,
    }


@pytest.mark.parametrize(("name", "published"), [*((name, False) for name in RECIPES), *((name, True) for name in PUBLISHED)])
def test_every_policy_learns_at_the_rate_that_it_states(name: str, published: bool, real: str) -> None:
    """A warm-up begins anew with every optimizer: one that is longer than a round holds the rate down for the whole run. At
    least half of the rate is reached at some step, and no round ends in the first half of its warm-up."""
    for policy, found in list_rate_factors(plan(name, real, published=published)).items():
        assert all(max(warm for warm, _ in one) >= 0.5 for one in found), policy
        assert max(warm * decay for one in found for warm, decay in one) >= 0.5, policy
