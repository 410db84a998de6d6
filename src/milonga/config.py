"""The configuration: TOML plus `--set key=value`, validated before any model is loaded. Nothing here imports torch.

Invariants: an unknown key is an error that names the nearest right one; what can be derived (the policy of each agent, the
dialect, the length limits) is derived, never repeated; a resolved config written to disk resolves to itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from milonga import reading
from milonga.errors import ConfigError, suggest_name
from milonga.synonyms import Setting, describe_setting, find_flag, find_setting

Binding = Literal["own", "lora", "shared"]
RateSchedule = Literal["constant", "linear", "cosine"]
Share = Annotated[float, Field(ge=0, lt=1)]
WARMUP = 5
"""Default optimizer steps of warm-up, except for embedded models. AdamW's first steps have full length whatever the gradients
are, since its means know one batch alone: a few short ones are enough, and cost a run of 30 turns two of them."""
VLLM_TEMPERATURES = (0.01, 2.0)
"""Range of temperatures of vLLM. It raises lower ones to the first, saying so only in its log, and refuses higher ones."""
EMBEDDED = "embedded"
"""The model that comes with the package. In a config it means the one that the task starts from; `embedded/NAME` is another."""


def is_embedded(model: str) -> bool:
    """Whether a model is one of those embedded in the package."""
    return model == EMBEDDED or model.startswith(f"{EMBEDDED}/")


ENDPOINT = "openai:"
"""Prefix of a model's name behind an endpoint: `openai:URL#model`."""


def is_endpoint(model: str) -> bool:
    """Whether a model is behind an endpoint: it can be sampled from, but not trained or scored with."""
    return model.startswith(ENDPOINT)


def is_hub_name(model: str) -> bool:
    """Whether a model is looked for on the hub: it is none of ours, behind no endpoint, and no path here."""
    if is_embedded(model) or is_endpoint(model):
        return False
    return not (model.startswith((".", "/", "~")) or Path(model).exists())


class Section(BaseModel):
    """A table of the config file. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LoraSection(Section):
    """A low-rank adapter (peft, dropout 0) on a frozen base."""

    rank: int = Field(16, ge=1)
    """Width of the adapter."""
    alpha: float = Field(32.0, gt=0)
    """The adapter's output is scaled by alpha / rank."""
    targets: list[str] = Field(default_factory=list)
    """Names of the linear layers to adapt; empty means all of them, the head excepted."""


class EndpointSection(Section):
    """Requests to a model behind an OpenAI-compatible endpoint. All of it is written into the run folder; keys never are."""

    api_key_env: str | None = None
    """The environment variable that holds the key. Where none is named, the key in OPENAI_API_KEY goes to this machine and over
    https alone; a variable that is named is used for any URL."""
    concurrency: int = Field(16, ge=1)
    """Most requests at a time."""
    timeout: float = Field(300.0, gt=0)
    """Seconds that one request may take."""
    retries: int = Field(6, ge=0)
    """How often a request is made again after 408, 409, 429, a status from 500 on, a broken connection, a timeout, or an answer
    that cannot be read. Then the run stops; it can be resumed."""
    backoff: float = Field(1.0, gt=0)
    """Seconds before a request is made again, at most; twice as many each time, up to a minute. What the server says in
    Retry-After counts instead, up to five minutes."""
    stop: Literal["here", "server"] = "here"
    """Where outputs are cut at a role's stop strings. here: after they have come, which any server can do. server: by the
    server, which saves tokens and must say what string it stopped at (vLLM and SGLang do)."""
    context_bytes: int | None = Field(None, ge=1)
    """Longest conversation, in bytes of UTF-8, that is sent; longer ones are left out and counted. None: the server refuses
    what it cannot read, and the run stops."""
    parameters: float | None = Field(None, gt=0)
    """Active parameters of the model per token: two FLOPs each. Without it FLOPs are unknown (null)."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Fields to send with every request, for what servers add to the protocol: `{top_k = -1}`."""


class PolicySection(Section):
    """A policy: named weights with one optimizer."""

    model: str = EMBEDDED
    """`embedded` (the one that the task starts from), `embedded/NAME`, a Hugging Face folder, a hub name, a GGUF file, or
    `openai:URL#model` for one behind an endpoint, which cannot be trained."""
    endpoint: EndpointSection | None = None
    """Only for a model behind an endpoint; its defaults where nothing is given."""
    kind: Literal["generative", "scalar"] = "generative"
    """scalar: a value head on the model, which scores and is never sampled from. Follows from the agent's role."""
    adapter: str | None = None
    """A folder with a saved adapter to start from, such as RUN/models/generator; needs `lora`. It is the KL reference too."""
    lora: LoraSection | None = None
    """Train an adapter instead of the whole model. The binding `lora` fills it in."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: float32 on a CPU, bfloat16 on a GPU except for models under 50M parameters."""
    chat: Literal["auto", "on", "off"] = "auto"
    """Whether prompts go through the tokenizer's chat template. auto: where it has one, also that of a base model, which was
    not trained in it: set off for such a model."""
    prompt: str | None = None
    """The prompt of its agents, in place of the role's: a Jinja template in a file, or a function `file.py:f`. See
    docs/prompts.md."""
    example: bool | None = None
    """Whether prompts in prose show a worked example. By default only where there is no chat template: a base model has no
    other way to know the form."""
    objective: dict[str, Any] = Field(default_factory=lambda: {"preset": "grpo"})
    """`preset` names an objective; any other key overrides one of its switches."""
    lr: float | None = Field(None, gt=0)
    """Learning rate. By default 1e-4 for the embedded model (5e-4 with lora) and 1e-6 for others (2e-5 with lora)."""
    schedule: RateSchedule = "constant"
    """Learning rate over the run: constant, or linear or cosine decay until its end, which `turns` or `budget` says."""
    lr_end: float = Field(0.0, ge=0, le=1)
    """Share of the learning rate that a linear or cosine schedule ends at; 0: it decays to nothing."""
    warmup: int | None = Field(None, ge=0)
    """Optimizer steps of linear warm-up, also after a recipe has set the policy back. By default 0 for the embedded model and 5
    for others."""
    betas: tuple[Share, Share] = (0.9, 0.95)
    """Betas of AdamW: decay of the running means of the gradient and of its square."""
    eps: float = Field(1e-8, gt=0)
    """Epsilon of AdamW, which avoids division by zero."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of AdamW, decoupled from the gradient."""
    grad_clip: float = Field(1.0, gt=0)
    """Gradient clipping: gradients with a larger norm are scaled down to this norm."""
    epochs: int = Field(1, ge=1)
    """Passes over the train batch of a turn. The old policy of the importance ratio stays the one that sampled it."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps per pass."""
    micro_tokens: int | None = Field(None, ge=1)
    """Most tokens, padding included, in one micro-batch of the learner; by default what suits the device. Results do not
    depend on it."""
    recompute: bool = False
    """Gradient checkpointing: recompute each layer's activations in the backward pass: about a third slower, in a fraction
    of the memory. Llama-, Qwen2- and Qwen3-shaped models only."""
    offload: bool = False
    """On a GPU: offload what is not in use to host memory. The optimizer's moments, `ref`, `ema` and snapshots are loaded when
    they are needed, weights leave while vLLM samples, and our samplers free their memory before this policy learns. Results
    do not depend on it; time does."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Decay of an exponential moving average of the weights, addressed as policy@ema."""
    optimism: bool = False
    """Give 2 g_t - g_(t-1) to the optimizer instead of the gradient g_t (optimistic gradient, OGDA): in a game of two learners
    plain gradients cycle. It amplifies the variance of independent noise five times: use it with large batches."""

    @property
    def learning_rate(self) -> float:
        """The learning rate: as given, or the default for the model's size, a hundred times larger for an embedded model."""
        if self.lr is not None:
            return self.lr
        if is_embedded(self.model):
            return 5e-4 if self.lora else 1e-4
        return 2e-5 if self.lora else 1e-6

    @property
    def warmup_steps(self) -> int:
        """Optimizer steps of warm-up: as given, or the default for the model."""
        if self.warmup is not None:
            return self.warmup
        return 0 if is_embedded(self.model) else WARMUP


class BatchSection(Section):
    """The size of a turn's batch of rollouts."""

    problems: int = Field(32, ge=1)
    """Problems in a turn."""
    rollouts: int = Field(8, ge=2)
    """Rollouts in a group: solutions of a problem, or verifications of a solution."""


class VllmSection(Section):
    """Settings of vLLM, which is started once per sampled policy, and the tolerance of its log-probabilities against ours."""

    gpu_memory_utilization: float = Field(0.2, gt=0, lt=1)
    """Share of the GPU that vLLM takes for one policy: its copy of the weights and its cache. The default leaves half of the
    device to the learner where there are two."""
    cpu_cache_gib: float = Field(1.0, gt=0)
    """On a CPU: memory of one policy's cache. The variable VLLM_CPU_KVCACHE_SPACE wins where it is set."""
    sleep: bool = False
    """On a GPU: between calls vLLM gives up its cache and its weights, so that a learner on the same device has the memory.
    Whole weights are then handed over at every call; a base under adapters waits on the host."""
    tolerance: float | None = Field(None, gt=0)
    """Mean absolute difference of log-probabilities, after weights were handed over, that stops the run; by default 0.001 in
    float32 and 0.2 in bfloat16."""


class SamplingSection(Section):
    """Rollouts are sampled untruncated: truncated sampling silently biases every importance ratio (law 2)."""

    temperature: float = Field(1.0, gt=0)
    """Temperature of rollouts and sampled evaluations. Log-probabilities are those of this temperature."""
    max_tokens: int | None = Field(None, ge=1)
    """Most tokens of a solution; by default the task's own limit. Verifications get twice as much."""
    rows: int = Field(512, ge=1)
    """Most rows that are decoded in one batch."""
    history_gib: float = Field(4.0, ge=0)
    """Most memory for the key-value cache of conversations in progress, so that a turn does not prefill its history again;
    0: no cache, and every turn prefills its whole history. vLLM does so in any case."""
    sampler: Literal["auto", "vllm"] = "auto"
    """auto: our own samplers. vllm: an engine of vLLM in this process, where it is installed."""
    vllm: VllmSection | None = None
    """Only for the sampler vllm; its defaults where nothing is given."""
    top_p: float = 1.0
    """Only 1: see above."""
    top_k: int = 0
    """Only 0: see above."""
    min_p: float = 0.0
    """Only 0: see above."""

    @model_validator(mode="after")
    def _untruncated(self) -> SamplingSection:
        if (self.top_p, self.top_k, self.min_p) != (1.0, 0, 0.0):
            raise ValueError("rollouts are sampled untruncated: top_p must be 1, top_k 0 and min_p 0")
        return self

    @model_validator(mode="after")
    def _temperate(self) -> SamplingSection:
        low, high = VLLM_TEMPERATURES
        if self.sampler == "vllm" and not low <= self.temperature <= high:
            raise ValueError(f"vLLM samples at temperatures from {low} to {high}, not {self.temperature}")
        return self


class EvalSection(Section):
    """What is measured on fixed held-out problems."""

    every: int = Field(10, ge=0)
    """Turns of the lead agent between evaluations, beside those of the start and the end; 0: only these."""
    split: Literal["dev", "test"] = "dev"
    """Which held-out problems are used while training. Models are chosen on dev, reported on test."""
    problems: int = Field(64, ge=0)
    """Number of held-out problems; 0: nothing is evaluated, not even the start and the end."""
    samples: int = Field(4, ge=1)
    """Sampled solutions per problem, for accuracy, pass@k and best-of-k."""
    greedy: bool = True
    """Whether each problem is also solved once without sampling."""
    bench: int = Field(64, ge=0)
    """Solutions with known first errors for the verifier's F1, where the task can make them."""
    checks: int = Field(2, ge=1)
    """Verifications of each bench solution, for calibration."""


class KeepSection(Section):
    """What the run folder keeps."""

    checkpoint_every: int = Field(10, ge=1)
    """Turns between checkpoints; the start and the end are always kept."""
    checkpoints: int = Field(2, ge=1)
    """The newest complete checkpoints that are kept."""
    rollouts_every: int = Field(10, ge=0)
    """Turns between saving all rollouts as parquet; 0 for none."""
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = Field(default_factory=list)
    """Where metrics go besides the run folder."""
    project: str = "milonga"
    """The name that runs have in common at a tracker."""


class WorkersSection(Section):
    """The workers of one policy, where they are not as for all of them."""

    learners: int | None = Field(None, ge=1)
    """Workers that its weights are sharded over."""
    samplers: int | None = Field(None, ge=0)
    """Workers that sample from it; 0: its learners do."""
    cpus: float | None = Field(None, ge=0)
    """Cores of each worker; parts of one are allowed."""
    gpus: float | None = Field(None, ge=0)
    """GPUs of each worker; parts of one are allowed, for workers that share one."""


class PlacementSection(Section):
    """Placement of workers by the engine `ray`."""

    learners: int = Field(1, ge=1)
    """Workers that a policy's weights are sharded over, and that learn and score."""
    samplers: int = Field(0, ge=0)
    """Workers with whole weights that sample from a policy; 0: its learners take turns with it. Policies with adapters on one
    base share them."""
    cpus: float = Field(1.0, ge=0)
    """Cores of each worker; parts of one are allowed. Its number of threads, unless `threads` says another."""
    gpus: float | None = Field(None, ge=0)
    """GPUs of each worker; by default one, or none where `device` is cpu or the cluster has none."""
    policies: dict[str, WorkersSection] = Field(default_factory=dict)
    """Overrides for single policies."""
    strategy: Literal["pack", "spread"] = "pack"
    """Whether the workers of a group are put on as few machines as possible, or on as many."""
    address: str | None = None
    """Address of a running cluster, as `ray.init` takes it; by default RAY_ADDRESS, or else one is started on this machine."""
    store_gib: float | None = Field(None, gt=0)
    """Memory for what workers hand to each other, where a cluster is started; by default room for two copies of all weights."""
    transfer: Literal["auto", "store", "nccl", "ipc"] = "auto"
    """How whole live weights reach samplers. store: gathered on the host, through Ray's object store. nccl, ipc: by vLLM's own
    transfer, from GPU to GPU (untested), or within one that learner and sampler share. auto: store. Adapters and other versions
    go by the store in any case."""
    retries: int = Field(3, ge=0)
    """How often in a row workers that were lost are started again before the run stops."""
    heartbeat_s: float = Field(600.0, gt=0)
    """A worker that gets nowhere for so long is taken for lost: longer than its longest single pass, or call of vLLM."""
    start_s: float = Field(600.0, gt=0)
    """How long workers may take to get their place and load their models."""
    tolerance: float | None = Field(None, gt=0)
    """Mean absolute difference of log-probabilities between learners and samplers, after weights were handed over, that stops
    the run; by default 0.0001 in float32 and 0.2 in bfloat16."""

    def for_policy(self, policy: str) -> PlacementSection:
        """Return the placement of one policy, with its own overrides applied."""
        mine = self.policies.get(policy, WorkersSection())
        return self.model_copy(update={key: value for key, value in mine if value is not None})


class RewardSection(Section):
    """A reward function of the user's own: `f(prompts, completions, **columns) -> list[float | None]`."""

    function: str
    """`file.py:function` or `package.module:function`."""
    weight: float = 1.0
    """Weight of its rewards in the sum of all functions."""

    def describe(self) -> str:
        """Describe it for a reader: file and function without their folder, and the weight where it is not one."""
        place, _, name = self.function.rpartition(":")
        named = name if place.startswith("live/") or not place else f"{Path(place).name}:{name}"
        return named if self.weight == 1 else f"{named}*{self.weight:g}"


class Config(Section):
    """A whole run."""

    recipe: str
    """A recipe's name, or `file.py:Class`."""
    task: dict[str, Any] = Field(default_factory=lambda: {"name": "chain"})
    """`name`, and the options of that task."""
    rewards: list[RewardSection] = Field(default_factory=list)
    """Reward functions, in place of right and wrong answers as the outcome reward. What is right is still measured."""
    extract: str | None = None
    """A function `f(text, problem)` that finds the answer in a solution, as `file.py:function`. None: as the role reads it."""
    turns: int = Field(30, ge=1, le=10_000_000)
    """Turns of the recipe's lead agent. Warm-up and the other agents' turns come on top."""
    published: bool = False
    """Start from the settings of the recipe's paper, where they are known, instead of ours: its page says how they differ.
    What the paper does not say stays as it is, and what is set beside it counts all the same."""
    bootstrap: int = Field(0, ge=0)
    """Turns before these in which step solver and step verifier imitate their own readable outputs, balanced over right and
    wrong solutions: for a model that can be read too seldom. `milonga probe` says when."""
    budget: dict[Literal["tokens", "flops"], Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Stop when the ledger reaches this much compute (of either, where both are given) instead of counting turns."""
    seed: int = 0
    """Random seed: everything that is sampled follows from it."""
    lr: float | None = Field(None, gt=0)
    """Learning rate of every policy whose own section names none."""
    binding: Binding = "own"
    """own: separate weights per agent. lora: an adapter per agent on a shared base. shared: one model for all agents."""
    dialect: Literal["auto", "plain", "tagged", "terse"] = "auto"
    """plain: ordinary prose, read with tolerance, for any model. tagged: for models trained in it. terse: for the embedded
    models. auto: what all models of the run were trained in by an earlier run, terse for embedded ones, otherwise plain."""
    thought_steps: bool = False
    """Whether the steps of a solution are the paragraphs of its thought, in <think> and </think>, where there is one; otherwise
    they are those of what follows it."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`. auto: a GPU where there is one."""
    engine: Literal["local", "ray"] = "local"
    """local: everything in this process. ray: workers on this machine or on a cluster, as `placement` says."""
    staleness: int = Field(0, ge=0)
    """Asynchronous rollouts: turns that sampling may be ahead of learning; needs the engine `ray` with samplers. 0: on-policy,
    every turn samples with the weights after the one before it. k: turn n samples with the weights after turn n - 1 - k, while
    the turns between are learned."""
    staleness_cap: float = Field(2.0, ge=1)
    """Truncation of the importance weight of tokens that were sampled with older weights."""
    threads: int | None = Field(None, ge=1, le=65_536)
    """CPU threads; the idle cores by default. Written into the run's config: a resumed run uses the same number."""
    control: Literal["none", "shuffled"] = "none"
    """shuffled: permute the rewards among the rows, as a control experiment that real learning must beat."""
    probe: Literal["auto", "on", "off"] = "auto"
    """Whether a run begins with a probe, which refuses it where nothing can be learned; auto: unless every model is an embedded
    one."""
    stop_without_signal: int = Field(5, ge=0)
    """Stop with a checkpoint after so many turns in a row, of all agents or of the lead agent, in which no row had an advantage
    or a weight to learn from; 0: never."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The recipe's own options."""
    policies: dict[str, PolicySection] = Field(default_factory=dict)
    """One table for each policy: an agent's name, or the lead agent's if all share one model."""
    batch: BatchSection = BatchSection()
    """The size of a turn's batch of rollouts."""
    sampling: SamplingSection = SamplingSection()
    """How rollouts are sampled."""
    eval: EvalSection = EvalSection()
    """What is measured, and how often."""
    keep: KeepSection = KeepSection()
    """What the run folder keeps."""
    placement: PlacementSection = PlacementSection()
    """Only for the engine `ray`: how many workers each policy has, and what they get."""

    @field_validator("task", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        task = {"name": value} if isinstance(value, str) else value
        if isinstance(task, Mapping) and "name" not in task:
            raise ValueError("the task needs a name")
        return task


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> ConfigError:
    """Explain the first error of a failed validation in one line: key, what is wrong, nearest right name."""
    details = error.errors()[0]
    path = [str(part) for part in details["loc"]]
    key = ".".join([prefix, *path] if prefix else path) or prefix or "config"
    if details["type"] == "extra_forbidden":
        return ConfigError(f"unknown key '{key}': {suggest_key(key, path[-1], _list_fields(model, path[:-1]))}")
    if path and path[-1] == "[key]":  # a table whose keys are fixed names
        return ConfigError(f"unknown key '{key.removesuffix('.[key]')}': use {details['ctx']['expected']}")
    if details["type"] == "missing":
        return ConfigError(f"'{key}' is missing" + (f": name it by {flag}" if (flag := find_flag(key)) else ""))
    message = details["msg"].removeprefix("Value error, ")
    return ConfigError(f"'{key}': {message} (got {details['input']!r})" if path else f"'{key}': {message}")


def suggest_key(key: str, name: str, known: Sequence[str]) -> str:
    """Suggest a key for one that is not known: near in meaning, or else in letters, of those that are known in its place."""
    first, *rest = key.split(".")
    policy = rest[0] if first == "policies" and len(rest) > 1 else "NAME"
    found = find_setting(name)
    if found is None or found.key in key:
        return suggest_name(name, known)
    if first == "policies" and found.key in PolicySection.model_fields:  # of this policy alone
        found = Setting(f"policies.NAME.{found.key}", found.flag)
    return describe_setting(found, policy)


def _list_fields(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """List the keys that are allowed at a place in the config."""
    current: Any = model
    for part in path:
        field = getattr(current, "model_fields", {}).get(part)
        if field is None:
            continue  # the name of a policy: its fields are those of the section it maps to
        current = find_section(field.annotation)
    return list(getattr(current, "model_fields", {}))


def find_section(annotation: Any) -> Any:
    """Find the section class inside an annotation such as `LoraSection | None` or `dict[str, PolicySection]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = find_section(inner)
        if found is not None:
            return found
    return None


def parse_config(raw: Mapping[str, Any]) -> Config:
    """Validate plain data as a config, or raise a one-line error."""
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise explain(error, Config) from None


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return reading.read_toml(path)
    except FileNotFoundError:
        raise ConfigError(f"config file '{path}' does not exist") from None
    except reading.UNREADABLE as error:
        raise ConfigError(f"config file '{path}': {reading.explain_unreadable(error)}") from None


def merge(base: Mapping[str, Any], over: Mapping[str, Any], replacing: bool = True) -> dict[str, Any]:
    """Merge `over` into `base`, table by table. A new task name, or a new objective preset, replaces its whole table, unless
    the two belong together (not `replacing`)."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        if key == "task":  # `task = "chain"` is short for a table with that name
            old, value = ({"name": task} if isinstance(task, str) else task for task in (old, value))
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not (replacing and _replaces_table(key, old, value)):
            out[key] = merge(old, value, replacing)
        else:
            out[key] = value
    return out


def _replaces_table(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    name = {"task": "name", "objective": "preset"}.get(key)
    return name is not None and name in new and new[name] != old.get(name)


def parse_setting(text: str) -> dict[str, Any]:
    """Parse `a.b=value` into a nested table. The value is parsed as TOML if it is valid TOML, otherwise it is a string."""
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise ConfigError(f"a setting is key=value, not '{text}'")
    try:
        parsed: Any = reading.parse_toml(f"value = {value}")["value"]
    except ValueError:
        parsed = value.strip()
    return _nest(parts, parsed)


def _nest(parts: Sequence[str], value: Any) -> dict[str, Any]:
    *outer, last = parts
    table = {last: value}
    for part in reversed(outer):
        table = {part: table}
    return table


def expand_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Expand dotted keys: `{"batch.rollouts": 4}` becomes `{"batch": {"rollouts": 4}}`. All of them belong together, in any
    order: a preset among them takes nothing away."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found = merge(found, _nest(key.split("."), value), replacing=False)
    return found


def flatten_keys(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables into one with dotted keys; an empty table has none."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flatten_keys(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def parse_settings(text: str) -> dict[str, Any]:
    """Parse `a.b=value,c=[1,2]` into a nested table. Only a comma followed by another key separates settings."""
    found: dict[str, Any] = {}
    for setting in re.split(r",(?=\s*[A-Za-z_][\w.-]*=)", text) if text else []:
        found = merge(found, parse_setting(setting))
    return found


def to_toml(data: Mapping[str, Any]) -> str:
    """Plain nested data as TOML text. `None` is left out: a missing key is its default."""
    return tomli_w.dumps(_drop_none(data))


def _drop_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _drop_none(inner) for key, inner in value.items() if inner is not None}
    return [_drop_none(inner) for inner in value] if isinstance(value, list | tuple) else value
