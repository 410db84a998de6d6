"""Commands that train: run and resume; and plan, which says what that would take elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from milonga.cli import completion
from milonga.cli.help import MODELS, OUTPUT, SETTINGS, TRAIN, format_examples
from milonga.cli.shell import (
    Answer,
    AsJson,
    ConfigFile,
    DataFile,
    Device,
    Generator,
    LearningRate,
    Lora,
    MaxTokens,
    Problems,
    Question,
    Rewards,
    Rollouts,
    RunFolder,
    Sampler,
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
    rich_help_panel=TRAIN,
    epilog=format_examples(
        "milonga run tango  # the embedded model on chain arithmetic",
        "milonga run grpo --turns 6 --out runs/first --set batch.problems=16",
        "milonga run tango --engine ray --set placement.cpus=0.5 --dry-run  # who would go where",
        "milonga run tango --data problems.jsonl --generator small.gguf --verifier small.gguf --lora",
        "milonga run grpo --data problems.jsonl --generator small.gguf --reward my.py:short --reward my.py:polite*0.5",
        "milonga run frozen --generator small.gguf --verifier 'openai:http://127.0.0.1:8000/v1#judge'  # behind an endpoint",
    ),
)
def run(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe (see 'milonga list recipes'), or your own: file.py:Class.",
            autocompletion=completion.complete_recipes,
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
    generator: Generator = None,
    verifier: Verifier = None,
    turns: Annotated[int | None, typer.Option(help="Turns of the lead agent.")] = None,
    seed: Annotated[int | None, typer.Option(help="All that is drawn follows from it.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; runs/RECIPE-TIME by default.", rich_help_panel=OUTPUT)
    ] = None,
    device: Device = None,
    sampler: Sampler = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="local: this process; ray: workers on this machine or a cluster, as the section placement says.",
            rich_help_panel=MODELS,
            autocompletion=completion.complete_from("local", "ray"),
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs of this machine; several by the engine ray.", rich_help_panel=MODELS)
    ] = None,
    config: ConfigFile = None,
    set_: Settings = None,
    probe: Annotated[
        bool | None,
        typer.Option(
            "--probe/--no-probe",
            help="Whether to sample a few problems first, to see what can be learned; with real models by default.",
        ),
    ] = None,
    eval_: Annotated[
        bool | None,
        typer.Option("--eval/--no-eval", help="Whether to measure on held-out problems: at the start, at the end, between."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Run even if the probe says that nothing can be learned.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the resolved config, and who would go where on a cluster, and stop.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Train by a recipe."""
    from milonga import api
    from milonga.cli.views import complete_report, print_summary
    from milonga.config import to_toml
    from milonga.errors import ConfigError
    from milonga.flags import make_layer, place_on_gpus
    from milonga.systems.custom import find_recipe

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
    placed = {} if gpus is None else place_on_gpus(gpus, find_recipe(recipe))
    probing = [] if probe is None else [{"probe": "on" if probe else "off"}]
    measuring = [{"eval": {"problems": 0}}] if eval_ is False else []
    plan = api.plan_run(
        recipe,
        turns=turns,
        seed=seed,
        device=device,
        sampler=sampler,
        engine=engine,
        models=collect_models(recipe, generator, verifier),
        config=config,
        settings=[flags, placed, *probing, *measuring, *parse_set_options(set_)],
    )
    if eval_ and not plan.config.eval.problems:
        raise ConfigError("--eval: eval.problems is 0, so that nothing would be measured: --set eval.problems=64, say")
    if dry_run:
        resolved = plan.config.model_dump(mode="json")
        workers, learning = api.preview_placement(plan), api.preview_learning(plan)
        if json:
            print_json({"config": resolved, "learning": learning} | ({"placement": workers} if workers else {}))
        else:
            sys.stdout.write(to_toml(resolved) + "".join(f"# {line}\n" for line in [*learning, *workers]))
        return
    folder = out if out is not None else api.choose_run_folder(recipe)
    report = api.start(plan, folder, force=force)
    print_summary(report, folder, console)
    if json:
        print_json(complete_report(report, folder))


@app.command(
    rich_help_panel=TRAIN,
    epilog=format_examples(
        "milonga resume runs/first  # after a crash, a kill or Ctrl-C: nothing else is needed",
        "milonga resume runs/first --turns 60  # a run that has ended goes on",
        "milonga resume runs/first --force --json  # even if it stopped because it found nothing to learn from",
        "milonga resume runs/first --accept-loss  # with what is left of a damaged folder; the report says what is missing",
    ),
)
def resume(
    folder: RunFolder,
    turns: Annotated[int | None, typer.Option(help="Extend the run to so many turns of the lead agent.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Go on even if nothing was found to learn from.")] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on with what is left where rows or files are missing or damaged.")
    ] = False,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Go on with keys of config.toml that were edited since the checkpoint.")
    ] = False,
    trust: Trust = None,
    json: AsJson = False,
) -> None:
    """Go on with a run from its newest whole checkpoint."""
    from milonga import api
    from milonga.cli.views import complete_report, print_summary

    before = _get_report_time(folder)
    report = api.resume(
        folder, turns=turns, force=force, accept_loss=accept_loss, accept_changes=accept_changes, trust=trust or ()
    )
    if _get_report_time(folder) != before:  # otherwise nothing was learned: what it had learned, `show` says
        print_summary(report, folder, console)
    if json:
        print_json(complete_report(report, folder))


def _get_report_time(folder: Path) -> int | None:
    """When the report of a run was written, as every run does at its end; None if there is none."""
    report = folder / "report.json"
    return report.stat().st_mtime_ns if report.exists() else None


@app.command(
    rich_help_panel=TRAIN,
    epilog=format_examples(
        "milonga plan --generator 7b --verifier 7b --gpus 64",
        "milonga plan --generator 72b --verifier 7b --gpus 256 --problems 512 --rollouts 16 --tokens 8192",
        "milonga plan --recipe grpo --generator 1.5b --gpus 8 --gpu h100 --price 2.2 --json",
        "milonga plan --generator 7b --gpus 64 --all  # with what each group does, and how good the model is",
    ),
)
def plan(
    generator: Annotated[
        str,
        typer.Option(
            help="A size (7b), a known model (llama-3-8b) or a folder with a config.json.",
            rich_help_panel=MODELS,
            autocompletion=completion.complete_shapes,
        ),
    ],
    gpus: Annotated[int, typer.Option(min=1, max=8192, help="At most so many; fewer are used where more do not help.")],
    verifier: Annotated[
        str | None,
        typer.Option(
            help="Likewise; as the generator by default.", rich_help_panel=MODELS, autocompletion=completion.complete_shapes
        ),
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="tango, grpo or frozen.", autocompletion=completion.complete_from("tango", "grpo", "frozen"))
    ] = "tango",
    gpu: Annotated[
        str, typer.Option(help="The kind of GPU.", rich_help_panel=MODELS, autocompletion=completion.complete_accelerators)
    ] = "h200",
    problems: Annotated[
        int | None,
        typer.Option(min=1, max=2**24, help="Problems in a turn; as in a config by default.", rich_help_panel=SETTINGS),
    ] = None,
    rollouts: Annotated[
        int | None,
        typer.Option(min=2, max=2**16, help="Rollouts in a group; as in a config by default.", rich_help_panel=SETTINGS),
    ] = None,
    prompt: Annotated[int, typer.Option(min=1, max=2**24, help="Tokens of a question.", rich_help_panel=SETTINGS)] = 256,
    tokens: Annotated[int, typer.Option(min=2, max=2**24, help="Most tokens of a solution.", rich_help_panel=SETTINGS)] = 1024,
    mean: Annotated[
        float | None, typer.Option(min=1, help="Mean tokens of a solution; half of the most.", rich_help_panel=SETTINGS)
    ] = None,
    check_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, max=2**24, help="Most tokens of a verification; as a solution by default.", rich_help_panel=SETTINGS
        ),
    ] = None,
    spread: Annotated[
        float,
        typer.Option(
            min=0, max=5, help="Standard deviation of lengths over their mean; 0: all alike.", rich_help_panel=SETTINGS
        ),
    ] = 0.5,
    staleness: Annotated[
        int, typer.Option(min=0, max=8, help="Turns by which sampling may be ahead of learning, on split GPUs.")
    ] = 1,
    offload: Annotated[
        bool, typer.Option("--offload", help="Learners with `policies.NAME.offload`: moments in host memory.")
    ] = False,
    turns: Annotated[
        int | None,
        typer.Option(min=1, max=10**9, help="Turns of the run, for its hours and its cost; as in a config by default."),
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0, max=1e9, help="Of an hour of one GPU; a round assumption by default.")
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="With groups of GPUs, assumptions and measurements.", rich_help_panel=OUTPUT)
    ] = False,
    json: AsJson = False,
) -> None:
    """Predict time, memory and cost of a turn, and the best split of GPUs, from a model calibrated on one GPU."""
    from milonga.cli.plan import plan_hardware, print_plan

    found = plan_hardware(
        generator,
        verifier,
        recipe=recipe,
        gpus=gpus,
        gpu=gpu,
        problems=problems,
        rollouts=rollouts,
        prompt=prompt,
        tokens=tokens,
        mean=mean,
        check_tokens=check_tokens,
        spread=spread,
        staleness=staleness,
        offload=offload,
        turns=turns,
        price=price,
    )
    print_plan(found, console, all_)
    if json:
        print_json(found)
