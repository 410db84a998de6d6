"""The command `milonga`.

Invariants: a user's mistake is one line on stderr and exit code 2, never a traceback; progress goes to stderr; with
`--json` the last line of stdout is one JSON object. Every command ends its help with examples, which a test parses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from milonga.cli import completion
from milonga.cli.help import BUILD, LOOK, MEASURE, MODELS, OUTPUT, SETTINGS, TRAIN, USE, examples
from milonga.errors import UserError

app = typer.Typer(
    name="milonga",
    help="Train language models that learn from each other.",
    epilog=examples(
        "milonga run tango  # a generator and its verifier learn in turns, on a CPU, in minutes",
        "milonga compare tango grpo --seeds 5  # is it better to train the verifier too?",
        "milonga run --help  # each command has examples of its own",
    ),
    pretty_exceptions_enable=False,
)
console = Console()
STOPPED = 130

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any config key: --set batch.rollouts=16. May be repeated.",
        rich_help_panel=SETTINGS,
        autocompletion=completion.settings,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.", rich_help_panel=OUTPUT)
]
TaskName = Annotated[
    str | None,
    typer.Option(
        help="chain, last_letter, gsm8k, jsonl, reasoning_gym:NAME or file.py:attribute.", autocompletion=completion.tasks
    ),
]
ConfigFile = Annotated[Path | None, typer.Option(help="A TOML file with any keys of the config.", rich_help_panel=SETTINGS)]
Device = Annotated[
    str | None,
    typer.Option(
        help="auto, cpu, cuda or cuda:N.",
        rich_help_panel=MODELS,
        autocompletion=completion.choices("auto", "cpu", "cuda"),
    ),
]
Sampler = Annotated[
    str | None,
    typer.Option(
        help="auto: our own; vllm: an engine of vLLM, where it is installed.",
        rich_help_panel=MODELS,
        autocompletion=completion.choices("auto", "vllm"),
    ),
]
RunFolder = Annotated[Path, typer.Argument(help="A run folder.", autocompletion=completion.folders)]
Seeds = Annotated[str, typer.Option(help="How many seeds (from 100 on), or a list such as 100,101,102.")]
Jobs = Annotated[
    int | None, typer.Option(help="Runs side by side: all cores, or 1 on a GPU, by default.", rich_help_panel=MODELS)
]
Trained = Annotated[Path, typer.Argument(help="A run folder, or a folder with a model.", autocompletion=completion.folders)]
Checks = Annotated[int, typer.Option(min=1, help="Verifications of each solution; the probability comes from them.")]
Seed = Annotated[int | None, typer.Option(help="The run's by default; the same one gives the same results.")]


def print_json(data: dict[str, Any]) -> None:
    from milonga.run.files import to_json

    sys.stdout.write(to_json(data) + "\n")


def settings_of(texts: list[str] | None) -> list[dict[str, Any]]:
    from milonga.config import parse_setting

    return [parse_setting(text) for text in texts or []]


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


@app.command(
    name="eval",
    rich_help_panel=MEASURE,
    epilog=examples(
        "milonga eval runs/first  # on held-out test problems",
        "milonga eval runs/first --split dev --problems 256 --json",
        "milonga eval runs/tango processbench --file gsm8k.json --limit 100  # the verifier on ProcessBench",
        "milonga eval runs/tango best_of_n --samples 16 --plot best.svg",
    ),
)
def eval_(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A run folder; for processbench also a model: a folder or a name.", autocompletion=completion.folders
        ),
    ],
    suite: Annotated[
        str | None,
        typer.Argument(
            help="processbench, best_of_n, pass_at_k, transfer or calibration; by default none of them.",
            autocompletion=completion.choices("processbench", "best_of_n", "pass_at_k", "transfer", "calibration"),
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="dev or test, which is the default.", autocompletion=completion.choices("dev", "test")),
    ] = None,
    problems: Annotated[int | None, typer.Option(help="How many held-out problems.")] = None,
    samples: Annotated[int | None, typer.Option(help="Solutions of each problem: the largest N, or k.")] = None,
    checks: Annotated[int | None, typer.Option(help="Verifications of each solution.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="processbench: a file, or a folder of files. May be repeated.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="processbench: items of each file, taken evenly over it.")] = None,
    style: Annotated[str | None, typer.Option(help="processbench: own, paragraphs or auto.")] = None,
    tokens: Annotated[int | None, typer.Option(help="processbench: most tokens of a verification.")] = None,
    generator: Annotated[
        list[str] | None, typer.Option(help="transfer: another run, or a model, whose solutions to judge. May be repeated.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="transfer: another task, as chain,ops=12. May be repeated.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw what a suite found: FILE.svg.")] = None,
    json: AsJson = False,
) -> None:
    """Measure a run's newest checkpoint on held-out problems, or by a suite: 'milonga list suites' has the options of each."""
    from milonga.cli.evals import run_evaluation

    report = run_evaluation(
        folder,
        suite,
        plot,
        console,
        split=split,
        problems=problems,
        samples=samples,
        checks=checks,
        file=file,
        limit=limit,
        style=style,
        tokens=tokens,
        generator=generator,
        task=task,
    )
    if json:
        print_json(report)


@app.command(
    rich_help_panel=MEASURE,
    epilog=examples(
        "milonga compare tango grpo frozen --seeds 5  # the same command goes on where it stopped, with --out",
        "milonga compare tango tango:options.alpha=0.9 --metric verifier/f1 --baseline tango",
        "milonga compare tango grpo --match flops --task last_letter --dry-run",
    ),
)
def compare(
    recipes: Annotated[
        list[str],
        typer.Argument(help="Two or more arms: RECIPE or RECIPE:key=value[,key=value].", autocompletion=completion.arms),
    ],
    task: TaskName = None,
    seeds: Seeds = "5",
    turns: Annotated[
        int | None, typer.Option(help="Turns of the lead seat; of the first arm where compute is matched.")
    ] = None,
    match: Annotated[
        str,
        typer.Option(
            help="What all arms get alike: turns, tokens or flops.",
            autocompletion=completion.choices("turns", "tokens", "flops"),
        ),
    ] = "turns",
    metric: Annotated[
        str, typer.Option(help="Any metric of the evaluations.", autocompletion=completion.metrics)
    ] = "eval/generator/accuracy",
    baseline: Annotated[
        str | None, typer.Option(help="The arm that the others are compared with; grpo, or the last one, by default.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the comparison; runs/compare-TIME by default.", rich_help_panel=OUTPUT)
    ] = None,
    device: Device = None,
    sampler: Sampler = None,
    config: ConfigFile = None,
    set_: Settings = None,
    jobs: Jobs = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be compared and stop.", rich_help_panel=OUTPUT)
    ] = False,
    json: AsJson = False,
) -> None:
    """Compare recipes fairly: same start, same problems, paired seeds. The same command goes on where it stopped."""
    from milonga.cli.compare import run_comparison

    result = run_comparison(
        recipes,
        task=task,
        seeds=seeds,
        turns=turns,
        match=match,
        metric=metric,
        baseline=baseline,
        out=out,
        device=device,
        sampler=sampler,
        config=config,
        settings=settings_of(set_),
        jobs=jobs,
        dry_run=dry_run,
        console=console,
    )
    if json:
        print_json(result)
    if result.get("failed"):
        raise typer.Exit(1)


@app.command(
    rich_help_panel=MEASURE,
    epilog=examples(
        "milonga claim --list  # what each paper says, and what would be run",
        "milonga claim prime --seeds 5",
    ),
)
def claim(
    name: Annotated[
        str | None, typer.Argument(help="A recipe whose claim to test: see --list.", autocompletion=completion.claims)
    ] = None,
    seeds: Seeds = "5",
    full: Annotated[bool, typer.Option("--full", help="With all arms, not only those the claim is about.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="The folder of its runs; runs/claim-NAME by default.", rich_help_panel=OUTPUT)
    ] = None,
    device: Device = None,
    sampler: Sampler = None,
    jobs: Jobs = None,
    list_: Annotated[bool, typer.Option("--list", help="List the claims.")] = False,
    json: AsJson = False,
) -> None:
    """Test what a paper claims, in miniature. The same command goes on where it stopped."""
    from milonga.cli.claims import list_claims, try_claim

    asked = None if list_ else name
    found = list_claims(console) if asked is None else try_claim(asked, seeds, full, out, device, sampler, jobs, console)
    if json:
        print_json(found)
    if found.get("failed"):
        raise typer.Exit(1)


@app.command(
    rich_help_panel=USE,
    epilog=examples(
        "milonga solve runs/first problems.jsonl --best-of 8 --rank verifier --out answers.jsonl",
        "milonga solve runs/first problems.jsonl --rank both --json  # a vote weighted by the verifier",
    ),
)
def solve(
    folder: Trained,
    file: Annotated[Path, typer.Argument(help="JSON lines with a question (or problem), and an answer where it is known.")],
    best_of: Annotated[int, typer.Option(min=1, help="Solutions of each problem; one is decoded greedily.")] = 8,
    rank: Annotated[
        str,
        typer.Option(help="verifier: its best; vote: the most frequent answer; both: a vote weighted by the verifier's ranks."),
    ] = "verifier",
    checks: Checks = 1,
    out: Annotated[Path | None, typer.Option(help="A file for the rows; stdout by default.")] = None,
    temperature: Annotated[float | None, typer.Option(help="The run's by default.")] = None,
    seed: Seed = None,
    device: Device = None,
    sampler: Sampler = None,
    json: AsJson = False,
) -> None:
    """Solve problems with a trained pair: answers with scores, as JSON lines."""
    from milonga.cli.use import rank_of, report_solved, solve_file

    summary = solve_file(
        folder,
        file,
        best_of=best_of,
        rank=rank_of(rank),
        checks=checks,
        out=out,
        temperature=temperature,
        seed=seed,
        device=device,
        sampler=sampler,
    )
    report_solved(summary)
    if json:
        print_json(summary)


@app.command(
    rich_help_panel=USE,
    epilog=examples(
        "milonga verify runs/first solutions.jsonl --checks 8  # verdicts on each step, and how sure",
        "milonga verify runs/first gsm8k.json --out judged.jsonl  # a file of ProcessBench",
    ),
)
def verify(
    folder: Trained,
    file: Annotated[Path, typer.Argument(help="JSON lines, or a ProcessBench file: a problem and the steps of a solution.")],
    checks: Checks = 1,
    out: Annotated[Path | None, typer.Option(help="A file for the rows; stdout by default.")] = None,
    seed: Seed = None,
    device: Device = None,
    sampler: Sampler = None,
    json: AsJson = False,
) -> None:
    """Judge solutions step by step with a trained verifier, as JSON lines."""
    from milonga.cli.use import report_verified, verify_file

    summary = verify_file(folder, file, checks=checks, out=out, seed=seed, device=device, sampler=sampler)
    report_verified(summary)
    if json:
        print_json(summary)


@app.command(
    rich_help_panel=USE,
    epilog=examples(
        "milonga chat runs/first",
        "milonga chat runs/first --best-of 8  # the verifier chooses what is shown",
    ),
)
def chat(
    folder: Trained,
    best_of: Annotated[int, typer.Option(min=1, help="Solutions of each question, of which the verifier's best is shown.")] = 1,
    checks: Checks = 8,
    seed: Seed = None,
    device: Device = None,
) -> None:
    """Talk to a trained pair: a question a line; the solution appears, then the verdict on each step."""
    from milonga.cli.chat import chat as talk
    from milonga.pair import Pair

    with Pair.open(folder, seed=seed, device=device) as pair:
        talk(pair, console, best_of, checks)


@app.command(
    rich_help_panel=USE,
    epilog=examples(
        "milonga serve runs/first --port 8000",
        "milonga serve runs/first --host 0.0.0.0 --token-file token.txt  # beyond this machine only with a token",
    ),
)
def serve(
    folder: Trained,
    host: Annotated[str, typer.Option(help="Where to listen. Anything but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that requests must carry; or set MILONGA_TOKEN.")
    ] = None,
    rate: Annotated[float, typer.Option(min=1, help="Requests of one client in a minute.")] = 120,
    waiting: Annotated[int, typer.Option(min=1, help="Most problems and solutions that wait their turn.")] = 1024,
    device: Device = None,
) -> None:
    """Serve a trained pair over HTTP: /solve, /verify and /health. Requests that arrive together are answered by one batch."""
    from milonga.cli.serve import serve as answer

    answer(folder, host, port, token_file, rate, waiting, device)


@app.command(
    rich_help_panel=USE,
    epilog=examples(
        "milonga export runs/first generator out/generator  # then: vllm serve out/generator",
        "milonga export runs/first verifier out/verifier --adapters",
    ),
)
def export(
    folder: RunFolder,
    seat: Annotated[str, typer.Argument(help="generator, verifier, or another seat of the recipe.")],
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    adapters: Annotated[
        bool, typer.Option("--adapters", help="Of a LoRA run: the adapter as a peft folder, not merged into its base.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Write a seat as an ordinary Hugging Face folder with a model card, for transformers, vLLM or another run."""
    from milonga.using.export import export as write

    found = write(folder, seat, out, adapters=adapters)
    console.print(f"{found['folder']}: {found['bytes'] / 2**20:,.1f} MiB", markup=False, soft_wrap=True)
    if json:
        print_json(found)


@app.command(
    name="list",
    rich_help_panel=LOOK,
    epilog=examples("milonga list recipes  # each with its paper and what it needs", "milonga list tasks --json"),
)
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help="recipes, tasks, roles, objectives or suites.",
            autocompletion=completion.choices("recipes", "tasks", "roles", "objectives", "suites"),
        ),
    ],
    json: AsJson = False,
) -> None:
    """List what there is."""
    from milonga.cli.views import listing, print_listing

    rows = listing(kind)
    print_listing(kind, rows, console)
    if json:
        print_json({kind: rows})


@app.command(
    rich_help_panel=LOOK,
    epilog=examples(
        "milonga show runs/first  # curves, and the last solutions with the verdict on each step",
        "milonga show runs/first --transcripts 20",
    ),
)
def show(
    folder: RunFolder,
    transcripts: Annotated[int, typer.Option(help="How many of the last transcripts.")] = 3,
) -> None:
    """Curves and the last transcripts of a run, with step verdicts."""
    from milonga.cli.views import show_run

    show_run(folder, transcripts, console)


@app.command(
    rich_help_panel=LOOK,
    epilog=examples(
        "milonga report runs/first  # written anew; every run ends with one",
        "milonga report runs/first runs/second --out both.html --md  # side by side",
    ),
)
def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders of comparisons and claims.", autocompletion=completion.folders)
    ],
    out: Annotated[Path | None, typer.Option(help="The HTML file; DIR/report.html, or report.html for several.")] = None,
    md: Annotated[bool, typer.Option("--md", help="Markdown too, beside it.")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="PDF too, printed by a browser that is installed.")] = False,
    json: AsJson = False,
) -> None:
    """Write what happened in a run, a comparison, or several side by side, as one HTML file that needs nothing else."""
    from milonga.cli.report import report_on

    written = report_on(folders, out, md, pdf, console)
    if json:
        print_json(written)


@app.command(
    rich_help_panel=LOOK,
    epilog=examples(
        "milonga board  # all runs below runs/, live, at http://127.0.0.1:8710",
        "milonga board runs/first --port 0",
        "milonga board --host 0.0.0.0 --token-file token.txt  # beyond this machine only with a token",
    ),
)
def board(
    runs: Annotated[
        Path, typer.Argument(help="A folder of runs, a run, or a comparison.", autocompletion=completion.folders)
    ] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8710,
    host: Annotated[str, typer.Option(help="Others than loopback need a token.")] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that pages ask for; MILONGA_TOKEN is one too.")
    ] = None,
) -> None:
    """Watch runs in a browser: curves, reward flow, time, and what the models wrote, with every verdict."""
    from milonga.board.server import serve
    from milonga.doors import find_token

    serve(runs, host, port, find_token(host, token_file), typer.echo)


@app.command(rich_help_panel=LOOK, epilog=examples("milonga doctor  # the first thing to run where something does not work"))
def doctor() -> None:
    """What is installed, which devices there are, and what would be used."""
    from milonga.cli.doctor import examine

    examine(console)


@app.command(
    rich_help_panel=BUILD,
    epilog=examples(
        "milonga new task double_sums  # double_sums/: the task, its test, and how to run them",
        "milonga new recipe short_answers --dir projects/short",
    ),
)
def new(
    kind: Annotated[str, typer.Argument(help="recipe or task.", autocompletion=completion.choices("recipe", "task"))],
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


def guarded(command: Callable[[], Any]) -> int:
    """Run a command; a user's mistake becomes one line and exit code 2."""
    code: Any = 0
    try:
        code = command()
    except UserError as error:
        return complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return complain(f"{error.format_message()} (see --help)")  # the parser's own: a wrong command, option or value
    if code == STOPPED:
        trains = sys.argv[1:2] in (["run"], ["resume"])
        sys.stderr.write("milonga: stopped" + ("; 'milonga resume DIR' goes on from the last checkpoint\n" if trains else "\n"))
    return code if isinstance(code, int) else 0


def complain(text: str) -> int:
    sys.stderr.write(f"milonga: {' '.join(text.split())}\n")
    return 2


def main() -> None:
    """The entry point of the `milonga` command."""
    import os

    # Loading bars of small models only hide what matters.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with completion.whole_words():
        sys.exit(guarded(lambda: app(sys.argv[1:] or ["--help"], prog_name="milonga", standalone_mode=False)))
