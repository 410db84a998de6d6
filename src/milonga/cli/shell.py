"""Shared by all commands: the Typer application, the console, and options that several commands have."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from milonga.cli import completion
from milonga.cli.help import MODELS, OUTPUT, SETTINGS, format_examples
from milonga.errors import UserError
from milonga.interrupts import get_exit_code
from milonga.runfolder.console import SafeConsole
from milonga.synonyms import find_command


class Commands(TyperGroup):
    """The commands: one that a signal has stopped ends with the exit code of that signal. One that is unknown is answered by
    what is near in meaning, and else by what is near in letters."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not ctx.resilient_parsing and (meant := find_command(args[0])):
            raise UserError(f"No such command '{args[0]}': did you mean 'milonga {meant}'? (see --help)")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Exit(get_exit_code(error)) from error


app = typer.Typer(
    name="milonga",
    cls=Commands,
    help="Train language models that learn from each other.",
    epilog=format_examples(
        "milonga run tango  # a generator and its verifier learn in turns, on a CPU, in minutes",
        "milonga compare tango grpo --seeds 5  # is it better to train the verifier too?",
        "milonga run --help  # each command has examples of its own",
    ),
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = SafeConsole()


def _print_version(wanted: bool) -> None:
    if wanted:
        from milonga import __version__

        sys.stdout.write(f"milonga {__version__}\n")
        raise typer.Exit


@app.callback()
def _read_global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Train language models that learn from each other."""


Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any config key: --set batch.rollouts=16. May be repeated.",
        rich_help_panel=SETTINGS,
        autocompletion=completion.complete_settings,
    ),
]


def _move_tables(json: bool) -> bool:
    """Print tables to stderr where stdout is for JSON alone."""
    console.stderr = json
    return json


AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object, alone on stdout.", rich_help_panel=OUTPUT, callback=_move_tables),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        help="bugs, chain, code, gsm8k, haystack, hub, jsonl, last_letter, search, reasoning_gym:NAME (see 'milonga list "
        "tasks'), or your own: file.py:attribute.",
        autocompletion=completion.complete_tasks,
    ),
]
DataFile = Annotated[
    Path | None, typer.Option("--data", help="Your own problems: a file with a question and an answer in each row.")
]
Question = Annotated[str | None, typer.Option("--question", help="The column of --data that holds the question.")]
Answer = Annotated[str | None, typer.Option("--answer", help="The column of --data that holds the answer.")]
Rewards = Annotated[
    list[str] | None,
    typer.Option(
        "--reward",
        metavar="FILE.py:FUNCTION",
        help="Your own reward function, f(prompts, completions, **columns); file.py:f*0.5 has a weight. May be repeated.",
    ),
]
Lora = Annotated[bool, typer.Option("--lora", help="Train adapters on one frozen model.", rich_help_panel=MODELS)]
LearningRate = Annotated[float | None, typer.Option("--lr", help="Learning rate of all policies.", rich_help_panel=SETTINGS)]
Problems = Annotated[int | None, typer.Option("--problems", help="Problems in a turn.", rich_help_panel=SETTINGS)]
Rollouts = Annotated[int | None, typer.Option("--rollouts", help="Rollouts in a group.", rich_help_panel=SETTINGS)]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", help="Most tokens of a solution.", rich_help_panel=SETTINGS)]
TokenLimit = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", min=1, help="Most tokens of a solution; a verification may have twice as many. The run's by default."
    ),
]
Wandb = Annotated[bool, typer.Option("--wandb", help="Log to Weights & Biases too.", rich_help_panel=OUTPUT)]
Generator = Annotated[
    str | None,
    typer.Option(
        help="Model of the generator: embedded, a folder, a hub name, a GGUF file or openai:URL#model.",
        rich_help_panel=MODELS,
    ),
]
Verifier = Annotated[str | None, typer.Option(help="Model of the verifier: the same.", rich_help_panel=MODELS)]
ConfigFile = Annotated[Path | None, typer.Option(help="A TOML file with any keys of the config.", rich_help_panel=SETTINGS)]
Device = Annotated[
    str | None,
    typer.Option(
        help="auto, cpu, cuda or cuda:N.",
        rich_help_panel=MODELS,
        autocompletion=completion.complete_from("auto", "cpu", "cuda"),
    ),
]
Sampler = Annotated[
    str | None,
    typer.Option(
        help="auto: our own; vllm: an engine of vLLM, where it is installed.",
        rich_help_panel=MODELS,
        autocompletion=completion.complete_from("auto", "vllm"),
    ),
]
RunFolder = Annotated[Path, typer.Argument(help="A run folder.", autocompletion=completion.complete_folders)]
Seeds = Annotated[str, typer.Option(help="How many seeds (from 100 on), or a list such as 100,101,102.")]
Jobs = Annotated[
    int | None,
    typer.Option(help="Runs side by side: one a core; on a GPU one, in a sweep as many as fit.", rich_help_panel=MODELS),
]
Trained = Annotated[
    str,
    typer.Argument(
        help="A run folder, a folder with a model, or openai:URL#model.", autocompletion=completion.complete_folders
    ),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="NAME",
        help="Of a run that was not made here: a file of code, host or variable that it may use. May be repeated.",
    ),
]
Checks = Annotated[int, typer.Option(min=1, help="Verifications of each solution; the probability comes from them.")]
Seed = Annotated[int | None, typer.Option(help="The run's by default; the same one gives the same results.")]


def print_json(data: dict[str, Any]) -> None:
    from milonga.runfolder.files import to_json

    sys.stdout.write(to_json(data) + "\n")


def collect_models(recipe: str, generator: str | None, verifier: str | None) -> dict[str, str]:
    """Collect the models that were named, by agent; refuse one for an agent that the recipe does not have."""
    from milonga.systems.custom import find_recipe

    agents = find_recipe(recipe).agents
    named = {agent: model for agent, model in (("generator", generator), ("verifier", verifier)) if model is not None}
    for agent in named:
        if agent not in agents:
            raise UserError(f"recipe '{recipe}' has no {agent}: --{agent} does not apply; its agents are {', '.join(agents)}")
    return named


def parse_set_options(texts: list[str] | None) -> list[dict[str, Any]]:
    from milonga.config import parse_setting

    return [parse_setting(text) for text in texts or []]
