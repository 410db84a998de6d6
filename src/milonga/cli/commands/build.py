"""The command that writes a recipe or a task of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from milonga.cli import completion
from milonga.cli.help import BUILD, format_examples
from milonga.cli.shell import AsJson, app, console, print_json


@app.command(
    rich_help_panel=BUILD,
    epilog=format_examples(
        "milonga new task double_sums  # double_sums/: the task, its test, and how to run them",
        "milonga new recipe short_answers  # short_answers/: recipe, claim, test, README",
    ),
)
def new(
    kind: Annotated[str, typer.Argument(help="recipe or task.", autocompletion=completion.complete_from("recipe", "task"))],
    name: Annotated[str, typer.Argument(help="A Python name in small letters, such as short_answers.")],
    dir_: Annotated[Path | None, typer.Option("--dir", help="Where to write; a new folder NAME by default.")] = None,
    json: AsJson = False,
) -> None:
    """Write a recipe or a task of your own that runs at once, with a test that passes. Nothing is overwritten."""
    from milonga.cli.new import print_written, write_skeleton

    written = write_skeleton(kind, name, dir_ if dir_ is not None else Path(name))
    print_written(written, console)
    if json:
        print_json(written)
