"""Settings by their names elsewhere: what is proposed exists here, and fits the place where the name was used."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from helpers import Command
from milonga.cli.app import app
from milonga.config import Config, PolicySection, find_section
from milonga.objectives.presets import ObjectiveSection
from milonga.synonyms import FLAGS, NAMES, TABLE, Setting, find_setting
from milonga.tasks.rows import OBVIOUS


def list_flags(command: str) -> set[str]:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return {flag for parameter in group.commands[command].params for flag in parameter.opts}


RUN = list_flags("run")


@pytest.mark.parametrize("setting", TABLE, ids=lambda setting: setting.key)
def test_what_is_proposed_exists(setting: Setting) -> None:
    assert not setting.flag or setting.flag in RUN
    parts = setting.key.partition("=")[0].split(".")
    if parts[:3] == ["policies", "NAME", "objective"]:
        assert parts[3] in {"preset", *ObjectiveSection.model_fields}
    elif parts[0] == "task":  # options of tasks that read rows
        assert parts[1:] == ["path"] or (parts[1] == "fields" and parts[2] in OBVIOUS)
    else:
        model = PolicySection if parts[:2] == ["policies", "NAME"] else Config
        for part in parts[2:] if model is PolicySection else parts:
            assert part in model.model_fields
            model = find_section(model.model_fields[part].annotation)


def test_names_are_told_apart() -> None:
    assert all(flag in RUN for flag in FLAGS.values())
    assert len(NAMES) == sum(len(names.split()) for names in TABLE.values()), "a name stands for two settings"
    assert find_setting("--Learning-Rate") == find_setting("actor.optim.learning_rate") == find_setting("lr")
    assert find_setting("turnz") is None


OPTIONS = {
    "--learning-rate": "--lr",
    "--batch-size": "--problems",
    "--num-generations": "--rollouts",
    "--max-new-tokens": "--max-tokens",
    "--max-steps": "--turns",
    "--output-dir": "--out",
    "--model": "--generator",
    "--temperature": "--set sampling.temperature=...",
    "--epochs": "--set policies.NAME.epochs=...",
    "--beta": "--set policies.NAME.objective.kl_coef=...",
}
KEYS = {
    "learning_rate": "'lr', or --lr",
    "kl": "'policies.NAME.objective.kl_coef' (NAME: a policy, such as generator)",
    "max_new_tokens": "'sampling.max_tokens', or --max-tokens",
    "num_generations": "'batch.rollouts', or --rollouts",
    "policies.generator.learning_rate": "'policies.generator.lr', or --lr",
    "policies.generator.temperature": "'sampling.temperature'",
    "policies.generator.objective.beta_kl": "did you mean 'beta'?",
    "policies.generator.objective.epsilon": "'policies.generator.objective.clip_high'",
    "task.max_tokens": "'sampling.max_tokens', or --max-tokens",
    "options.learning_rate": "'lr', or --lr",
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_of_elsewhere_is_answered_with_ours(milonga: Command, option: str) -> None:
    done = milonga("run", "grpo", option, "1")
    (line,) = done.err.splitlines()
    known = OPTIONS[option]
    assert done.code == 2 and line.startswith(f"milonga: No such option: {option}: did you mean {known}?")


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_elsewhere_is_answered_with_ours(milonga: Command, key: str) -> None:
    done = milonga("run", "grpo", "--set", f"{key}=1", "--dry-run")
    (line,) = done.err.splitlines()
    assert done.code == 2 and line.startswith(f"milonga: unknown key '{key}': ") and line.endswith(KEYS[key])


def test_a_key_that_means_something_else_here_is_not_taken_in_silence(milonga: Command) -> None:
    """`beta` is the KL's weight in TRL, and here the scale of a log-ratio, which GRPO has none of."""
    where = "policies.generator.objective"
    done = milonga("run", "grpo", "--set", f"{where}.beta=0.1", "--dry-run")
    said = f"'{where}.beta' does nothing in a policy gradient; the weight of a KL is {where}.kl_coef"
    assert (done.code, done.err) == (2, f"milonga: {said}\n")
    assert milonga("run", "spin", "--set", f"{where}.beta=0.1", "--dry-run").code == 0


def test_only_what_a_command_takes_is_proposed(milonga: Command, tmp_path: Path) -> None:
    assert "--set" not in milonga("eval", tmp_path, "--temperature", "1").err
    assert "--seed" not in list_flags("eval") and "did you mean" not in milonga("eval", tmp_path, "--random-seed", "1").err


def test_a_key_that_is_missing_is_named_with_its_flag(milonga: Command) -> None:
    done = milonga("run", "grpo", "--task", "jsonl", "--generator", "embedded")
    assert done.err == "milonga: 'task.path' is missing: name it by --data\n"
