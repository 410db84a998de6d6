"""The help of the commands: every one has examples, and every example is a command line that is taken as it stands."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from milonga.cli import main
from milonga.cli.app import app
from milonga.cli.help import BUILD, LOOK, MEASURE, TRAIN, USE, format_examples, parse_examples

GROUP: Any = get_command(app)
COMMANDS: dict[str, Any] = GROUP.commands
EXAMPLES = [line for command in (GROUP, *COMMANDS.values()) for line in parse_examples(command.epilog)]


def words_of(line: str) -> list[str]:
    return shlex.split(line, comments=True)


def parsed(words: list[str]) -> tuple[Any, dict[str, Any]]:
    """The command that a line names and the values of its parameters; a mistake raises. Nothing is run."""
    command = COMMANDS[words[0]]
    return command, command.make_context(words[0], list(words[1:])).params


def help_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["milonga", *words, "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    return capsys.readouterr().out


def test_examples_come_back_as_they_were_given() -> None:
    lines = ["milonga run tango", "milonga show runs/x  # curves"]
    assert parse_examples(format_examples(*lines)) == lines
    assert parse_examples(None) == parse_examples("Something else.") == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command = COMMANDS[name]
    assert command.rich_help_panel in (TRAIN, MEASURE, LOOK, USE, BUILD)
    lines = parse_examples(command.epilog)
    assert lines and all(words_of(line)[:2] == ["milonga", name] for line in lines)
    assert all(getattr(parameter, "help", None) for parameter in command.params), "every option says what it does"
    out = help_of(capsys, monkeypatch, name)
    assert all(line in out for line in lines), "as they stand: nothing is taken for markup"


def test_the_first_page_shows_all_commands_and_examples(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = help_of(capsys, monkeypatch)
    assert all(f" {name} " in out for name in COMMANDS)
    assert parse_examples(GROUP.epilog) and all(line in out for line in parse_examples(GROUP.epilog))


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_is_taken(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is parsed; and where a command can be planned without being run, that is done, so that names and keys are right."""
    words = words_of(line)[1:]
    if "--help" in words:
        assert help_of(capsys, monkeypatch, *(word for word in words if word != "--help"))
        return
    command, values = parsed(words)
    if "dry_run" not in values:
        return
    monkeypatch.chdir(tmp_path)
    problems = "".join(f'{{"question": "What is {n}+{n}?", "answer": "{2 * n}", "prompt": "{n}"}}\n' for n in range(40))
    (tmp_path / "problems.jsonl").write_text(problems)
    rewards = "".join(f"def {name}(prompts, completions, **columns): return [0.0]\n" for name in ("short", "polite"))
    (tmp_path / "my.py").write_text(rewards)
    monkeypatch.setattr(sys, "argv", ["milonga", *words, "--dry-run"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0, f"{command.name}: {capsys.readouterr().err}"


@pytest.mark.parametrize("page", ["index", "choosing"])
def test_commands_of_the_first_pages_are_taken(page: str) -> None:
    """What a newcomer copies first; a command that is only named has no arguments."""
    text = (Path(__file__).parents[1] / "docs" / f"{page}.md").read_text(encoding="utf-8")
    lines = re.findall(r"`(milonga \w+ [^`]+)`", text)
    assert len(lines) >= 4
    for line in lines:
        parsed(words_of(line)[1:])


@pytest.mark.parametrize(
    "line", ["milonga rnu tango", "milonga run", "milonga run tango --trns 3", "milonga eval runs/x --limit none"]
)
def test_a_wrong_example_would_be_found(line: str) -> None:
    with pytest.raises(Exception, match=r"rnu|recipe|--trns|integer"):
        parsed(words_of(line)[1:])
