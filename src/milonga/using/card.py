"""Render the model card of an exported agent from its run: training facts, metrics, the exact prompt, and usage.

Invariant: of the trainer's machine it contains only versions, and text of a model stays inside code blocks.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from milonga.config import to_toml
from milonga.context import Context, RunContext
from milonga.errors import TooLongError
from milonga.pair import Finished
from milonga.randomness import keyed_rng
from milonga.report.markdown import render_fenced
from milonga.resolve import Plan
from milonga.roles import Role, Scorer, StepSolver, make_step_solver
from milonga.roles.solver import demonstration_to_rollout
from milonga.runfolder.files import JsonLines
from milonga.runfolder.machine import get_version
from milonga.runfolder.note import FILE
from milonga.systems.index import find_paper
from milonga.tasks.base import DEMONSTRATIONS
from milonga.text import format_number
from milonga.types import Problem, Prompt, Rollout, Rollouts
from milonga.using.answers import is_cut

MOST_TOKENS = 512
"""Most tokens of a solution on a card."""
PACKAGES = ("milonga", "torch", "transformers", "peft", "safetensors")


def list_agents(plan: Plan, policy: str) -> list[str]:
    """List the agents of a policy: several if they share one model."""
    return [agent for agent, name in plan.agents.items() if name == policy]


def render_card(path: Path, found: Finished, run_context: RunContext, agent: str, adapters: bool) -> str:
    """Render the card of an agent; `setting` has its weights, to show an example completion."""
    plan, config = found.plan, found.plan.config
    section = plan.policies[plan.agents[agent]]
    kind = "an adapter for" if adapters else "trained from"
    facts = {
        "agent": f"{', '.join(list_agents(plan, plan.agents[agent]))} (role `{plan.roles[agent].name}`)",
        "recipe": ", ".join(filter(None, (plan.recipe.name, find_paper(plan.recipe.name)))),
        "task": _format_section(config.task),
        **({"rewards": ", ".join(reward.describe() for reward in config.rewards)} if config.rewards else {}),
        "turns": f"{found.turn} in all, {config.turns} asked for of the {plan.recipe.lead}",
        "start": shorten_path(section.model),
        "weights": "all" if section.lora is None else f"LoRA of rank {section.lora.rank}" + ("" if adapters else ", merged"),
        "learning rate": f"{section.learning_rate:g}",
        "binding": config.binding,
        "dialect": config.dialect,
        "seed": str(config.seed),
        "versions": ", ".join(f"{name} {version}" for name, version in collect_versions().items()),
    }
    blocks = [
        _render_front_matter(plan.recipe.name, agent, section.model, adapters),
        f"# The {agent} of a {plan.recipe.name} run",
        f"A language model, {kind} `{shorten_path(section.model)}` by milonga, together with the "
        f"other agents of its run ({', '.join(plan.agents)}).",
        "## How it was trained",
        render_table(("", ""), list(facts.items())),
        "<details><summary>The resolved config</summary>",
        render_fenced(to_toml(strip_paths(config.model_dump(mode="json"))).rstrip(), "toml"),
        "</details>",
        "## What was measured",
        _render_metrics(path, agent, found),
        "## How it is asked",
        _render_prompt_example(plan, run_context, agent),
        "## How to use it",
        render_usage(plan, agent, adapters),
    ]
    return "\n\n".join(blocks) + "\n"


def _render_front_matter(recipe: str, agent: str, model: str, adapters: bool) -> str:
    """Render the front matter that a model hub reads. A base model is named only if it is a hub name."""
    lines = ["library_name: " + ("peft" if adapters else "transformers"), "pipeline_tag: text-generation"]
    lines += ["tags:", *(f"- {tag}" for tag in ("milonga", recipe, agent))]
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model) and not Path(model).exists():
        lines.append(f"base_model: {model}")
    return "\n".join(["---", *lines, "---"])


def _render_metrics(path: Path, agent: str, found: Finished) -> str:
    """Render the agent's metrics at the start, and at the last evaluation up to the exported checkpoint."""
    rows = [row for row in JsonLines(path / "metrics.jsonl").rows() if row["turn"] <= found.turn]
    rows = [row for row in rows if any(key.startswith("eval/") for key in row)]
    config = found.plan.config
    if not rows:
        return "Nothing was measured."
    names = [key for key in rows[-1] if key.startswith(f"eval/{agent}/") and rows[-1][key] is not None]
    names += [key for key in ("eval/hacking_gap",) if rows[-1].get(key) is not None]
    lines = [(name.removeprefix("eval/"), format_number(rows[0].get(name)), format_number(rows[-1][name])) for name in names]
    text = f"On {config.eval.problems} held-out problems ({config.eval.split}), {config.eval.samples} samples of each."
    heads = ("metric", f"turn {rows[0]['turn']}", f"turn {rows[-1]['turn']}")
    return f"{text}\n\n{render_table(heads, lines)}" if lines else f"{text} Nothing of it is about the {agent}."


def _render_prompt_example(plan: Plan, run_context: RunContext, agent: str) -> str:
    """Render the exact prompt for a held-out problem, and the model's greedy completion."""
    role = plan.roles[agent]
    if isinstance(role, Scorer):
        return (
            "It writes nothing. It reads a solution behind the solver's prompt, and a number at the end of each step says how "
            "likely the step is right: " + _describe_scorer(role)
        )
    example = _make_example(plan, agent)
    limit = min(MOST_TOKENS, run_context.sampling.max_tokens or plan.task.max_tokens)
    short = replace(run_context, sampling=run_context.sampling.model_copy(update={"max_tokens": limit}))
    try:
        outputs = [] if example is None else Context(short, "card", "").ask(agent, _list_inputs(role, example), greedy=True)
    except TooLongError:
        outputs = []
    if example is None or not outputs:
        return f"As the role `{role.name}` of milonga writes its prompts, in the dialect {plan.config.dialect}."
    output, target = outputs[0], example if role.judges else None
    prompt = _decode_prompt(run_context, plan.agents[agent], role.render_prompt(example.problem, target))
    literal = "\n".join(["PROMPT = (", *(f"    {line!r}" for line in prompt.splitlines(keepends=True)), ")"])
    said = render_fenced(output.text.rstrip(), "")
    cut = f" (cut after {limit * role.length_factor()} tokens)" if is_cut(output) else ""
    return f"The prompt, to the letter:\n\n{render_fenced(literal, 'python')}\n\nWhat it answers, greedily{cut}:\n\n{said}"


def _list_inputs(role: Role, example: Rollout) -> Rollouts | list[Problem]:
    """List what an agent is asked about: the solution, if it judges, or else its problem."""
    return Rollouts([example]) if role.judges else [example.problem]


def _describe_scorer(role: Scorer) -> str:
    if role.kind == "scalar":
        return (
            "the sigmoid of the linear map in `value_head.safetensors` (`weight`, `bias`) of the last hidden state there. "
            "Other programs load the model without that head, and milonga starts a new one from zero."
        )
    return "the sigmoid of beta times the step's log-probability here, less that under the model training began with."


def _make_example(plan: Plan, agent: str) -> Rollout | None:
    """Make a solution of a held-out problem: worked, where the task can, or else its reference answer alone. None if there is
    no problem or, for a judge, no answer in words, or if the agent's role uses neither."""
    role, task, split = plan.roles[agent], plan.task, plan.config.eval.split
    if not (role.judges or isinstance(role, StepSolver)) or agent not in ("generator", "verifier") or task.size(split) == 0:
        return None
    problem, solver = task.problem(split, 0), make_step_solver(plan.config.dialect)
    if DEMONSTRATIONS in task.offers:
        return demonstration_to_rollout(task.demonstrate(problem, keyed_rng("card")), problem, solver, "card")
    if task.tool is not None or (role.judges and (not problem.answer or problem.wants_program or solver.dialect == "terse")):
        return None
    text = solver.write((f"The answer is {problem.answer}.",), problem.answer)
    return Rollout.from_text("card", "generator", problem, text, solver.parse(text))


def _decode_prompt(run_context: RunContext, policy: str, prompt: Prompt) -> str:
    engine: Any = run_context.engine
    return str(engine.policy(policy).codec.decode_ids([int(i) for i in engine.encode(policy, prompt)]))


def render_usage(plan: Plan, agent: str, adapters: bool) -> str:
    """Render one line for each way to use the model; FOLDER stands for the folder of the card."""
    if adapters:
        base = shorten_path(plan.policies[plan.agents[agent]].model)
        load = f"PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base!r}), 'FOLDER')"
        again = f"To train on from it, beside the same base and rank: `--set policies.{agent}.adapter=FOLDER`."
        return f"{render_fenced(load, 'python')}\n\n{again}"
    ask = "pipeline('text-generation', 'FOLDER')(PROMPT, add_special_tokens=False, return_full_text=False)"
    again = f"milonga run {shorten_path(plan.config.recipe)} --{agent} FOLDER"
    return (
        f"{render_fenced(ask, 'python')}\n\n{render_fenced('vllm serve FOLDER', 'sh')}\n\n"
        f"To train on from it (`{FILE}` says what milonga needs to know):\n\n{render_fenced(again, 'sh')}"
    )


def collect_versions() -> dict[str, str]:
    known = {name: get_version(name) for name in PACKAGES}
    return {"python": platform.python_version()} | {name: version for name, version in known.items() if version is not None}


def strip_paths(value: Any) -> Any:
    """Replace paths in plain data by their last part: a card must not show folders of the trainer's machine."""
    if isinstance(value, Mapping):
        return {key: strip_paths(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [strip_paths(inner) for inner in value]
    return shorten_path(value) if isinstance(value, str) else value


def shorten_path(text: str) -> str:
    return Path(text).name if text.startswith(("/", "~", ".")) else text


def _format_section(section: Mapping[str, Any]) -> str:
    options = ", ".join(f"{key}={strip_paths(value)}" for key, value in section.items() if key != "name")
    return shorten_path(str(section["name"])) + (f" ({options})" if options else "")


def render_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines)
