"""Commands that train: run and resume."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from milonga.cli import completion
from milonga.cli.help import MODELS, OUTPUT, TRAIN, examples
from milonga.cli.shell import (
    AsJson,
    ConfigFile,
    Device,
    RunFolder,
    Sampler,
    Settings,
    TaskName,
    app,
    console,
    print_json,
    settings_of,
)
from milonga.errors import UserError


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples(
        "milonga run tango  # the embedded model on chain arithmetic",
        "milonga run grpo --turns 6 --out runs/first --set batch.problems=16",
        "milonga run tango --task jsonl --set task.path=problems.jsonl --generator smollm2-135m --verifier smollm2-135m",
    ),
)
def run(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe (see 'milonga list recipes'), or your own: file.py:Class.", autocompletion=completion.recipes
        ),
    ],
    task: TaskName = None,
    generator: Annotated[
        str | None,
        typer.Option(help="Model of the generator: embedded, smollm2-135m, a folder or a hub name.", rich_help_panel=MODELS),
    ] = None,
    verifier: Annotated[str | None, typer.Option(help="Model of the verifier.", rich_help_panel=MODELS)] = None,
    turns: Annotated[int | None, typer.Option(help="Turns of the lead seat.")] = None,
    seed: Annotated[int | None, typer.Option(help="All that is drawn follows from it.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; runs/RECIPE-TIME by default.", rich_help_panel=OUTPUT)
    ] = None,
    device: Device = None,
    sampler: Sampler = None,
    config: ConfigFile = None,
    set_: Settings = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved config and stop.", rich_help_panel=OUTPUT)
    ] = False,
    json: AsJson = False,
) -> None:
    """Train by a recipe."""
    from milonga import api
    from milonga.cli.views import print_summary
    from milonga.config import to_toml
    from milonga.recipes import find_recipe

    named = {"generator": generator, "verifier": verifier}
    seats = find_recipe(recipe).seats
    for seat, model in named.items():
        if model is not None and seat not in seats:
            raise UserError(f"recipe '{recipe}' has no {seat}: --{seat} does not apply; its seats are {', '.join(seats)}")
    plan = api.plan_run(
        recipe,
        task=task,
        turns=turns,
        seed=seed,
        device=device,
        sampler=sampler,
        models={seat: model for seat, model in named.items() if model is not None},
        config=config,
        settings=settings_of(set_),
    )
    if dry_run:
        resolved = plan.config.model_dump(mode="json")
        if json:
            print_json({"config": resolved})
        else:
            sys.stdout.write(to_toml(resolved))
        return
    report = api.start(plan, out if out is not None else api.new_folder(recipe))
    print_summary(report, console)
    if json:
        print_json(report)


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples(
        "milonga resume runs/first  # after a crash, a kill or Ctrl-C: nothing else is needed",
        "milonga resume runs/first --json",
    ),
)
def resume(
    folder: RunFolder,
    json: AsJson = False,
) -> None:
    """Go on with a run from its newest whole checkpoint."""
    from milonga import api
    from milonga.cli.views import print_summary

    report = api.resume(folder)
    print_summary(report, console)
    if json:
        print_json(report)
