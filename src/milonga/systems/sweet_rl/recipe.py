"""SWEET-RL (arXiv 2503.15478): a critic with privileged information gives turn-level advantages to an actor.

The actor asks a user about what a problem leaves open, and then solves it. The user is a simulator that reads the reference,
or a rule. The critic has the reference before each dialogue. From dialogues that ended well and badly it learns by
Bradley-Terry how good each turn was: its log-ratio, as a mean over the turn. Then the actor, who never sees the reference,
learns by DPO to prefer, among its own candidates for a turn, those that the critic ranks higher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import isolate_turn, make_token_factors, sample_half_pairs
from milonga.credit.turns import TurnAggregate
from milonga.errors import ConfigError
from milonga.evals.metrics import correlation, mean, order_accuracy_within
from milonga.patterns.imitation import make_imitation_batch
from milonga.patterns.preference_pairs import make_pair_batch, record_pairs, to_given_rollout
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import Dialect, Role
from milonga.schedule import Action, Phase, Schedule
from milonga.systems.sweet_rl import dialogues
from milonga.systems.sweet_rl.critic import encode_for_critic, score_turns
from milonga.systems.sweet_rl.roles import SIMULATOR, Inquirer, PrivilegedCritic, Simulator
from milonga.tasks.artefacts import find_reference
from milonga.tasks.base import ANSWERS, DEMONSTRATIONS, FACTS, Capability, Task
from milonga.tasks.facts import hide_facts
from milonga.types import Problem, Rollouts, TrainBatch

FORMAT = "format"
BASE = "base"
"""The actor after the format was learned: it samples all dialogues, and it is the reference of both."""


class SweetRlOptions(RecipeOptions):
    user: Literal["simulator", "rule"] = "simulator"
    """simulator: a frozen model that reads the reference and answers in free text. rule: tells hidden parts of the problem by
    their numbers; for embedded models, and tasks that have such parts."""
    formats: int = Field(0, ge=0)
    """Turns of imitating a noisy teacher who asks blindly, before anything is rewarded; 0 for models that can talk."""
    format_lines: int = Field(64, ge=1)
    """Dialogues in each of them."""
    noise: float = Field(0.0, ge=0, le=1)
    """Share of the teacher's solutions with a wrong step."""
    hidden: int = Field(2, ge=1)
    """Parts of a problem that are kept back at first by the rule."""
    questions: int = Field(2, ge=1)
    """Questions of a dialogue, at most; a rule-based user is asked so often. The solution comes after the last."""
    critic_turns: int = Field(8, ge=1)
    """Turns of the critic in a round, each on `batch.rollouts` dialogues of every problem (the paper has 3)."""
    actor_turns: int = Field(100, ge=1)
    """Turns of the actor in a round; a run of fewer has one round, as in the paper. A new one begins from the actor."""
    candidates: int = Field(16, ge=2)
    """Candidates for a turn, which the critic ranks."""
    pairs_per_turn: int = Field(4, ge=1)
    """Pairs of candidates for a turn: one of the better half and one of the worse half, drawn."""
    turn_fraction: float = Field(1.0, gt=0, le=1)
    """Share of the dialogues whose turns are learned from in a turn of the actor."""
    gap: float = Field(1e-6, ge=0)
    """Distance of scores below which two candidates make no pair."""
    credit: Literal["turn", "trajectory"] = "turn"
    """trajectory: no critic; dialogues that ended well are preferred to others of the same problem, whole."""
    critic_sees: bool = True
    """Whether the critic reads the reference; False: what the actor reads."""
    rank_reference: Literal["with_c", "without_c"] = "with_c"
    """Whether the start that a rank is relative to reads it too. If not, even an untrained critic prefers what it says."""
    any_gap: bool = False
    """Whether the best dialogue of a problem wins even where it did not end well, judged also by its right steps and format."""
    turn_agg: TurnAggregate = "sum_of_turn_means"
    """How the score of a dialogue is aggregated. sum: long turns dominate."""
    measured: int = Field(64, ge=1)
    """Held-out dialogues in an evaluation."""


class SweetRl(Recipe):
    """A critic with privileged information gives credit to single turns of a dialogue (SWEET-RL, arXiv 2503.15478)."""

    name = "sweet_rl"
    granularity = "turn"
    truth = "answers, and what is kept back"
    agents = {"generator": Inquirer, "critic": PrivilegedCritic, SIMULATOR: Simulator}
    inference_only = (SIMULATOR,)
    lead = "generator"
    overlap = Refused("it learns from pairs, in which older samples cannot be corrected")
    bindings = {
        "own": ALLOWED,
        "lora": ALLOWED,
        "shared": Refused("the critic sees what the actor must not know: they are two sets of weights"),
    }
    learns = {"generator": ("dpo",), "critic": ("dpo",)}
    defaults = {
        "policies": {
            "generator": {"objective": {"preset": "dpo", "nll_coef": 0.01, "kl_from": BASE}},
            "critic": {"objective": {"preset": "dpo", "kl_from": BASE}, "epochs": 4},
        },
        "batch": {"rollouts": 3},
    }
    embedded_defaults = {
        # With the paper's 0.1 and 0.01 the miniature forgot how to talk, however right the pairs were.
        "policies": {"generator": {"objective": {"beta": 1.0, "nll_coef": 1.0}}},
        "options": {"user": "rule", "formats": 12, "noise": 0.1},
    }
    published = {
        "sampling": {"max_tokens": 1024},
        "policies": {"generator": {"lr": 2e-7}, "critic": {"lr": 2e-7}},
        "options": {"questions": 9, "turn_fraction": 0.1},
    }
    Options = SweetRlOptions
    options: SweetRlOptions

    @classmethod
    def select_agents(cls, options: SweetRlOptions) -> Mapping[str, type[Role]]:
        return {agent: role for agent, role in cls.agents.items() if agent != SIMULATOR or options.user == SIMULATOR}

    @property
    def measures(self) -> Sequence[str]:
        free = ("generator/outcome", "generator/questions", "simulator/leaked")
        ruled = ("generator/useful_questions", "generator/useful_first", "critic/useful_accuracy")
        return ("generator/success", "critic/pair_accuracy", *(free if self.options.user == SIMULATOR else ruled))

    @property
    def needs(self) -> Set[Capability]:
        shown = {DEMONSTRATIONS} if self.options.formats > 0 else set()
        return shown | ({ANSWERS, FACTS} if self.options.user == "rule" else set())

    def check(self, task: Task) -> None:
        if self.options.user == SIMULATOR and not find_reference(task.problem("train", 0)):
            lacks = "neither answers nor right programs nor reference texts (whose field is task.fields.solution)"
            raise ConfigError(f"recipe 'sweet_rl' needs what its simulated user knows, and task '{task.name}' has {lacks}")

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        o, wanted = self.options, "terse" if self.options.user == "rule" else "plain"
        if dialect != wanted:
            raise ConfigError(f"options.user = '{o.user}' speaks the dialect '{wanted}', not '{dialect}'; set dialect={wanted}")
        made = {"generator": Inquirer(dialect, o.questions, o.noise), "critic": PrivilegedCritic(dialect, o.questions)}
        return {**made, SIMULATOR: Simulator(dialect)} if o.user == SIMULATOR else {**made}

    def schedule(self) -> Schedule:
        """The format; then rounds: the critic begins as a copy of the actor, which is the reference of both."""
        o, actor, critic = self.options, self.policies["generator"], self.policies["critic"]
        begin = (Action("copy", critic, actor), Action("snapshot", critic, BASE), Action("snapshot", actor, BASE))
        learn = Phase("critic", 0 if o.credit == "trajectory" else o.critic_turns, enter=begin)
        act = Phase("generator", o.actor_turns, enter=begin if o.credit == "trajectory" else ())
        return Schedule((Phase("generator", o.formats, name=FORMAT),), (learn, act))

    def draw_problems(self, ctx: Context, count: int | None = None) -> list[Problem]:
        """Draw problems; with a rule-based user, some of their parts are kept back."""
        if self.options.user == SIMULATOR:
            return ctx.problems(count)
        return [hide_facts(ctx.task, problem, self.options.hidden) for problem in ctx.problems(count)]

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample dialogues of the actor as it was when the round began; in the actor's own turns, candidates for single
        turns."""
        if not ctx.engine.has_same_vocabulary(self.policies["generator"], self.policies["critic"]):
            raise ConfigError("'sweet_rl' scores the actor's tokens: actor and critic need models of one vocabulary")
        if ctx.phase == FORMAT:
            return dialogues.demonstrate_dialogues(ctx, self.draw_problems(ctx, self.options.format_lines))
        self.state["begun"], problems = True, self.draw_problems(ctx)
        if ctx.learner == "critic" or self.options.credit == "trajectory":
            talks = dialogues.sample_dialogues(ctx, problems, self.group_size, BASE)
        else:
            chosen = problems[: max(1, round(self.options.turn_fraction * len(problems)))]
            talks = dialogues.sample_candidates(ctx, chosen, self.options.candidates, BASE)
        return Rollouts([*talks, *dialogues.list_replies(talks)])

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        talks = rollouts.of("generator")
        if ctx.phase == FORMAT:
            return [make_imitation_batch(self, "generator", talks)]
        if ctx.learner == "critic":
            return self.credit_critic(ctx, talks)
        return self.credit_trajectories(ctx, talks) if self.options.credit == "trajectory" else self.credit_actor(ctx, talks)

    def credit_critic(self, ctx: Context, talks: Rollouts) -> list[TrainBatch]:
        """-log sigmoid(beta * sum of A over the turns of a dialogue that ended well - the same of one that did not)."""
        found = encode_for_critic(ctx, talks, self.options.critic_sees)
        sides = dialogues.pair_by_outcome(talks.select(lambda talk: talk.id in found), self.options.any_gap)
        pairs = record_pairs(ctx, [(why, found[won.id], found[lost.id]) for why, won, lost in sides])
        if not pairs:
            return []  # no problem has a dialogue that ended well beside one that did not
        covered = {winner.problem.id for _, winner, _ in pairs}
        notes = {"pairs": float(len(pairs)), "coverage": len(covered) / len(set(talks.problem_ids))}
        factors = make_token_factors(Rollouts(side for _, *both in pairs for side in both), self.options.turn_agg)
        return [make_pair_batch(self, "critic", pairs, factors=factors, sources={"answers": 1.0}, notes=notes)]

    def credit_trajectories(self, ctx: Context, talks: Rollouts) -> list[TrainBatch]:
        """Make a DPO train batch of whole dialogues: those that ended well are preferred to others of the same problem."""
        sides = dialogues.pair_by_outcome(talks, self.options.any_gap)
        pairs = record_pairs(ctx, [(why, to_given_rollout(won), to_given_rollout(lost)) for why, won, lost in sides])
        return [make_pair_batch(self, "generator", pairs, sources={"answers": 1.0})] if pairs else []

    def credit_actor(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """Make a DPO train batch of single turns, after what the actor itself could read; the reference enters only through the
        critic's ranks."""
        scores = [turns[-1] for turns in self.score_turns(ctx, rollouts, BASE)]
        places = [(talk.problem.id, len(talk.turn_spans), talk.targets[0].id if talk.targets else "") for talk in rollouts]
        drawn = sample_half_pairs(scores, places, self.options.pairs_per_turn, self.options.gap, ctx.rng("pairs"))
        alone = [
            replace(isolate_turn(to_given_rollout(talk), -1), problem=dialogues.make_known_problem(talk)) for talk in rollouts
        ]
        pairs = record_pairs(ctx, [("ranked higher by the critic", alone[best], alone[worst]) for best, worst in drawn])
        if not pairs:
            return []  # the critic finds everything equally good
        spans = [talk.turn_spans[-1] for talk in rollouts]
        lengths = [(float(end - start), score) for (start, end), score in zip(spans, scores, strict=True)]
        notes = {"pairs": float(len(pairs)), "rank_by_length": correlation([one for one in lengths if not np.isnan(one[1])])}
        notes |= dialogues.compute_turn_metrics([rollouts[best] for best, _ in drawn], "chosen")
        notes |= dialogues.compute_turn_metrics([rollouts[worst] for _, worst in drawn], "rejected")
        known = {key: value for key, value in notes.items() if value is not None}
        return [make_pair_batch(self, "generator", pairs, sources={"critic": 1.0}, notes=known)]

    def score_turns(self, ctx: Context, talks: Rollouts, base: str) -> list[list[float]]:
        """Return the advantage A of each turn of each conversation."""
        o = self.options
        sees = (o.critic_sees, o.critic_sees and o.rank_reference == "with_c")
        return score_turns(ctx, talks, sees, o.turn_agg, base)

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure how dialogues end and what is asked in them, and whether the critic ranks what is better higher."""
        problems, base = self.draw_problems(ctx, self.options.measured), BASE if self.state.get("begun") else "ref"
        talks = dialogues.sample_dialogues(ctx, problems, 2, "live")
        totals = [float(np.sum(turns)) for turns in self.score_turns(ctx, talks, base)]
        found = {
            "generator/success": mean(talks.correct),
            "critic/pair_accuracy": order_accuracy_within(talks.problem_ids, totals, list(talks.correct)),
        }
        if self.options.user == SIMULATOR:
            return found | dialogues.compute_dialogue_metrics(talks)
        first = dialogues.write_all_questions(ctx, problems)
        ranks = [turns[0] for turns in self.score_turns(ctx, first, base)]
        return found | dialogues.compute_question_metrics(talks, first, ranks)
