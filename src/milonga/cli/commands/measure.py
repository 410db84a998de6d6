"""Commands that measure: probe, eval, compare, sweep and claim."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from milonga.cli import completion
from milonga.cli.help import MEASURE, OUTPUT, format_examples
from milonga.cli.shell import (
    Answer,
    AsJson,
    ConfigFile,
    DataFile,
    Device,
    Generator,
    Jobs,
    LearningRate,
    Lora,
    MaxTokens,
    Problems,
    Question,
    Rewards,
    Rollouts,
    Sampler,
    Seeds,
    Settings,
    TaskName,
    Trust,
    Verifier,
    Wandb,
    app,
    collect_models,
    console,
    parse_set_options,
    print_json,
)


@app.command(
    rich_help_panel=MEASURE,
    epilog=format_examples(
        "milonga probe --data problems.jsonl --generator small.gguf --lora  # before you pay for a run of tango",
        "milonga probe grpo --task last_letter --problems 16 --rollouts 8 --json",
    ),
)
def probe(
    recipe: Annotated[
        str,
        typer.Argument(
            help="The recipe that is to be run; grpo to probe a generator alone.", autocompletion=completion.complete_recipes
        ),
    ] = "tango",
    task: TaskName = None,
    data: DataFile = None,
    question: Question = None,
    answer: Answer = None,
    reward: Rewards = None,
    generator: Generator = None,
    verifier: Verifier = None,
    lora: Lora = False,
    max_tokens: MaxTokens = None,
    problems: Annotated[int, typer.Option(min=1, help="How many train problems.")] = 32,
    rollouts: Annotated[int, typer.Option(min=2, help="Solutions of each problem.")] = 4,
    seed: Annotated[int | None, typer.Option(help="All that is drawn follows from it.")] = None,
    device: Device = None,
    sampler: Sampler = None,
    config: ConfigFile = None,
    set_: Settings = None,
    json: AsJson = False,
) -> None:
    """Sample a few train problems and say what can be learned, what it costs, and what to change. Exit code 2: nothing can."""
    from milonga import api
    from milonga.cli.probe import print_probe, run_probe
    from milonga.flags import make_layer

    flags = make_layer(
        task=task,
        data=data,
        question=question,
        answer=answer,
        reward=list(reward or []),
        lora=lora,
        max_tokens=max_tokens,
    )
    plan = api.plan_run(
        recipe,
        seed=seed,
        device=device,
        sampler=sampler,
        models=collect_models(recipe, generator, verifier),
        config=config,
        settings=[flags, *parse_set_options(set_)],
    )
    found = run_probe(plan, problems, rollouts)
    print_probe(found, console)
    if json:
        print_json(found.to_json())
    if found.blocking:
        raise typer.Exit(2)


@app.command(
    name="eval",
    rich_help_panel=MEASURE,
    epilog=format_examples(
        "milonga eval runs/first  # on held-out test problems",
        "milonga eval runs/first --split dev --problems 256 --json",
        "milonga eval runs/tango processbench --file gsm8k.json --limit 100  # the verifier on ProcessBench",
        "milonga eval runs/tango best_of_n --samples 16 --plot best.svg",
        "milonga eval runs/tango matrix  # verifiers of all checkpoints on generators of all checkpoints",
    ),
)
def eval_(
    folder: Annotated[
        str,
        typer.Argument(
            help="A run folder; for processbench also a model: a folder, a name or openai:URL#model.",
            autocompletion=completion.complete_folders,
        ),
    ],
    suite: Annotated[
        str | None,
        typer.Argument(
            help="processbench, best_of_n, pass_at_k, transfer, calibration or matrix; by default none of them.",
            autocompletion=completion.complete_from(
                "processbench", "best_of_n", "pass_at_k", "transfer", "calibration", "matrix"
            ),
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="dev or test, which is the default.", autocompletion=completion.complete_from("dev", "test")),
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
    checkpoints: Annotated[int | None, typer.Option(help="matrix: how many, evenly from the start to the newest.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw what a suite found: FILE.svg.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Without a suite: every metric, not only what matters most.")] = False,
    trust: Trust = None,
    json: AsJson = False,
) -> None:
    """Measure a run's newest checkpoint on held-out problems, or by a suite: 'milonga list suites' has the options of each."""
    from milonga.cli.evals import run_evaluation

    report = run_evaluation(
        folder,
        suite,
        plot,
        console,
        all_,
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
        checkpoints=checkpoints,
        trust=trust,
    )
    if json:
        print_json(report)


@app.command(
    rich_help_panel=MEASURE,
    epilog=format_examples(
        "milonga compare tango grpo frozen --seeds 5  # the same command goes on where it stopped, with --out",
        "milonga compare tango tango:options.alpha=0.9 --metric verifier/f1 --baseline tango",
        "milonga compare tango grpo --match turns --task last_letter --dry-run",
    ),
)
def compare(
    recipes: Annotated[
        list[str],
        typer.Argument(
            help="Two or more arms: RECIPE or RECIPE:key=value[,key=value].", autocompletion=completion.complete_arms
        ),
    ],
    task: TaskName = None,
    data: DataFile = None,
    question: Question = None,
    answer: Answer = None,
    reward: Rewards = None,
    lora: Lora = False,
    lr: LearningRate = None,
    problems: Problems = None,
    rollouts: Rollouts = None,
    max_tokens: MaxTokens = None,
    wandb: Wandb = False,
    seeds: Seeds = "5",
    turns: Annotated[
        int | None, typer.Option(help="Turns of the lead agent; of the first arm where compute is matched.")
    ] = None,
    match: Annotated[
        str,
        typer.Option(
            help="What all arms get alike: turns, tokens or flops. auto: flops where recipes differ, else turns.",
            autocompletion=completion.complete_from("auto", "turns", "tokens", "flops"),
        ),
    ] = "auto",
    metric: Annotated[
        str, typer.Option(help="Any metric of the evaluations.", autocompletion=completion.complete_metrics)
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
    from milonga.flags import make_layer

    flags = make_layer(
        task=task,
        data=data,
        question=question,
        answer=answer,
        reward=list(reward or []),
        lora=lora,
        lr=lr,
        problems=problems,
        rollouts=rollouts,
        max_tokens=max_tokens,
        wandb=wandb,
    )
    result = run_comparison(
        recipes,
        seeds=seeds,
        turns=turns,
        match=match,
        metric=metric,
        baseline=baseline,
        out=out,
        device=device,
        sampler=sampler,
        config=config,
        settings=[flags, *parse_set_options(set_)],
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
    epilog=format_examples(
        "milonga sweep study.toml --out runs/study  # all runs of a file, as many at once as fit",
        "milonga sweep study.toml --out runs/study --with DATA=/data --minutes 9 --pack done.tgz  # for ten minutes",
        "milonga sweep study.toml --out runs/study --with DATA=/mnt --unpack done.tgz  # and on with it elsewhere",
    ),
)
def sweep(
    studies: Annotated[list[Path], typer.Argument(help="The study: a TOML file, see docs/sweep.md; or several, in order.")],
    out: Annotated[Path, typer.Option(help="The folder of its runs.", rich_help_panel=OUTPUT)],
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", help="NAME=VALUE: what $NAME in the study is here. May be repeated."),
    ] = None,
    set_: Settings = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Then every run ends after its turn, with a checkpoint. By default no limit.")
    ] = None,
    jobs: Jobs = None,
    only: Annotated[list[str] | None, typer.Option(help="Runs whose names begin so. May be repeated.")] = None,
    unpack: Annotated[Path | None, typer.Option(help="First unpack what --pack wrote elsewhere.")] = None,
    pack: Annotated[Path | None, typer.Option(help="At the end, pack records and newest checkpoints into this file.")] = None,
    pack_mib: Annotated[float, typer.Option(min=0, help="Most MiB of checkpoints in that file.")] = 100.0,
    list_: Annotated[bool, typer.Option("--list", help="List the runs.")] = False,
    json: AsJson = False,
) -> None:
    """Make the runs of a study side by side, in slices of time. The same command goes on where it stopped."""
    from milonga.cli.sweep import run_sweep

    done = run_sweep(
        studies,
        out=out,
        known=with_ or [],
        settings=parse_set_options(set_),
        minutes=minutes,
        jobs=jobs,
        only=only or [],
        unpack_from=unpack,
        pack_to=pack,
        pack_mib=pack_mib,
        list_only=list_,
        console=console,
    )
    if json:
        print_json(done)
    if done.get("failed"):
        raise typer.Exit(1)


@app.command(
    rich_help_panel=MEASURE,
    epilog=format_examples(
        "milonga claim --list  # what each paper says",
        "milonga claim prime --list  # what would be run for it",
        "milonga claim prime",
    ),
)
def claim(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A recipe whose claim to test (see --list), or your own: claim.py:CLAIM.",
            autocompletion=completion.complete_claims,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="How many seeds, or a list such as 100,101,102; by default as many as were planned (see --list)."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="With all arms, not only those the claim is about.")] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Without the pilot: test it whether or not it can be tested.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The folder of its runs; runs/claim-NAME by default.", rich_help_panel=OUTPUT)
    ] = None,
    device: Device = None,
    sampler: Sampler = None,
    jobs: Jobs = None,
    list_: Annotated[bool, typer.Option("--list", help="List the claims, or what one would run.")] = False,
    json: AsJson = False,
) -> None:
    """Test what a paper claims, in miniature. A pilot of three seeds says first whether it can be tested: whether
    there is room, and whether what it rests on works. The same command goes on where it stopped."""
    from milonga.cli.claims import list_claims, try_claim
    from milonga.cli.stopped import say_how_to_go_on

    if name is None or list_:
        found = list_claims(console, name)
    else:
        with say_how_to_go_on():
            found = try_claim(name, seeds, full, anyway, out, device, sampler, jobs, console)
    if json:
        print_json(found)
    if found.get("failed"):
        raise typer.Exit(1)
