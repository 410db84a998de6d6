"""Commands to look: list, show, report, board and doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from milonga.cli import completion
from milonga.cli.help import LOOK, format_examples
from milonga.cli.shell import AsJson, RunFolder, app, console, print_json


@app.command(
    name="list",
    rich_help_panel=LOOK,
    epilog=format_examples("milonga list recipes --all  # each with its paper and what it needs", "milonga list tasks --json"),
)
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help="recipes, tasks, roles, objectives or suites.",
            autocompletion=completion.complete_from("recipes", "tasks", "roles", "objectives", "suites"),
        ),
    ],
    all_: Annotated[bool, typer.Option("--all", help="Every column.")] = False,
    json: AsJson = False,
) -> None:
    """List what there is."""
    from milonga.cli.views import list_registry, print_listing

    rows = list_registry(kind)
    print_listing(kind, rows, console, all_)
    if json:
        print_json({kind: rows})


@app.command(
    rich_help_panel=LOOK,
    epilog=format_examples(
        "milonga show runs/first  # health, curves, and the last solutions with the verdict on each step",
        "milonga show runs/first --transcripts 20",
        "milonga show runs/first --all --json  # every metric, as data",
    ),
)
def show(
    folder: RunFolder,
    transcripts: Annotated[int, typer.Option(help="How many of the last transcripts.")] = 3,
    all_: Annotated[bool, typer.Option("--all", help="Every metric, not only the curves that matter most.")] = False,
    json: AsJson = False,
) -> None:
    """What a run has learned, what is wrong with it, its last transcripts, and what to do next."""
    from milonga.cli.show import show_run

    found = show_run(folder, transcripts, console, all_)
    if json:
        print_json(found)


@app.command(
    rich_help_panel=LOOK,
    epilog=format_examples(
        "milonga report runs/first  # written anew; every run ends with one",
        "milonga report runs/first runs/second --out both.html --md  # side by side",
    ),
)
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Run folders, or folders of comparisons and claims.", autocompletion=completion.complete_folders),
    ],
    out: Annotated[Path | None, typer.Option(help="The HTML file; DIR/report.html, or report.html for several.")] = None,
    md: Annotated[bool, typer.Option("--md", help="Markdown too, beside it.")] = False,
    json: AsJson = False,
) -> None:
    """Write what happened in a run, a comparison, or several side by side, as one HTML file that needs nothing else."""
    from milonga.cli.report import write_reports

    written = write_reports(folders, out, md, console)
    if json:
        print_json(written)


@app.command(
    rich_help_panel=LOOK,
    epilog=format_examples(
        "milonga board  # all runs below runs/, live, at http://127.0.0.1:8710",
        "milonga board runs/first --port 0",
        "milonga board --host 0.0.0.0 --token-file token.txt  # beyond this machine only with a token",
    ),
)
def board(
    runs: Annotated[
        Path, typer.Argument(help="A folder of runs, a run, or a comparison.", autocompletion=completion.complete_folders)
    ] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8710,
    host: Annotated[str, typer.Option(help="Others than loopback need a token.")] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that pages ask for; MILONGA_TOKEN is one too.")
    ] = None,
) -> None:
    """Watch runs in a browser: curves, reward flow, time, and what the models wrote, with every verdict."""
    from milonga.auth import find_token
    from milonga.board.server import serve

    serve(runs, host, port, find_token(host, token_file), typer.echo)


@app.command(
    rich_help_panel=LOOK,
    epilog=format_examples("milonga doctor  # the first thing to run where something does not work", "milonga doctor --json"),
)
def doctor(json: AsJson = False) -> None:
    """What is installed, which devices there are, and what would be used."""
    from milonga.cli.doctor import examine, print_examined

    found = examine()
    print_examined(found, console)
    if json:
        print_json(found)
