"""GenRM (arXiv 2408.15240): a verifier learns by supervised fine-tuning to check a solution and then to say Yes or No.

Its score is the probability of the token Yes, averaged over several checks that it samples. The generator is not trained: its
solutions are what the verifier learns on, and what it selects from afterwards (best of n).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import compute_class_weights, compute_group_class_weights, term_weights
from milonga.errors import ConfigError
from milonga.recipe import ALLOWED, Recipe, RecipeOptions
from milonga.roles import Dialect, Role, StepSolver, YesNoVerifier
from milonga.roles.demonstrate import write_check
from milonga.roles.yes_no import Form, Voting
from milonga.schedule import Schedule, always
from milonga.systems.genrm.roles import Annotator, mentions_reference
from milonga.tasks.base import ANSWERS, STEPS, Task
from milonga.types import Floats, Rollout, Rollouts, TrainBatch


class GenrmOptions(RecipeOptions):
    form: Form = "cot"
    """cot: check the steps in writing, then Yes or No. direct: only Yes or No."""
    rationales: int = Field(8, ge=1)
    """K: checks that a score is averaged over when solutions are judged; the paper's number is not known, 32 is likely."""
    voting: Voting = "mean_prob"
    """mean_prob: the mean probability of Yes, which the paper calls majority voting. vote: the share of sampled Yes."""
    normalise: bool = True
    """Whether the probability of Yes is normalised over Yes and No only."""
    source: Literal["reference", "teacher", "own"] = "reference"
    """Who writes the checks to learn from: an annotator who is shown the reference, a teacher who computes each step again
    (where the task knows its steps), or the verifier itself."""
    per_solution: int = Field(1, ge=1)
    """Checks written for each solution."""
    corrupt: float = Field(0.0, ge=0, le=1)
    """Share of the teacher's checks in which the verdict on one step is flipped, and the final verdict with it."""
    consistent: bool = False
    """Whether a check must be right about every step to be kept, not only about the answer; needs exact steps."""
    balance: Literal["problem", "batch", "none"] = "problem"
    """Where right and wrong solutions have equal weight. With `problem`, problems with one kind of solution are not used."""
    generation: float = Field(0.33, ge=0)
    """lambda: weight of learning to write the right solutions too, beside judging them."""


class Genrm(Recipe):
    """Reward modelling as next-token prediction: the chance of Yes, after written checks (GenRM, arXiv 2408.15240)."""

    name = "genrm"
    granularity = "sequence"
    truth = "answers and an annotator's checks"
    needs = {ANSWERS}
    agents = {"generator": StepSolver, "verifier": YesNoVerifier, "annotator": Annotator}
    inference_only = ("annotator",)
    inference_only_if = {"generator": {"generation": 0.0}}
    lead = "verifier"
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    learns = {
        "generator": ("cross_entropy", "policy_gradient"),
        "verifier": ("cross_entropy",),
        "annotator": ("cross_entropy", "policy_gradient"),  # it learns nothing, but may share the others' policy
    }
    defaults = {"policies": {"verifier": {"objective": {"preset": "cross_entropy"}, "lr": 1e-5}}}
    embedded_defaults = {"policies": {"verifier": {"lr": 3e-4}}, "options": {"corrupt": 0.1, "source": "teacher"}}
    published = {"options": {"rationales": 32}}
    Options = GenrmOptions
    options: GenrmOptions

    @classmethod
    def select_agents(cls, options: GenrmOptions) -> Mapping[str, type[Role]]:
        """Return the agents: an annotator only where checks are written with the reference in sight."""
        wanted = options.source == "reference" and options.form == "cot"
        return {agent: role for agent, role in cls.agents.items() if wanted or agent != "annotator"}

    def check(self, task: Task) -> None:
        if self.options.form == "cot" and self.options.source == "teacher" and STEPS not in task.offers:
            raise ConfigError(f"options.source: nobody can check the steps of '{task.name}'; set it to 'reference' or 'own'")

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        judge = YesNoVerifier(dialect, self.options.form, self.options.rationales, self.options.voting, self.options.normalise)
        roles: dict[str, Role] = {"generator": StepSolver(dialect), "verifier": judge, "annotator": Annotator(dialect)}
        return {agent: roles[agent] for agent in self.select_agents(self.options)}

    def schedule(self) -> Schedule:
        return always("verifier")

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample solutions of the generator, and candidate checks of each of them."""
        solutions = ctx.ask("generator", ctx.problems(), self.group_size)
        return Rollouts([*solutions, *self.write_checks(ctx, solutions)])

    def write_checks(self, ctx: Context, solutions: Rollouts) -> Rollouts:
        """Write or sample checks of each solution. They are not filtered by the answer here; `credit` does that."""
        role, options = ctx.role("verifier"), self.options
        assert isinstance(role, YesNoVerifier)
        if options.form == "direct":
            both = [(solution, role.write((), verdict)) for solution in solutions for verdict in (True, False)]
            return ctx.write("verifier", [solution for solution, _ in both], [text for _, text in both])
        if options.source == "own":
            return ctx.ask("verifier", solutions, options.per_solution)
        if options.source == "reference":
            return self.annotate(ctx, solutions)
        readable = [s for s in solutions if s.grade is not None and s.grade.steps for _ in range(options.per_solution)]
        texts = []
        for number, solution in enumerate(readable):
            rng = ctx.rng("check", solution.id, number)
            texts.append(write_check(ctx.task, solution, role, options.corrupt, rng))
        return ctx.write("verifier", readable, texts)

    def annotate(self, ctx: Context, solutions: Rollouts) -> Rollouts:
        """Sample checks of an annotator who sees the reference, and return them with the same texts as checks of the verifier,
        who does not. Those that speak of the reference, or end in no verdict, are no use to it."""
        drafts = ctx.ask("annotator", solutions, self.options.per_solution)
        ended = drafts.select(lambda draft: draft.verification.final is not None)
        usable = ended.select(lambda draft: not mentions_reference(draft.text))
        if len(usable) < len(ended):
            ctx.dropped["annotator: speaks of the reference"] += len(ended) - len(usable)
        texts = [draft.text for draft in usable]
        return Rollouts([*drafts, *ctx.write("verifier", [draft.target for draft in usable], texts)])

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """Make the train batch of L = L_verify + lambda L_generate, each the mean over its own tokens. Dropped checks have
        weight 0."""
        solutions = rollouts.of("generator")
        checks = rollouts.of("verifier")
        labels = label_correct_checks(checks, self.options.consistent)
        own = [*self.compute_class_weights(labels, checks), *(float(right) for right in np.nan_to_num(solutions.correct))]
        rows = Rollouts([*checks, *solutions])
        terms = ["verify"] * len(checks) + ["generate"] * len(solutions)
        loss = self.objectives["verifier"].loss
        sizes = [float(t.length) for t in rows] if loss.aggregate == "token_mean" else None
        weights = term_weights(terms, {"verify": 1.0, "generate": self.options.generation}, own, sizes)
        if self.options.generation and not ctx.engine.has_same_vocabulary(
            self.policies["generator"], self.policies["verifier"]
        ):
            raise ConfigError("options.generation: generator and verifier have different tokenizers; set it to 0")
        by = "demonstrations" if self.options.source != "own" and self.options.form == "cot" else "answers"
        share = self.options.generation / (1 + self.options.generation)
        sources = {"answers": share, by: 1 - share} if by != "answers" else {"answers": 1.0}
        return [
            self.train_batch("verifier", rows, weights=weights, sources=sources, notes=summarise_kept_checks(checks, labels))
        ]

    def compute_class_weights(self, labels: Floats, checks: Rollouts) -> list[float]:
        """Return one weight per check that balances right and wrong solutions; 0 where the label is NaN."""
        if self.options.balance == "problem":
            return compute_group_class_weights(labels, checks.problem_ids)
        return (
            compute_class_weights(labels) if self.options.balance == "batch" else [float(known) for known in ~np.isnan(labels)]
        )


def label_correct_checks(checks: Rollouts, consistent: bool = False) -> Floats:
    """Return the label of each check's solution; NaN where the check is dropped because its verdict is not that label.

    With `consistent`, a check that is wrong about a step is dropped too. Shape: (checks,).
    """
    labels = np.array([t.target.correct for t in checks])
    agree = np.array([t.verification.final == bool(label) for t, label in zip(checks, labels, strict=True)], dtype=bool)
    if consistent:
        agree &= np.array([has_right_reasons(t) is not False for t in checks], dtype=bool)
    return np.where(agree, labels, np.nan)


def has_right_reasons(check: Rollout) -> bool | None:
    """Return whether a check is right about every step; None where that is not known."""
    verdicts, grade = check.verification.steps, check.target.grade
    return None if verdicts is None or grade is None or grade.steps is None else verdicts == grade.steps


def summarise_kept_checks(checks: Rollouts, labels: Floats) -> dict[str, float]:
    """Return the share of checks that the filter keeps, the share of label 1 among them, and that of wrong reasons."""
    known = ~np.isnan(labels)
    reasons = [r for t, keep in zip(checks, known, strict=True) if keep and (r := has_right_reasons(t)) is not None]
    found = {"kept": float(known.mean()) if len(labels) else 0.0}
    if known.any():
        found["kept_right"] = float(labels[known].mean())
    return found | ({"wrong_reasons": 1 - sum(reasons) / len(reasons)} if reasons else {})
