"""Render the model card of an exported agent from its run: training facts, metrics, the exact prompt, and usage.

Invariant: of the trainer's machine it contains only versions, and text of a model stays inside code blocks.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from milonga.config import to_toml
from milonga.pair import Finished
from milonga.report.markdown import fenced
from milonga.resolve import Plan
from milonga.roles import Scorer, StepSolver, solver_in
from milonga.roles.solver import as_trace
from milonga.run.files import JsonLines
from milonga.run.machine import version_of
from milonga.run.note import FILE
from milonga.table import Setting, Table
from milonga.tasks import keyed
from milonga.text import number
from milonga.types import Prompt, Trace, Traces

PACKAGES = ("milonga", "torch", "transformers", "peft", "safetensors")


def seats_of(plan: Plan, policy: str) -> list[str]:
    """List the agents of a policy: several if they share one model."""
    return [seat for seat, name in plan.seats.items() if name == policy]


def card(path: Path, found: Finished, setting: Setting, seat: str, adapters: bool) -> str:
    """Render the card of an agent; `setting` has its weights, to show an example completion."""
    plan, config = found.plan, found.plan.config
    section = plan.policies[plan.seats[seat]]
    kind = "an adapter for" if adapters else "trained from"
    facts = {
        "seat": f"{', '.join(seats_of(plan, plan.seats[seat]))} (role `{plan.roles[seat].name}`)",
        "recipe": ", ".join(filter(None, (plan.recipe.name, plan.recipe.paper))),
        "task": inline(config.task),
        "turns": f"{found.turn} in all, {config.turns} asked for of the {plan.recipe.lead}",
        "start": short(section.model),
        "weights": "all" if section.lora is None else f"LoRA of rank {section.lora.rank}" + ("" if adapters else ", merged"),
        "learning rate": f"{section.learning_rate:g}",
        "binding": config.binding,
        "dialect": config.dialect,
        "seed": str(config.seed),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
    blocks = [
        front(plan.recipe.name, seat, section.model, adapters),
        f"# The {seat} of a {plan.recipe.name} run",
        f"A language model, {kind} `{short(section.model)}` by milonga, together with the "
        f"other seats of its run ({', '.join(plan.seats)}).",
        "## How it was trained",
        table(("", ""), list(facts.items())),
        "<details><summary>The resolved config</summary>",
        fenced(to_toml(without_places(config.model_dump(mode="json"))).rstrip(), "toml"),
        "</details>",
        "## What was measured",
        measured(path, seat, found),
        "## How it is asked",
        asked(plan, setting, seat),
        "## How to use it",
        usage(plan, seat, adapters),
    ]
    return "\n\n".join(blocks) + "\n"


def front(recipe: str, seat: str, model: str, adapters: bool) -> str:
    """Render the front matter that a model hub reads. A base model is named only if it is a hub name."""
    lines = ["library_name: " + ("peft" if adapters else "transformers"), "pipeline_tag: text-generation"]
    lines += ["tags:", *(f"- {tag}" for tag in ("milonga", recipe, seat))]
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model) and not Path(model).exists():
        lines.append(f"base_model: {model}")
    return "\n".join(["---", *lines, "---"])


def measured(path: Path, seat: str, found: Finished) -> str:
    """Render the agent's metrics at the start, and at the last evaluation up to the exported checkpoint."""
    rows = [row for row in JsonLines(path / "metrics.jsonl").rows() if row["turn"] <= found.turn]
    rows = [row for row in rows if any(key.startswith("eval/") for key in row)]
    config = found.plan.config
    if not rows:
        return "Nothing was measured."
    names = [key for key in rows[-1] if key.startswith(f"eval/{seat}/") and rows[-1][key] is not None]
    names += [key for key in ("eval/hacking_gap",) if rows[-1].get(key) is not None]
    lines = [(name.removeprefix("eval/"), number(rows[0].get(name)), number(rows[-1][name])) for name in names]
    text = f"On {config.eval.problems} held-out problems ({config.eval.split}), {config.eval.samples} samples of each."
    heads = ("metric", f"turn {rows[0]['turn']}", f"turn {rows[-1]['turn']}")
    return f"{text}\n\n{table(heads, lines)}" if lines else f"{text} Nothing of it is about the {seat}."


def asked(plan: Plan, setting: Setting, seat: str) -> str:
    """Render the exact prompt for a held-out problem, and the model's greedy completion."""
    role = plan.roles[seat]
    if isinstance(role, Scorer):
        return (
            "It writes nothing. It reads a solution behind the solver's prompt, and a number at the end of each step says how "
            "likely the step is right: " + scorer_number(role)
        )
    subject = example(plan, seat)
    if subject is None:
        return f"As the role `{role.name}` of milonga writes its prompts, in the dialect {plan.config.dialect}."
    about = subject if role.judges else None
    output = Table(setting, "card", "").ask(seat, Traces([subject]) if role.judges else [subject.problem], greedy=True)[0]
    prompt = prompt_text(setting, plan.seats[seat], role.prompt(subject.problem, about))
    literal = "\n".join(["PROMPT = (", *(f"    {line!r}" for line in prompt.splitlines(keepends=True)), ")"])
    said = fenced(output.text.rstrip(), "")
    return f"The prompt, to the letter:\n\n{fenced(literal, 'python')}\n\nWhat it answers, greedily:\n\n{said}"


def scorer_number(role: Scorer) -> str:
    if role.kind == "scalar":
        return (
            "the sigmoid of the linear map in `value_head.safetensors` (`weight`, `bias`) of the last hidden state there. "
            "Other programs load the model without that head, and milonga starts a new one from zero."
        )
    return "the sigmoid of beta times the step's log-probability here, less that under the model training began with."


def example(plan: Plan, seat: str) -> Trace | None:
    """Make a worked solution of a held-out problem; None if the task cannot write one, or the agent's role does not use one."""
    role = plan.roles[seat]
    if not (role.judges or isinstance(role, StepSolver)) or not plan.task.demonstrates or seat not in ("generator", "verifier"):
        return None
    problem = plan.task.problem(plan.config.eval.split, 0)
    solver = solver_in(plan.config.dialect)
    return as_trace(plan.task.demonstrate(problem, keyed("card")), problem, solver, "card")


def prompt_text(setting: Setting, policy: str, prompt: Prompt) -> str:
    engine: Any = setting.engine
    return str(engine.policy(policy).codec.text([int(i) for i in engine.encode(policy, prompt)]))


def usage(plan: Plan, seat: str, adapters: bool) -> str:
    """Render one line for each way to use the model; FOLDER stands for the folder of the card."""
    if adapters:
        base = short(plan.policies[plan.seats[seat]].model)
        load = f"PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base!r}), 'FOLDER')"
        again = f"To train on from it, beside the same base and rank: `--set policies.{seat}.adapter=FOLDER`."
        return f"{fenced(load, 'python')}\n\n{again}"
    ask = "pipeline('text-generation', 'FOLDER')(PROMPT, add_special_tokens=False, return_full_text=False)"
    again = f"milonga run {short(plan.config.recipe)} --{seat} FOLDER"
    return (
        f"{fenced(ask, 'python')}\n\n{fenced('vllm serve FOLDER', 'sh')}\n\n"
        f"To train on from it (`{FILE}` says what milonga needs to know):\n\n{fenced(again, 'sh')}"
    )


def versions() -> dict[str, str]:
    known = {name: version_of(name) for name in PACKAGES}
    return {"python": platform.python_version()} | {name: version for name, version in known.items() if version is not None}


def without_places(value: Any) -> Any:
    """Replace paths in plain data by their last part: a card must not show folders of the trainer's machine."""
    if isinstance(value, Mapping):
        return {key: without_places(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_places(inner) for inner in value]
    return short(value) if isinstance(value, str) else value


def short(text: str) -> str:
    return Path(text).name if text.startswith(("/", "~", ".")) else text


def inline(section: Mapping[str, Any]) -> str:
    options = ", ".join(f"{key}={without_places(value)}" for key, value in section.items() if key != "name")
    return short(str(section["name"])) + (f" ({options})" if options else "")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines)
