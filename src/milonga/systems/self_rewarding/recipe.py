"""Self-Rewarding Language Models (arXiv 2401.10020): one model answers, grades its answers, and learns from its own grades.

A seed of graded answers, where there is one, teaches the model to give points. Then, in rounds, it answers prompts and grades
each answer several times; the best of a prompt is preferred to the worst by DPO, with the model that made and graded both as
reference. The judge changes with the model: nothing outside the model corrects it after the seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from milonga.context import Context
from milonga.credit import select_best_worst
from milonga.credit.selection import PairRule
from milonga.errors import ConfigError
from milonga.evals.metrics import mean
from milonga.patterns.imitation import make_imitation_batch, sample_demonstrations
from milonga.patterns.preference_pairs import BEFORE, Pair, is_cut_prose, make_pair_batch, record_pairs, to_given_rollout
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import Dialect, Role, StepSolver
from milonga.roles.proposer import QuestionWriter
from milonga.schedule import Action, Phase, Schedule
from milonga.systems.self_rewarding.prompts import show_graded, write_prompts
from milonga.systems.self_rewarding.roles import MOST, STYLE, Grader, award_points
from milonga.tasks.base import ANSWERS, DEMONSTRATIONS, STEPS, Capability, Task
from milonga.tasks.graded import Graded, read_graded
from milonga.types import Floats, Rollout, Rollouts, TrainBatch

SEED = "seed"
"""The phase that teaches grading, and the tag of the judge as it was after it."""
MEASURED = 64
"""Held-out problems, at most, on which own grades are compared with the truth."""


class SelfRewardingOptions(RecipeOptions):
    seed_turns: int = Field(0, ge=0)
    """Turns that teach the model to grade, before the first round; 0 for models that can."""
    seed_path: str | None = None
    """A file of graded answers to learn grading from; without it the task shows how."""
    seed_noise: float = Field(0.0, ge=0, le=1)
    """Share of the seed's grades that are given at random."""
    round_turns: int = Field(4, ge=1)
    """Turns of a round. N turns are N / round_turns rounds; the paper has two."""
    gradings: int = Field(3, ge=1)
    """Gradings of an answer; its score is the mean of those that can be read."""
    judge: Literal["self", "frozen", "oracle"] = "self"
    """self: the model as it was at the start of the round. frozen: as it was after the seed. oracle: the truth, of each step
    where it is known, else of the answer."""
    prompts: Literal["task", "proposed"] = "task"
    """proposed: new prompts, written by the model as it started in the style of the task's own, and filtered."""
    shots: int = Field(8, ge=1)
    """Of proposed prompts: how many of the task's are shown for each."""
    most_similar: float = Field(0.7, gt=0, le=1)
    """Of proposed prompts: those whose ROUGE-L with one that was shown reaches this are dropped."""
    min_margin: float = Field(1.0, ge=0, le=MOST)
    """Points that must lie between the two answers of a pair; equal ones never make one."""
    pair_rule: PairRule = "best_worst"
    """Which answers make a pair where several have the highest or the lowest score."""
    length_bonus: float = Field(0.0, ge=0)
    """Points that answers longer than the median of their problem get for that alone: a judge who loves length, to show it."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.seed_path is not None and not self.seed_turns:
            raise ValueError("seed_path is learned from in seed_turns: set options.seed_turns too, such as 12")
        if self.prompts == "proposed" and self.judge == "oracle":
            raise ValueError("nobody knows the answers to proposed prompts: set options.judge=self, or options.prompts=task")
        return self


class SelfRewarding(Recipe):
    """One model is answerer and judge, and prefers its own best to its own worst (arXiv 2401.10020)."""

    name = "self_rewarding"
    granularity = "sequence"
    truth = "none, or graded answers at the start"
    agents = {"generator": StepSolver, "verifier": Grader, "proposer": QuestionWriter}
    lead = "generator"
    overlap = Refused("it learns from pairs of rounds, by what the round before has taught")
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    learns = {
        "generator": ("dpo",),
        "verifier": ("cross_entropy", "dpo", "policy_gradient"),
        "proposer": ("dpo", "policy_gradient"),
    }
    inference_only = ("proposer",)
    measures = ("verifier/own_score", "verifier/score_gap")
    defaults = {
        "binding": "shared",
        # The DPO margin alone made both sides unlikely, however right the pairs were.
        "policies": {"generator": {"objective": {"preset": "dpo", "beta": 1.0, "nll_coef": 1.0, "kl_from": BEFORE}}},
        "batch": {"rollouts": 4},
    }
    embedded_defaults = {"options": {"seed_turns": 12, "seed_noise": 0.15}}
    published = {
        "turns": 682,
        "batch": {"problems": 16, "rollouts": 4},
        "sampling": {"temperature": 0.7},
        "policies": {
            "generator": {
                "lr": 1e-6,
                "schedule": "cosine",
                "lr_end": 0.1,
                "objective": {"preset": "dpo", "beta": 0.1, "nll_coef": 0.0, "kl_from": BEFORE},
            }
        },
        "options": {"round_turns": 341, "gradings": 3, "min_margin": 0.0, "prompts": "proposed"},
    }
    Options = SelfRewardingOptions
    options: SelfRewardingOptions

    @classmethod
    def select_agents(cls, options: SelfRewardingOptions) -> Mapping[str, type[Role]]:
        """The writer of prompts takes part where prompts are proposed."""
        return {agent: role for agent, role in cls.agents.items() if agent != "proposer" or options.prompts == "proposed"}

    @property
    def needs(self) -> Set[Capability]:
        shown: Set[Capability] = {DEMONSTRATIONS, STEPS} if self.options.seed_turns and not self.options.seed_path else set()
        return shown | ({ANSWERS} if self.options.judge == "oracle" else set())

    seed_examples: Sequence[Graded] = ()
    """The graded answers of the seed's file."""

    def check(self, task: Task) -> None:
        if self.options.seed_path is not None:
            self.seed_examples = read_graded(self.options.seed_path, MOST)

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        if self.options.seed_path is not None and dialect != "plain":
            raise ConfigError(f"options.seed_path is for gradings in prose (dialect plain), not for the dialect '{dialect}'")
        made: dict[str, Role] = {"generator": StepSolver(dialect), "verifier": Grader(dialect, self.options.seed_noise)}
        if self.options.prompts == "task":
            return made
        if dialect == "terse":
            raise ConfigError("options.prompts=proposed needs a model that writes prose, which an embedded one does not")
        return made | {"proposer": QuestionWriter(dialect, STYLE)}

    def schedule(self) -> Schedule:
        both = dict.fromkeys(self.policies[agent] for agent in ("generator", "verifier"))
        before = tuple(Action("snapshot", policy, BEFORE) for policy in both)
        seeded = Action("snapshot", self.policies["verifier"], SEED)
        turns = self.options.round_turns
        intro = (Phase("verifier", self.options.seed_turns, name=SEED), Phase("generator", turns, enter=(seeded, *before)))
        return Schedule(intro, (Phase("generator", turns, enter=before),))

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample answers and gradings of the model at the start of the round."""
        o = self.options
        if ctx.phase == SEED:
            return show_graded(ctx, self.seed_examples) if o.seed_path else sample_demonstrations(ctx, "verifier")
        if o.prompts == "proposed":
            written, problems = write_prompts(ctx, o.shots, o.most_similar)
        else:
            written, problems = Rollouts([]), ctx.problems()
        answers = ctx.ask("generator", problems, self.group_size, tag=BEFORE)
        if o.judge == "oracle":
            return answers
        gradings = ctx.ask("verifier", answers, o.gradings, tag=SEED if o.judge == "frozen" else BEFORE)
        return Rollouts([*written, *answers, *gradings])

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """-log sigmoid(beta * (log-ratio of the best answer - log-ratio of the worst)), by the own score."""
        if ctx.phase == SEED:
            return [make_imitation_batch(self, "verifier", rollouts)]
        answers = rollouts.of("generator")
        scores = self.score_answers(answers, rollouts.of("verifier"))
        sizes = [float(len(t.text)) for t in answers]
        whole = np.where([is_cut_prose(ctx, t) for t in answers], np.nan, scores)
        chosen = select_best_worst(whole, sizes, answers.problem_ids, self.options.pair_rule, self.options.min_margin)
        candidates: list[Pair] = [
            (
                f"{scores[best]:.3g} points against {scores[worst]:.3g}",
                to_given_rollout(answers[best]),
                to_given_rollout(answers[worst]),
            )
            for best, worst in chosen
        ]
        pairs = record_pairs(ctx, candidates)
        written = rollouts.of("proposer")
        notes = {"score": mean(scores) or 0.0, "no_pair": 1 - len(chosen) / max(1, len(set(answers.problem_ids)))}
        if not pairs:
            return []  # every answer of a problem scores alike: the judge has nothing more to say
        notes |= {"prompts_kept": len(set(answers.problem_ids)) / len(written)} if len(written) else {}
        notes |= {"pairs": float(len(pairs)), "longer_wins": longer_win_rate(pairs)} | right_win_metrics(pairs)
        source = "steps" if self.options.judge == "oracle" else "verifier"
        return [make_pair_batch(self, "generator", pairs, sources={source: 1.0}, notes=notes)]

    def score_answers(self, answers: Rollouts, gradings: Rollouts) -> Floats:
        """Return one score per answer: the mean of the points that can be parsed, plus the length bonus; NaN where none can."""
        if self.options.judge == "oracle":
            own = np.array([award_true_points(t) for t in answers])
        else:
            own = mean_points(answers, gradings)
        sizes, groups = np.array([len(t.text) for t in answers]), np.array(answers.problem_ids)
        long = [sizes[row] > np.median(sizes[groups == groups[row]]) for row in range(len(answers))]
        return own + self.options.length_bonus * np.array(long, dtype=float)

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Return the model's own mean score, from 0 to 1, and by how much it exceeds the accuracy."""
        answers = ctx.ask("generator", ctx.problems(min(ctx.batch_size, MEASURED)))
        points = mean_points(answers, ctx.ask("verifier", answers))
        known = ~np.isnan(points)
        own, right = mean(points[known] / MOST), mean(answers.correct[known])
        return {"verifier/own_score": own, "verifier/score_gap": None if own is None or right is None else own - right}


def award_true_points(answer: Rollout) -> float:
    """Return the points that the truth gives: for the share of right steps or, where no step is known, for the answer alone."""
    if answer.grade is None or answer.grade.steps is None:
        return MOST * answer.correct
    return float(award_points(answer.grade.steps))


def mean_points(answers: Rollouts, gradings: Rollouts) -> Floats:
    """Return the mean points of each answer over the gradings that can be parsed; NaN where none can."""
    found: dict[str, list[float]] = {}
    for grading in gradings:
        if grading.verification.score is not None:
            found.setdefault(grading.target.id, []).append(MOST * grading.verification.score)
    return np.array([np.mean(found[t.id]) if t.id in found else np.nan for t in answers])


def longer_win_rate(pairs: list[Pair]) -> float:
    """Return the share of the pairs in which the winner is longer; ties count half."""
    signs = [np.sign(len(winner.text) - len(loser.text)) for _, winner, loser in pairs]
    return float(np.mean(signs) / 2 + 0.5)


def right_win_metrics(pairs: list[Pair]) -> dict[str, float]:
    """Return the share of right winners among the pairs of a right and a wrong answer; a metric only."""
    apart: list[tuple[Rollout, Rollout]] = [p[1:] for p in pairs if {p[1].correct, p[2].correct} == {0.0, 1.0}]
    return {"right_wins": float(np.mean([winner.correct for winner, _ in apart]))} if apart else {}
