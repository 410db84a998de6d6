"""Commands that use what was trained: solve, verify, chat, serve and export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from milonga.cli.help import USE, format_examples
from milonga.cli.shell import (
    AsJson,
    Checks,
    Device,
    RunFolder,
    Sampler,
    Seed,
    TokenLimit,
    Trained,
    Trust,
    app,
    console,
    print_json,
)

RowsFile = Annotated[
    Path | None, typer.Option("--out", help="A file for the rows; stdout by default, with --json within its object.")
]


@app.command(
    rich_help_panel=USE,
    epilog=format_examples(
        "milonga solve runs/first problems.jsonl --best-of 8 --rank verifier --out answers.jsonl",
        "milonga solve runs/first problems.jsonl --rank both --json  # a vote weighted by the verifier",
    ),
)
def solve(
    folder: Trained,
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON lines, CSV or parquet: question (or problem) and, where it is known, answer; or as in the run's data."
        ),
    ],
    best_of: Annotated[int, typer.Option(min=1, help="Solutions of each problem; one is decoded greedily.")] = 8,
    rank: Annotated[
        str | None,
        typer.Option(
            help="verifier: its best; vote: the most frequent answer; both: a vote weighted by the verifier's ranks. "
            "By default verifier, or vote where none was trained."
        ),
    ] = None,
    checks: Checks = 1,
    question: Annotated[str | None, typer.Option(help="The field that holds the question; nested ones by a.b.0.c.")] = None,
    answer: Annotated[str | None, typer.Option(help="The field that holds the answer, where it is known.")] = None,
    out: RowsFile = None,
    temperature: Annotated[float | None, typer.Option(help="The run's by default.")] = None,
    max_tokens: TokenLimit = None,
    seed: Seed = None,
    device: Device = None,
    sampler: Sampler = None,
    trust: Trust = None,
    json: AsJson = False,
) -> None:
    """Solve problems with a trained pair: answers with scores, as JSON lines."""
    from milonga.cli.use import parse_rank, report_solved, solve_file

    summary = solve_file(
        folder,
        file,
        best_of=best_of,
        rank=parse_rank(rank),
        checks=checks,
        out=out,
        keep=json,
        question=question,
        answer=answer,
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
        device=device,
        sampler=sampler,
        trust=trust or (),
    )
    report_solved(summary)
    if json:
        print_json(summary)


@app.command(
    rich_help_panel=USE,
    epilog=format_examples(
        "milonga verify runs/first solutions.jsonl --checks 8  # verdicts on each step, and how sure",
        "milonga verify runs/first gsm8k.json --out judged.jsonl  # a file of ProcessBench",
    ),
)
def verify(
    folder: Trained,
    file: Annotated[Path, typer.Argument(help="JSON lines, or a ProcessBench file: a problem and the steps of a solution.")],
    checks: Checks = 1,
    out: RowsFile = None,
    max_tokens: TokenLimit = None,
    seed: Seed = None,
    device: Device = None,
    sampler: Sampler = None,
    trust: Trust = None,
    json: AsJson = False,
) -> None:
    """Judge solutions step by step with a trained verifier, as JSON lines."""
    from milonga.cli.use import report_verified, verify_file

    summary = verify_file(
        folder,
        file,
        checks=checks,
        out=out,
        keep=json,
        max_tokens=max_tokens,
        seed=seed,
        device=device,
        sampler=sampler,
        trust=trust or (),
    )
    report_verified(summary)
    if json:
        print_json(summary)


@app.command(
    rich_help_panel=USE,
    epilog=format_examples(
        "milonga chat runs/first",
        "milonga chat runs/first --best-of 8  # the verifier chooses what is shown",
    ),
)
def chat(
    folder: Trained,
    best_of: Annotated[int, typer.Option(min=1, help="Solutions of each question, of which the verifier's best is shown.")] = 1,
    checks: Checks = 8,
    max_tokens: TokenLimit = None,
    seed: Seed = None,
    device: Device = None,
    trust: Trust = None,
) -> None:
    """Talk to a trained pair: a question a line; the solution appears, then the verdict on each step."""
    from milonga.cli.chat import chat as talk
    from milonga.pair import Pair

    with Pair.open(folder, max_tokens=max_tokens, seed=seed, device=device, trust=trust or ()) as pair:
        talk(pair, console, best_of, checks)


@app.command(
    rich_help_panel=USE,
    epilog=format_examples(
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
    max_tokens: TokenLimit = None,
    device: Device = None,
    trust: Trust = None,
) -> None:
    """Serve a trained pair over HTTP: /solve, /verify and /health. Requests that arrive together are answered by one batch."""
    from milonga.cli.serve import serve as answer

    answer(folder, host, port, token_file, rate, waiting, device, trust or (), max_tokens)


@app.command(
    rich_help_panel=USE,
    epilog=format_examples(
        "milonga export runs/first generator out/generator  # then: vllm serve out/generator",
        "milonga export runs/first verifier out/verifier --adapters",
    ),
)
def export(
    folder: RunFolder,
    agent: Annotated[str, typer.Argument(help="generator, verifier, or another agent of the recipe.")],
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    adapters: Annotated[
        bool, typer.Option("--adapters", help="Of a LoRA run: the adapter as a peft folder, not merged into its base.")
    ] = False,
    trust: Trust = None,
    json: AsJson = False,
) -> None:
    """Write an agent's model as an ordinary Hugging Face folder with a model card, for transformers, vLLM or another run."""
    from milonga.using.export import export as write

    found = write(folder, agent, out, adapters=adapters, trust=trust or ())
    console.print(f"{found['folder']}: {found['bytes'] / 2**20:,.1f} MiB", markup=False, soft_wrap=True)
    if json:
        print_json(found)
