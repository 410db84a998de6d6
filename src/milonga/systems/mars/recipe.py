"""MARS (arXiv 2510.04935): a planner that reasons and asks (System 2), and a reader that condenses what comes back (System 1).

Both are rewarded by the same final answer, each on its own tokens. The reader's rows are its notes on each bin of documents;
they are normalised among each other, and then balanced to the planner's count. A good summary as such has no reward.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import broadcast_to_tokens, has_both_outcomes
from milonga.errors import ConfigError
from milonga.evals.metrics import mean
from milonga.patterns.conversation import list_turns
from milonga.patterns.imitation import make_imitation_batch
from milonga.patterns.outcome import add_format_rewards, subtract_kl
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, merge_train_batches
from milonga.roles import Dialect, Role
from milonga.roles.searcher import Documents, make_document_bin
from milonga.schedule import Phase, Schedule
from milonga.systems.mars.credit import Balance, Norm, Std, balance_groups, standard_scores, trajectory_weights
from milonga.systems.mars.research import PLANNER, READER, Desk, is_request, map_turns_to_ends
from milonga.systems.mars.roles import PURPOSES, Planner, Reader
from milonga.tasks.base import DEMONSTRATIONS, Task
from milonga.types import Rollout, Rollouts, TrainBatch

FORMAT = "format"
AGENTS = (PLANNER, READER)


class MarsOptions(RecipeOptions):
    formats: int = Field(0, ge=0)
    """Turns of imitating a noisy teacher as both agents, before RL; 0 for models that know the format."""
    format_lines: int = Field(64, ge=2)
    """Demonstrated requests in each of them, and as many solutions."""
    format_notes: int = Field(256, ge=2)
    """Requests in each of them with demonstrated notes; learning to read takes more examples than learning to ask."""
    noise: float = Field(0.0, ge=0, le=1)
    """Share of the teacher's solutions with a wrong step."""
    slip: float = Field(0.0, ge=0, le=1)
    """Share of its notes with a letter lost."""
    calls: int = Field(4, ge=1)
    """How often a planner may ask for documents."""
    bin: int = Field(2048, ge=1)
    """Maximum document tokens that are read at once; a longer document is cut, and counted as dropped."""
    s1_norm: Norm = "sample"
    """Normalisation of the reader's rewards within a question: over all its rows, or with each trajectory counted once."""
    s1_balance: Balance = "weight"
    """How the reader's rows are balanced to the planner's count: by weights, uniformly, by the absolute advantage, or not."""
    std: Std = "population"
    """Which standard deviation divides the rewards of both."""
    train: Literal["both", "planner", "reader"] = "both"
    """Who learns; the other agent is not trained after the format phase."""
    measured: int = Field(64, ge=1)
    """Held-out trajectories in an evaluation."""


class Mars(Recipe):
    """A planner and the reader of its documents learn from one final answer (MARS, arXiv 2510.04935)."""

    name = "mars"
    granularity = "sequence"
    truth = "answers"
    pays_outcomes = True
    agents = {PLANNER: Planner, READER: Reader}
    lead = PLANNER
    learns_along = (READER,)
    frozen_if = {READER: {"train": "planner", "formats": 0}, PLANNER: {"train": "reader", "formats": 0}}
    tasks = ("haystack", "search")
    tools = True
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    Options = MarsOptions
    options: MarsOptions
    defaults = {"binding": "shared", "task": {"name": "haystack"}}
    embedded_defaults = {"options": {"formats": 16, "noise": 0.3, "slip": 0.2, "calls": 1, "bin": 24}}
    published = {
        "batch": {"problems": 32, "rollouts": 16},
        "sampling": {"max_tokens": 8192},
        "policies": {PLANNER: {"lr": 1e-6}},
        "options": {"calls": 10, "bin": 23552, "s1_balance": "uniform"},
    }
    measures = (
        *(f"generator/{what}" for what in ("accuracy", "sound_accuracy", "calls", "no_call", "blank_accuracy")),
        *(f"reader/{what}" for what in ("exact", "ignores_purpose")),
    )

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.desk = Desk(self.options.bin, self.options.calls)
        self.shared = len(set(self.policies.values())) == 1
        if self.options.train != "both" and self.shared:
            raise ConfigError(f"options.train = '{self.options.train}' leaves the other as it was, but both share one model")
        for agent, objective in self.objectives.items():
            if objective.estimator.advantage != "zscore":
                raise ConfigError(
                    f"policies.{agent}.objective.advantage: mars divides by its own rule (options.std); use zscore"
                )

    def check(self, task: Task) -> None:
        if self.options.formats > 0 and DEMONSTRATIONS not in task.offers:
            raise ConfigError(
                f"options.formats imitates a teacher, whom task '{task.name}' does not have: name a model that can read with "
                "--generator, or set options.formats=0"
            )

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        return {PLANNER: Planner(dialect, self.options.noise, self.options.calls), READER: Reader(dialect)}

    def schedule(self) -> Schedule:
        return Schedule((Phase(PLANNER, self.options.formats, name=FORMAT),), (Phase(PLANNER, 1),))

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample trajectories: conversations of the planner, and the reader's notes that went into them."""
        o = self.options
        if ctx.phase == FORMAT:
            return self.desk.write_demonstrations(ctx, o.format_lines, o.format_notes, o.slip)
        return self.desk.research(ctx, ctx.problems(), self.group_size)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """Make train batches with a trajectory's reward for all its rows. One batch where both agents share a model, as the
        paper sums their losses."""
        by_agent = {agent: rollouts.of(agent) for agent in AGENTS}  # type: ignore[misc]
        if ctx.phase == FORMAT:
            return self.credit_imitation(by_agent)
        talks = by_agent[PLANNER]
        ended = map_turns_to_ends(talks)
        notes = by_agent[READER].select(lambda note: get_asker(note).id in ended)
        train_batches = {PLANNER: self.credit_planner(ctx, talks), READER: self.credit_reader(ctx, notes, ended)}
        if self.shared:
            return [merge_train_batches(train_batches[PLANNER], train_batches[READER])]
        learners = {"both": AGENTS, "planner": (PLANNER,), "reader": (READER,)}[self.options.train]
        return [train_batches[agent] for agent in learners if len(train_batches[agent].rollouts)]

    def credit_imitation(self, by_agent: dict[str, Rollouts]) -> list[TrainBatch]:
        if self.shared:
            return [make_imitation_batch(self, PLANNER, Rollouts(rollout for rows in by_agent.values() for rollout in rows))]
        return [make_imitation_batch(self, agent, by_agent[agent]) for agent in AGENTS]

    def credit_planner(self, ctx: Context, talks: Rollouts) -> TrainBatch:
        """Make the planner's train batch: each conversation by its answer. The reader's notes in it are not trained."""
        paid = add_format_rewards(talks.rewards, talks, self.objectives[PLANNER].filter)
        rewards = subtract_kl(ctx, talks, paid, self.objectives[PLANNER].estimator)
        credit = broadcast_to_tokens(standard_scores(rewards, talks.problem_ids, std=self.options.std), talks)
        calls = [float(len(_list_requests(talk))) for talk in talks]
        notes = {
            "reward": mean(talks.rewards) or 0.0,
            "usable": mean(has_both_outcomes(talks.rewards, talks.problem_ids)) or 0.0,
        }
        notes |= {"calls": mean(calls) or 0.0, "no_call": mean([count == 0 for count in calls]) or 0.0}
        weights = [1.0] * len(talks)
        return self.train_batch(PLANNER, talks, advantages=credit, weights=weights, sources={"answers": 1.0}, notes=notes)

    def credit_reader(self, ctx: Context, notes: Rollouts, ended: dict[str, Rollout]) -> TrainBatch:
        """Make the reader's train batch: advantages over all notes on a question, then balanced to its trajectory count."""
        o, ends = self.options, [ended[get_asker(note).id] for note in notes]
        outcomes = np.array([end.reward for end in ends])
        once = trajectory_weights([end.id for end in ends])
        rewards = subtract_kl(ctx, notes, outcomes, self.objectives[READER].estimator)
        scores = standard_scores(rewards, notes.problem_ids, once if o.s1_norm == "trajectory" else None, o.std)
        rng = ctx.rng("balance")
        weights = balance_groups(scores, notes.problem_ids, self.group_size, o.s1_balance, rng)
        figures = {
            "reader_mean_sample": mean(outcomes) or 0.0,
            "reader_mean_trajectory": float((once * outcomes).sum() / once.sum()) if len(notes) else 0.0,
            "reader_samples": float(len(notes)),
        }
        credit = broadcast_to_tokens(scores, notes)
        return self.train_batch(READER, notes, advantages=credit, weights=weights, sources={"answers": 1.0}, notes=figures)

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure accuracy, with and without documents, and where the truth about notes is known also those."""
        problems = ctx.problems(self.options.measured)
        rollouts = self.desk.research(ctx, problems)
        talks, notes = (rollouts.of(agent) for agent in AGENTS)  # type: ignore[misc]
        calls = [float(len(_list_requests(talk))) for talk in talks]
        reading = self.measure_reader(ctx, notes)
        blank = self.desk.research(ctx, problems, blank=True).of(PLANNER)
        sound = [bool(talk.grade and talk.grade.is_sound) for talk in talks] if ctx.task.knows_steps else []
        return {
            "generator/accuracy": mean(talks.correct),
            "generator/sound_accuracy": mean(sound),
            "generator/calls": mean(calls),
            "generator/no_call": mean([count == 0 for count in calls]),
            "generator/blank_accuracy": mean(blank.correct),
            **reading,
        }

    def measure_reader(self, ctx: Context, notes: Rollouts) -> dict[str, float | None]:
        """Measure exact notes, and whether the reader ignores its purpose; None where nobody knows which notes are exact."""
        role = ctx.role(READER)
        if not isinstance(role, Reader):
            return {"reader/exact": None, "reader/ignores_purpose": None}
        other = ctx.ask(READER, Rollouts(_swap_purpose(note.target) for note in notes))
        same = [text.text == role.write_exact_note(note.target) for text, note in zip(other, notes, strict=True)]
        exact = [note.text == role.write_exact_note(note.target) for note in notes]
        return {"reader/exact": mean(exact), "reader/ignores_purpose": mean(same)}


def get_asker(note: Rollout) -> Rollout:
    """Return the planner's conversation at the request that a note was written for."""
    return note.target.target


def _list_requests(talk: Rollout) -> list[Rollout]:
    """Return the turns of a conversation in which the planner asked for documents."""
    return [turn for turn in list_turns(talk) if is_request(turn)]


def _swap_purpose(bin: Rollout) -> Rollout:
    """Return the same documents with the other purpose."""
    other = PURPOSES[1 - PURPOSES.index(bin.parsed.get(Documents).purpose)]
    return make_document_bin(bin.target, 0, bin.text.split("\n"), other)
