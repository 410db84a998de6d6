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
from milonga.synonyms import COMMANDS, FLAGS, INSTEAD, NAMES, SAID, TABLE, Setting, find_setting
from milonga.tasks.rows import OBVIOUS

GROUP = get_command(app)
assert isinstance(GROUP, TyperGroup)
FLAGS_OF = {name: {f for param in command.params for f in param.opts} for name, command in GROUP.commands.items()}
RUN = FLAGS_OF["run"]


@pytest.mark.parametrize("setting", TABLE, ids=lambda setting: setting.key)
def test_what_is_proposed_exists(setting: Setting) -> None:
    assert not setting.flag or setting.flag in RUN
    assert_exists(setting.key.partition("=")[0])


def assert_exists(key: str) -> None:
    """A key of the config; NAME stands for a policy."""
    parts = key.split(".")
    if parts[:3] == ["policies", "NAME", "objective"]:
        assert parts[3] in {"preset", *ObjectiveSection.model_fields}
    elif parts[0] == "task":  # options of tasks that read rows
        assert parts[1:] == ["path"] or (parts[1] == "fields" and parts[2] in OBVIOUS)
    else:
        model = PolicySection if parts[:2] == ["policies", "NAME"] else Config
        for part in parts[2:] if model is PolicySection else parts:
            assert part in model.model_fields
            model = find_section(model.model_fields[part].annotation)


SAYINGS = [(command, names, said) for command, table in SAID.items() for names, said in table.items()]


@pytest.mark.parametrize(("command", "names", "said"), SAYINGS, ids=lambda text: text.split()[0])
def test_what_is_said_of_an_option_exists(command: str, names: str, said: str) -> None:
    """Flags are those of the command that was typed, or of one that is named before them; and no name is an option itself."""
    assert not FLAGS_OF[command] & {f"--{name.replace('_', '-')}" for name in names.split()}
    meant = command
    for word in (word.strip("';.,:?") for word in said.replace("{command}", command).split()):
        if word == "milonga" or meant == "milonga":
            meant = word
        elif word.startswith("--"):
            assert word in FLAGS_OF[meant]
        elif "." in word:
            assert_exists(word.removesuffix("="))
    assert meant in FLAGS_OF


def test_commands_and_flags_that_are_meant_exist() -> None:
    names = [name for known in COMMANDS.values() for name in known.split()]
    assert len(set(names)) == len(names) and not set(names) & set(FLAGS_OF), "a name stands for one command, and is none"
    assert set(COMMANDS) <= {*FLAGS_OF, "--help", "--version"}
    for command, table in INSTEAD.items():
        assert set(table.values()) <= FLAGS_OF[command] and set(table) <= {setting.key for setting in TABLE}


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
MEANT = {
    "solve RUN FILE --samples 4": "did you mean --best-of?",
    "solve RUN FILE -n 4": "did you mean --best-of?",
    "solve RUN FILE --top-p 0.9": "samples are never truncated; what there is: --temperature",
    "verify RUN FILE --num-samples 4": "did you mean --checks?",
    "serve RUN --max-new-tokens 4": "did you mean --max-tokens?",
    "verify RUN --file rows.jsonl": "it is the second argument, after what was trained: rows.jsonl",
    "eval RUN --num-generations 4": "did you mean --samples?",
    "eval RUN --lr 1": "that is 'lr' in a run's config, which milonga run sets",
    "resume RUN --epochs 2": "edit 'policies.NAME.epochs' (NAME: a policy, such as generator) in the run's config.toml, "
    "then go on with --accept-changes",
    "run grpo --adapter 1": "did you mean --lora?",
    "sweep FILE --adapter": "did you mean --set binding=lora?",
    "run --resume r1": "did you mean 'milonga resume r1'?",
    "run --resume=r1 --turns 3": "did you mean 'milonga resume r1'?",
    "run --resume --turns 3": "did you mean 'milonga resume DIR'?",
    "compare tango grpo --resume": "the same command with the same --out goes on where it stopped",
    "run --recipe grpo": "it is an argument: milonga run grpo",
    "run grpo --top-k 5": "samples are never truncated; what there is: --set sampling.temperature=...",
    "run grpo --workers 4": "did you mean --gpus? Workers of --engine ray are --set placement.learners=... and "
    "--set placement.samplers=...",
    "compare tango grpo --workers 4": "did you mean --jobs?",
    "run grpo --seeds 3": "a run has one, --seed; several are compared: milonga compare ARM ARM --seeds 3",
    "compare tango grpo --seed 3": "did you mean --seeds?",
    "run grpo --gradient-accumulation 2": "did you mean --set policies.NAME.micro_tokens=...? (NAME: a policy, such as "
    "generator)",
    "run grpo --gradient-accumulation-steps 2": "did you mean --set policies.NAME.micro_tokens=...? (NAME: a policy, such as "
    "generator)",
}
UNKNOWN = {"train": "run", "inspect": "show", "evaluate": "eval", "dashboard": "board", "ui": "board", "resume-run": None}
UNKNOWN |= {"help": "--help", "version": "--version"}
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


@pytest.mark.parametrize("line", MEANT)
def test_an_option_that_a_command_lacks_is_answered_by_what_is_meant(milonga: Command, line: str) -> None:
    option = next(word for word in line.split() if word.startswith("-")).partition("=")[0]
    done = milonga(*line.split())
    assert (done.code, done.err) == (2, f"milonga: No such option: {option}: {MEANT[line]} (see --help)\n")


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_command_of_elsewhere_is_answered_with_ours(milonga: Command, name: str) -> None:
    done = milonga(name, "grpo")
    meant = f": did you mean 'milonga {UNKNOWN[name]}'?" if UNKNOWN[name] else ". Did you mean 'resume'?"
    assert (done.code, done.err) == (2, f"milonga: No such command '{name}'{meant} (see --help)\n")


def test_a_missing_argument_is_said_with_what_it_is(milonga: Command) -> None:
    said = "milonga: Missing argument 'kind': recipes, tasks, roles, objectives or suites (see --help)\n"
    assert milonga("list").err == said


def test_an_option_without_its_value_is_no_unknown_one(milonga: Command) -> None:
    assert milonga("run", "grpo", "--lr").err == "milonga: Option '--lr' requires an argument. (see --help)\n"


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
    assert "--seed" not in FLAGS_OF["eval"] and "did you mean" not in milonga("eval", tmp_path, "--random-seed", "1").err


def test_a_key_that_is_missing_is_named_with_its_flag(milonga: Command) -> None:
    done = milonga("run", "grpo", "--task", "jsonl", "--generator", "embedded")
    assert done.err == "milonga: 'task.path' is missing: name it by --data\n"
