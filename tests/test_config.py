"""The configuration: every mistake is one line that names the nearest right name; later layers win; it writes to itself."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import milonga
from helpers import PROPERTY
from milonga.api import plan_run
from milonga.config import expand_keys, flatten_keys, merge, parse_setting, read_toml, to_toml
from milonga.engine.local.models import check_model
from milonga.errors import ConfigError
from milonga.recipe import ALLOWED
from milonga.resolve import resolve
from milonga.roles import ROLES
from milonga.systems.index import RECIPES

MISTAKES: dict[str, tuple[str, list[str]]] = {
    # --set texts and what the one line must say
    "top": ("turnz=3", ["unknown key 'turnz'", "'turns'"]),
    "batch": ("batch.rollout=3", ["unknown key 'batch.rollout'", "'rollouts'"]),
    "sampling": ("sampling.temprature=2", ["unknown key 'sampling.temprature'", "'temperature'"]),
    "eval": ("eval.evry=2", ["unknown key 'eval.evry'", "'every'"]),
    "keep": ("keep.checkpoint=2", ["unknown key 'keep.checkpoint'", "'checkpoints'"]),
    "policy": ("policies.generator.lrr=1e-5", ["unknown key 'policies.generator.lrr'", "'lr'"]),
    "lora": ("policies.generator.lora.rnk=4", ["unknown key 'policies.generator.lora.rnk'", "'rank'"]),
    "objective": ("policies.generator.objective.clip_hgh=0.3", ["policies.generator.objective", "'clip_high'"]),
    "preset": ("policies.generator.objective.preset=grpoo", ["unknown objective 'grpoo'", "'grpo'"]),
    "options": ("options.warmupp=3", ["unknown key 'options.warmupp'", "'warmup'"]),
    "task": ("task.name=chian", ["unknown task 'chian'", "'chain'"]),
    "task option": ("task.opps=3", ["unknown key 'task.opps'", "'ops'"]),
    "policy name": ("policies.generatr.lr=1e-5", ["unknown policy 'generatr'", "'generator'"]),
    "budget": ("budget.tokes=100", ["unknown key 'budget.tokes'", "'tokens'"]),
    "recipe": ("recipe=tengo", ["unknown recipe 'tengo'", "'tango'"]),
    "choice": ("binding=lroa", ["'binding'", "'lora'"]),
    "choice in a list": ('keep.trackers=["tensorbord"]', ["'keep.trackers.0'", "'tensorboard'"]),
    "type": ("turns=many", ["'turns'", "integer", "'many'"]),
    "type of a table": ("batch=3", ["'batch'", "dictionary", "got 3"]),
    "type in a policy": ("policies.generator.lr=fast", ["'policies.generator.lr'", "number", "'fast'"]),
    "type of an objective": ("policies.generator.objective.clip_low=no", ["policies.generator.objective", "clip_low"]),
    "type of an option": ("options.warmup=long", ["'options.warmup'", "integer"]),
    "type of a task option": ("task.ops=few", ["'task.ops'", "integer"]),
    "range": ("batch.rollouts=1", ["'batch.rollouts'", "2"]),
    "not finite": ("policies.generator.lr=inf", ["'policies.generator.lr'", "finite"]),
    "betas": ("policies.generator.betas=[1.5, 0.9]", ["'policies.generator.betas.0'", "less than 1"]),
    "no budget": ("budget.tokens=0", ["'budget.tokens'", "greater than 0"]),
    "combination": ("policies.generator.objective.ratio=none", ["policies.generator.objective", "needs a ratio"]),
    "task without a name": ('task={ops=3,name=""}', ["task needs a name"]),
    "top_p": ("sampling.top_p=0.9", ["'sampling'", "untruncated", "top_p"]),
    "top_k": ("sampling.top_k=20", ["'sampling'", "untruncated", "top_k"]),
    "min_p": ("sampling.min_p=0.1", ["'sampling'", "untruncated", "min_p"]),
    "sampler": ("sampling.sampler=vlm", ["'sampling.sampler'", "'auto' or 'vllm'", "'vlm'"]),
    "too cold for vLLM": ('sampling={sampler="vllm",temperature=0.001}', ["'sampling'", "from 0.01 to 2.0, not 0.001"]),
    "too hot for vLLM": ('sampling={sampler="vllm",temperature=3.0}', ["'sampling'", "from 0.01 to 2.0, not 3.0"]),
    "more than the GPU": (
        "sampling.vllm.gpu_memory_utilization=1.5",
        ["'sampling.vllm.gpu_memory_utilization'", "less than 1"],
    ),
    "option of vLLM": ("sampling.vllm.tolerence=1", ["unknown key 'sampling.vllm.tolerence'", "did you mean 'tolerance'?"]),
    "shared weights": ("binding=shared", ["'tango'", "'shared'", "two sets of weights", "use own, lora"]),
}


def refusal(action: Callable[[], Any]) -> str:
    """The text of the error, which is one line and complete."""
    with pytest.raises(ConfigError) as caught:
        action()
    text = str(caught.value)
    assert text and "\n" not in text
    return text


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_setting_is_one_line_with_the_right_name(mistake: str) -> None:
    setting, expected = MISTAKES[mistake]
    text = refusal(lambda: plan_run("tango", settings=[parse_setting(setting)]))
    for part in expected:
        assert part in text


@pytest.mark.parametrize("setting", ["turns", "=3", ".turns=3", "batch..rollouts=3", "  =1"])
def test_a_setting_without_key_or_value_is_refused(setting: str) -> None:
    assert "key=value" in refusal(lambda: parse_setting(setting))


def test_an_unknown_role_names_the_nearest() -> None:
    assert "'verifier'" in refusal(lambda: ROLES.get("verifer"))


def test_a_missing_file_a_folder_and_bad_toml_are_named(tmp_path: Path) -> None:
    assert "does not exist" in refusal(lambda: read_toml(tmp_path / "none.toml"))
    assert str(tmp_path) in refusal(lambda: read_toml(tmp_path))
    bad = tmp_path / "bad.toml"
    bad.write_text("turns = \n")
    assert "bad.toml" in refusal(lambda: plan_run("tango", config=bad))
    bad.write_bytes(b"turns = \xff\xfe")
    assert "bad.toml" in refusal(lambda: plan_run("tango", config=bad))


def test_no_recipe_is_said() -> None:
    assert "no recipe" in refusal(lambda: resolve([{"turns": 3}]))


def test_lora_needs_one_base() -> None:
    models = {"policies": {"generator": {"model": "one"}, "verifier": {"model": "two"}}, "binding": "lora"}
    text = refusal(lambda: resolve([{"recipe": "tango"}, models]))
    assert "lora" in text and "one" in text and "two" in text


def test_oracle_needs_a_task_that_knows_its_steps(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def add(rng):\n    a = rng.randrange(99)\n    return f'{a}+1', str(a + 1)\n")
    text = refusal(lambda: plan_run("oracle", task=f"{file}:add"))
    assert "'oracle'" in text and "each step" in text
    assert plan_run("grpo", task=f"{file}:add").task.knows_steps is False


def test_policies_start_from_the_embedded_model_that_the_task_names(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from milonga.tasks import Chain\n\nclass Mine(Chain):\n    base = 'mine'\n\nclass Yours(Chain):\n    base = 'base'\n"
    )
    models = {"generator": "embedded/base"}
    plan = plan_run("tango", task=f"{file}:Mine", models=models)
    assert {name: p.model for name, p in plan.policies.items()} == {"generator": "embedded/base", "verifier": "embedded/mine"}
    assert plan.config.dialect == "terse" and all(p.learning_rate == 1e-4 for p in plan.policies.values())
    again = resolve([plan.config.model_dump(mode="json", exclude_none=True)])
    assert again.config == plan.config, "a resolved config resolves to itself"
    assert plan_run("grpo", task=f"{file}:Yours").policies["generator"].model == "embedded"
    assert "embedded/base" in refusal(lambda: check_model("embedded/bse"))
    check_model("embedded/base")


def test_grpo_has_no_policy_for_a_verifier() -> None:
    text = refusal(lambda: plan_run("grpo", models={"verifier": "embedded"}))
    assert "unknown policy 'verifier'" in text and "generator" in text


def test_later_layers_win(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('turns = 7\nseed = 7\n[task]\nname = "chain"\nops = 3\n[batch]\nrollouts = 4\n')
    plain = plan_run("tango").config
    assert (plain.turns, plain.seed, plain.batch.rollouts, plain.task) == (30, 0, 8, {"name": "chain"})
    read = plan_run("tango", config=file).config
    assert (read.turns, read.seed, read.batch.rollouts) == (7, 7, 4)
    flagged = plan_run("tango", config=file, turns=8, seed=8).config
    assert (flagged.turns, flagged.seed, flagged.batch.rollouts) == (8, 8, 4)
    settings = [parse_setting("turns=9"), parse_setting("batch.rollouts=5"), parse_setting("turns=10")]
    final = plan_run("tango", config=file, turns=8, settings=settings).config
    assert (final.turns, final.seed, final.batch.rollouts) == (10, 7, 5)


def test_a_recipes_defaults_lie_below_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RECIPES.get("tango"), "defaults", {"turns": 5, "batch": {"rollouts": 16}})
    config = resolve([{"recipe": "tango", "batch": {"problems": 2}}]).config
    assert (config.turns, config.batch.rollouts, config.batch.problems) == (5, 16, 2)
    assert resolve([{"recipe": "tango", "turns": 6}]).config.turns == 6


@PROPERTY
@given(st.permutations(["preset", "kl_coef", "kl"]), st.permutations(["name", "ops"]))
def test_keys_that_are_given_together_belong_together_in_any_order(objective: list[str], task: list[str]) -> None:
    """A preset, or a task's name, that stands last takes nothing away."""
    values = {"preset": "dapo", "kl_coef": 0.1, "kl": "k2", "name": "chain", "ops": 2}
    chosen = {key: values[key] for key in objective}
    table = {"policies": {"a": {"objective": chosen}}, "task": {key: values[key] for key in task}}
    assert expand_keys(flatten_keys(table)) == table


def test_a_new_name_replaces_the_table_and_the_same_name_keeps_it() -> None:
    base = {"task": {"name": "chain", "ops": 3}}
    assert merge(base, {"task": {"name": "last_letter"}}) == {"task": {"name": "last_letter"}}
    assert merge(base, {"task": {"name": "chain"}}) == base
    assert merge(base, {"task": "chain"}) == base
    assert merge({"task": "chain"}, {"task": {"ops": 3}}) == base
    policy = {"objective": {"preset": "dapo", "clip_high": 0.3}}
    assert merge(policy, {"objective": {"clip_low": 0.1}})["objective"]["clip_high"] == 0.3
    assert merge(policy, {"objective": {"preset": "rloo"}}) == {"objective": {"preset": "rloo"}}


def test_what_follows_from_the_rest_is_derived() -> None:
    own = resolve([{"recipe": "tango"}])
    assert own.config.dialect == "terse" and own.agents == {"generator": "generator", "verifier": "verifier"}
    other = resolve([{"recipe": "tango", "policies": {"generator": {"model": "other"}}}])
    assert other.config.dialect == "plain"
    lora = resolve([{"recipe": "tango", "binding": "lora"}])
    assert all(section.lora is not None for section in lora.policies.values())


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_a_resolved_config_resolves_to_itself(recipe: str) -> None:
    found = RECIPES.get(recipe)
    allowed = [name for name, permission in found.bindings.items() if permission == ALLOWED]
    binding = "lora" if "lora" in allowed else allowed[0]
    gradient = "policy_gradient" in found.learns.get(found.lead, ("policy_gradient",))
    objective: dict[str, Any] = {"preset": "dapo", "clip_high": 0.3} if gradient else {"beta": 0.125}
    # They refuse to draw problems by how they come out.
    if recipe in ("curriculum", "search_self_play", "tango_free", "tango_free_adversary"):
        objective["dynamic_sampling"] = False
    name = found.tasks[0] if found.tasks else "chain"
    task = {"name": name, "ops": 3} if name in ("chain", "haystack") else {"name": name}
    layers: list[Mapping[str, Any]] = [
        {"recipe": recipe, "binding": binding, "task": task, "budget": {"tokens": 1e6}},
        {"policies": {found.lead: {"objective": objective, "lr": 1e-5}}},
        {"keep": {"trackers": ["tensorboard"], "project": 'quoted "and\\ so\n on"'}},
    ]
    config = resolve(layers).config
    written = tomllib.loads(to_toml(config.model_dump(mode="json")))
    assert resolve([written]).config == config
    assert to_toml(resolve([written]).config.model_dump(mode="json")) == to_toml(config.model_dump(mode="json"))


TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(['"', "\\", "\x00\x1f\x7f\r\n\t", "é.ü", "'''"])
PLAIN = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


@PROPERTY
@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_toml_gives_back_what_was_written(data: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(data)) == data


@PROPERTY
@given(st.dictionaries(TEXTS, st.none() | PLAIN | st.dictionaries(TEXTS, st.none() | PLAIN, max_size=3), max_size=4))
def test_toml_leaves_out_what_is_none(data: dict[str, Any]) -> None:
    def known(table: dict[str, Any]) -> dict[str, Any]:
        return {k: known(v) if isinstance(v, dict) else v for k, v in table.items() if v is not None}

    assert tomllib.loads(to_toml(data)) == known(data)


def test_config_and_recipes_import_no_torch() -> None:
    program = (
        "import sys, milonga, milonga.systems.tango.recipe, milonga.evals, milonga.resolve, milonga.cli; "
        "milonga.resolve.resolve([{'recipe': 'tango'}]); "
        "sys.exit(str([m for m in ('torch', 'transformers', 'peft', 'datasets') if m in sys.modules] or ''))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_public_names_are_frozen() -> None:
    assert sorted(milonga.__all__) == [
        "ConfigError",
        "DataError",
        "Grade",
        "MissingExtra",
        "Pair",
        "Problem",
        "Report",
        "RunFolderError",
        "Task",
        "TaskOptions",
        "UserError",
        "compare",
        "evaluate",
        "resume",
        "run",
    ]
    assert all(hasattr(milonga, name) for name in milonga.__all__)


def test_public_signatures_are_frozen() -> None:
    def names(function: Callable[..., Any]) -> list[str]:
        kinds = {inspect.Parameter.KEYWORD_ONLY: "*"}
        return [kinds.get(p.kind, "") + name for name, p in inspect.signature(function).parameters.items()]

    own = [
        "*model",
        "*data",
        "*question",
        "*answer",
        "*task",
        "*prompt",
        "*reward",
        "*extract",
        "*generator",
        "*verifier",
        "*models",
    ]
    flags = ["*lora", "*lr", "*problems", "*rollouts", "*max_tokens"]
    options = ["*turns", "*seed", "*out", "*device", "*config", "*settings", "*force", "*quiet"]
    assert names(milonga.run) == ["recipe", *own, *flags, *options]
    again = ["*recipe", "*task", "*prompt", "*reward", "*extract"]
    assert names(milonga.resume) == ["path", "quiet", *again, "*turns", "*force", "*accept_loss", "*accept_changes", "*trust"]
    how = ["*seed", "*device", "*temperature", "*sampler", "*max_tokens"]
    assert names(milonga.Pair.open) == ["path", "agents", *how, "*trust"]
    assert names(milonga.Pair.solve) == ["self", "problems", "n", "greedy"]
    assert names(milonga.Pair.verify) == ["self", "solutions", "checks", "greedy"]
    assert names(milonga.evaluate) == ["path", "suite", "*plot", "*trust", "options"]
    assert all(
        parameter.default is not inspect.Parameter.empty
        for function in (milonga.run, milonga.resume, milonga.evaluate)
        for parameter in list(inspect.signature(function).parameters.values())[1:]
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    )


def test_files_of_a_task_are_kept_by_their_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was started with a relative path can be resumed from anywhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def add(rng):\n    a = rng.randrange(10**6)\n    return f'{a}+1', str(a + 1)\n")
    (tmp_path / "some.jsonl").write_text("".join(f'{{"question": "what is {n}?", "answer": "{n}"}}\n' for n in range(60)))
    assert plan_run("grpo", task="mine.py:add").config.task["name"] == f"{tmp_path / 'mine.py'}:add"
    assert plan_run("grpo", task={"name": "jsonl", "path": "some.jsonl"}, models={"generator": "a/model"}).config.task[
        "path"
    ] == str(tmp_path / "some.jsonl")


def test_an_objective_without_rewards_is_refused() -> None:
    text = refusal(lambda: resolve([{"recipe": "grpo", "policies": {"generator": {"objective": {"preset": "cross_entropy"}}}}]))
    assert "policies.generator.objective" in text and "policy_gradient, not cross_entropy" in text


def test_the_length_constant_is_each_agents_own_limit() -> None:
    policies = {agent: {"objective": {"preset": "dr_grpo"}} for agent in ("generator", "verifier")}
    objectives = resolve([{"recipe": "tango", "policies": policies, "sampling": {"max_tokens": 50}}]).recipe.objectives
    assert (objectives["generator"].loss.length, objectives["verifier"].loss.length) == (50, 100)


def test_devices_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from milonga.engine.local.engine import choose_device

    for name in ("mps", "cuda:99", "gpu"):
        assert f"'{name}'" in refusal(lambda name=name: choose_device(name))


def test_threads_follow_the_environment_or_the_idle_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    from milonga.engine.local import threads

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads.choose_threads() == threads.torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS")
    for most, idle, expected in ((8, 2.6, 3), (8, 0.1, 1), (2, 7.9, 2), (4, None, 4)):
        monkeypatch.setattr(threads.torch, "get_num_threads", lambda most=most: most)
        monkeypatch.setattr(threads, "idle_cores", lambda idle=idle: idle)
        assert threads.choose_threads() == expected


def test_a_run_and_a_probe_settle_their_threads_when_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    from milonga.api import settle_threads
    from milonga.engine.local import threads

    monkeypatch.setattr(threads, "choose_threads", lambda: 7)
    assert settle_threads(resolve([{"recipe": "grpo"}])).config.threads == 7
    assert settle_threads(resolve([{"recipe": "grpo", "threads": 3}])).config.threads == 3
    assert settle_threads(resolve([{"recipe": "grpo", "engine": "ray"}])).config.threads is None
