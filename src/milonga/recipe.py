"""The base class of recipes: which agents sample, how they are credited, who learns when.

A recipe opens no files, touches no device and imports no torch. It reads as its paper's algorithm box: `schedule`, `rollout`,
`credit`. Whatever it must remember between turns (running counts, pools) it keeps in `state`, which is saved in the checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from milonga.config import Binding
from milonga.context import Context
from milonga.objectives import Kind, Objective
from milonga.roles import Dialect, Role
from milonga.schedule import Schedule
from milonga.tasks import Capability, Task
from milonga.types import Rollouts, TrainBatch


class RecipeOptions(BaseModel):
    """A recipe's own settings. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Allowed:
    """What a recipe runs with."""


@dataclass(frozen=True)
class Refused:
    """What a recipe does not run with, and why."""

    reason: str


Permission = Allowed | Refused
ALLOWED: Permission = Allowed()
UNSAID = Refused("its class does not say, by `overlap`, that its turns need nothing of what was just learned")
"""What a class that declares nothing says about asynchronous rollouts."""


def _fits(wanted: Mapping[str, Any] | None, options: Any) -> bool:
    return wanted is not None and all(getattr(options, name) == value for name, value in wanted.items())


class Recipe(ABC):
    """Subclass, set the class attributes, and write `schedule`, `rollout` and `credit`."""

    name: ClassVar[str]
    granularity: ClassVar[str]
    """How fine its rewards are: sequence, step or token."""
    truth: ClassVar[str]
    """The ground truth it needs."""
    agents: ClassVar[Mapping[str, type[Role]]]
    solving: ClassVar[str] = "generator"
    """The agent whose solutions are measured. Its metrics are named `generator/...`, whatever the agent is called."""
    judging: ClassVar[str] = "verifier"
    """The agent whose verdicts are measured. Its metrics are named `verifier/...`."""
    lead: ClassVar[str]
    """The agent whose turns are counted: a run of N turns has N turns of this agent."""
    bindings: ClassVar[Mapping[Binding, Permission]]
    """Binding to `ALLOWED` where it makes sense, or to `Refused` with the reason why it does not."""
    Options: ClassVar[type[RecipeOptions]] = RecipeOptions
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Config values that this recipe starts from, below the user's own."""
    embedded_defaults: ClassVar[Mapping[str, Any]] = {}
    """The same for runs of embedded models alone, above `defaults`: their rates, warm-ups and the noise of their teachers."""
    published: ClassVar[Mapping[str, Any]] = {}
    """The settings of its paper, as far as they are known and a run can have them; `published=true` puts them above the
    defaults, below the user's own."""
    tasks: ClassVar[tuple[str, ...]] = ()
    """The only tasks it works with, where it must know how their problems are made. Empty: any task."""
    tools: ClassVar[bool] = False
    """Whether its solver may call a task's tool between its turns. Recipes that judge solutions, or continue from a prefix of
    one, would see only the last turn."""
    pays_outcomes: ClassVar[bool] = False
    """Whether its generator is paid `Rollouts.rewards`, so that reward functions of the user's own can be given to it."""
    pays_format: ClassVar[tuple[str, ...] | None] = None
    """Agents whose reward contains `objective.format_weight` times the format score of their solutions; None: the solving
    agent of a recipe that pays outcomes. For others the setting is refused."""
    overlap: ClassVar[Permission] = UNSAID
    """Whether rollouts of a turn can be sampled while earlier turns are learned (asynchronous rollouts).

    If `ALLOWED`, `rollout` needs only problems and what agents sample live: neither `state` nor scores nor kept pairs, and no
    problems that depend on what was just learned. `credit` then samples from no agent. A refusal is inherited. The permission
    is not: a subclass must give it again, because it may have changed something."""
    learns: ClassVar[Mapping[str, tuple[Kind, ...]]] = {}
    """Agents that do not learn by a policy gradient, with the kinds of losses that are allowed for them."""
    learns_along: ClassVar[tuple[str, ...]] = ()
    """Agents that learn in turns of others, where they take part and are not used for inference only. Who has turns, the
    schedule says."""
    frozen_if: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Agents that never learn where the recipe's options have these values: agent to option to value."""
    inference_only: ClassVar[tuple[str, ...]] = ()
    """Agents that are used for inference only: the recipe needs complete outputs of them and nothing else. They do not learn,
    are not scored, and do not continue from a prefix. Only these agents may be a model behind an endpoint."""
    inference_only_if: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Agents that are so only where the recipe's options have these values: agent to option to value."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.overlap == ALLOWED and "overlap" not in vars(cls):
            cls.overlap = UNSAID

    def __init__(self, options: Any, objectives: Mapping[str, Objective], policies: Mapping[str, str], group_size: int) -> None:
        self.options = options
        self.objectives = objectives
        """Agent to objective."""
        self.policies = policies
        self.group_size = group_size
        """Rollouts of each problem: the group that a baseline is taken over."""
        self.state: dict[str, Any] = {}

    @classmethod
    def is_inference_only(cls, agent: str, options: Any) -> bool:
        """Whether an agent is used for inference only under these options."""
        return agent in cls.inference_only or _fits(cls.inference_only_if.get(agent), options)

    @classmethod
    def is_frozen(cls, agent: str, options: Any) -> bool:
        """Whether an agent never learns under these options, whoever has the turn."""
        return cls.is_inference_only(agent, options) or _fits(cls.frozen_if.get(agent), options)

    @classmethod
    def select_agents(cls, options: Any) -> Mapping[str, type[Role]]:
        """Return the agents that take part under these options. All of them, except in recipes with several line-ups."""
        return cls.agents

    @classmethod
    def list_format_paid(cls) -> tuple[str, ...]:
        """List the agents that are paid for the format of their solutions."""
        if cls.pays_format is not None:
            return cls.pays_format
        return (cls.solving,) if cls.pays_outcomes else ()

    @property
    def needs(self) -> Set[Capability]:
        """What the task must offer: `needs = {STEPS}` in the class, or a property where it follows from the options."""
        return frozenset()

    @property
    def measures(self) -> Sequence[str]:
        """The names of the metrics that `measure` returns, so that a comparison can refuse a misspelt one before it runs:
        `measures = ("accuracy",)` in the class, or a property where they follow from the options."""
        return ()

    @abstractmethod
    def schedule(self) -> Schedule: ...

    @abstractmethod
    def rollout(self, ctx: Context) -> Rollouts:
        """Sample the turn's rollouts, for `ctx.learner` to learn from."""

    @abstractmethod
    def credit(self, ctx: Context, rollouts: Rollouts) -> Iterable[TrainBatch]:
        """Return or yield the turn's train batches, with advantages or labels.

        Each batch is learned before the next is asked for, so a recipe that yields them can score in between.
        """

    def check(self, task: Task) -> None:
        """Raise a ConfigError for a task that these options cannot be used with, before anything is loaded."""

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Return the recipe's own metrics at an evaluation, besides those of all recipes. `ctx` draws held-out problems."""
        return {}

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        """Build the role of each agent. Recipes whose options change a role override this."""
        return {agent: role(dialect) for agent, role in self.select_agents(self.options).items()}

    def train_batch(self, agent: str, rollouts: Rollouts, **targets: Any) -> TrainBatch:
        """Make a train batch for an agent's policy, with that agent's loss."""
        return TrainBatch(self.policies[agent], self.objectives[agent].loss, rollouts, **targets)


def merge_train_batches(one: TrainBatch, other: TrainBatch) -> TrainBatch:
    """Merge two policy-gradient train batches of one policy: it learns from the rows of both in the same optimizer steps. The
    sources of credit are those of both, by their shares of the rows."""
    rows, notes = Rollouts([*one.rollouts, *other.rollouts]), one.notes | other.notes
    sources: dict[str, float] = {}
    for train_batch in (one, other):
        for source, share in train_batch.sources.items():
            sources[source] = sources.get(source, 0.0) + share * len(train_batch.rollouts) / len(rows)
    advantages = [*(one.advantages or []), *(other.advantages or [])]
    weights = None
    if one.weights is not None or other.weights is not None:
        weights = [
            weight for train_batch in (one, other) for weight in train_batch.weights or [1.0] * len(train_batch.rollouts)
        ]
    return TrainBatch(one.policy, one.loss, rows, advantages=advantages, weights=weights, sources=sources, notes=notes)
