"""Tango without ground truth: the verifier learns from the majority vote of solutions, the generator from the verifier's
verdicts.

Nothing in the loop knows what is right, and both may come to agree on a wrong answer: collusion. It is measured with the hidden
truth at every evaluation. Remedies are a few labelled problems, frozen anchors and an adversarial third agent. The
specification is docs/recipes/tango_free.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from milonga.credit.baselines import group_rows
from milonga.credit.votes import verdict_consistency
from milonga.errors import ConfigError
from milonga.evals.metrics import mean
from milonga.recipes.base import RECIPES
from milonga.recipes.tango import Tango, TangoOptions
from milonga.recipes.voting import collusion_metrics, mean_final_verdicts, mean_step_verdicts, tally_votes
from milonga.table import Table
from milonga.types import Lesson, Problem, Traces

LABELLED = "labelled/"
"""The id prefix of problems whose answers are known."""


class TangoFreeOptions(TangoOptions):
    votes: int = Field(8, ge=2)
    """Solutions of a problem that vote, in a verifier turn."""
    checks: int = Field(3, ge=1)
    """Verdicts on each solution that make the generator's reward."""
    self_consistency: float = Field(0.5, ge=0)
    """Weight of agreeing with one's other verdicts on the same solution; agreeing with the vote has weight 1."""
    min_majority: float = Field(0.0, ge=0, le=1)
    """The verifier learns nothing from a problem whose most frequent answer has a smaller share."""
    labelled: int = Field(0, ge=0)
    """Remedy: so many problems have known answers; in verifier turns the truth is their label."""
    labelled_share: float = Field(0.25, gt=0, le=1)
    """Share of the verifier's problems that are taken from these."""
    anchors: int = Field(0, ge=0)
    """Remedy: so many solutions by the initial generator vote too, and so many verdicts by the initial verifier are added to
    its own."""
    audit: int = Field(64, ge=1)
    """Held-out problems on which collusion is measured."""


@RECIPES.register("tango_free")
class TangoFree(Tango):
    """Tango in which the majority vote of solutions and the verifier's own verdicts replace the ground truth."""

    name = "tango_free"
    paper = "none: docs/recipes/tango_free.md"
    paradigm = "self-play"
    truth = "none"
    overlap = "agreement takes the place of answers: it must be that of the generator that learns, not of older ones"
    Options = TangoFreeOptions
    options: TangoFreeOptions
    measures = tuple(collusion_metrics([], Traces([])))

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        for seat, objective in self.objectives.items():
            if objective.dynamic_sampling:
                raise ConfigError(
                    f"'{self.name}' has no truth by which problems could be chosen; "
                    f"set policies.{seat}.objective.dynamic_sampling=false"
                )

    def play(self, table: Table) -> Traces:
        """Sample a generator turn (many solutions, a few checks of each) or a verifier turn (many voters, many checks of two of
        them)."""
        o = self.options
        if table.learner == "generator":
            solutions = table.ask("generator", table.problems(), self.rollouts)
            return Traces([*solutions, *self.sample_verdicts(table, solutions)])
        problems = self.draw_problems(table)
        voters = Traces([*table.ask("generator", problems, o.votes), *self.sample_anchors(table, problems)])
        return Traces([*voters, *table.ask("verifier", self.select_for_judging(table, voters), self.rollouts)])

    def draw_problems(self, table: Table) -> list[Problem]:
        """Draw the turn's problems; the first of them are labelled ones, reused in every turn, where there are any."""
        o, count = self.options, table.setting.batch
        known = round(o.labelled_share * count) if o.labelled else 0
        first = count * int(table.turn)
        old = [table.setting.task.problem("train", (first + n) % o.labelled) for n in range(known)]
        return [replace(p, id=f"{LABELLED}{n}/{p.id}") for n, p in enumerate(old)] + table.problems(count - known)

    def sample_anchors(self, table: Table, problems: list[Problem]) -> Traces:
        """Sample solutions of the initial generator, which vote too; none without anchors."""
        return table.ask("generator", problems, self.options.anchors, tag="ref") if self.options.anchors else Traces([])

    def sample_verdicts(self, table: Table, solutions: Traces) -> Traces:
        """Sample verdicts on solutions: of the current verifier, and of the initial one where there are anchors."""
        checks = table.ask("verifier", solutions, self.options.checks)
        frozen = table.ask("verifier", solutions, self.options.anchors, tag="ref") if self.options.anchors else ()
        return Traces([*checks, *frozen])

    def select_for_judging(self, table: Table, voters: Traces) -> Traces:
        """Select for each problem the first solution that gives the winning answer and the first that does not.

        Rare errors, or rare successes, would teach one verdict for everything.
        """
        found = []
        for cast in tally_votes(table, voters).values():
            own = [trace for trace in cast.voters if trace.mask.any()]  # an anchor votes, but is not judged
            for gives in (1.0, 0.0):
                found += [trace for trace in own if cast.gives[trace.id] == gives][:1]
        return Traces(found)

    def credit(self, table: Table, played: Traces) -> list[Lesson]:
        solutions = played.select(lambda t: t.seat == "generator")
        checks = played.select(lambda t: t.seat == "verifier")
        if table.learner == "generator":
            lesson = self.credit_generator(
                table, solutions, mean_step_verdicts(solutions, checks), mean_final_verdicts(solutions, checks)
            )
            return [replace(lesson, sources={"verifier": 1.0})]
        return [self.credit_judge(table, checks, self.make_labels(table, solutions, checks.about))]

    def make_labels(self, table: Table, voters: Traces, judged: Traces) -> dict[str, float]:
        """Return the pseudo-label of each judged solution: whether it gives the winning answer.

        NaN where too few agree; the truth itself on labelled problems, and nowhere else.
        """
        out: dict[str, float] = {}
        asked = {trace.id for trace in voters}
        for cast in tally_votes(table, voters, judged.select(lambda t: t.id not in asked)).values():
            known = cast.vote.winner is not None and cast.vote.share >= self.options.min_majority
            out |= {id: gives if known else float("nan") for id, gives in cast.gives.items()}
        return out | {t.id: t.correct for t in judged if t.problem.id.startswith(LABELLED)}

    def credit_judge(self, table: Table, checks: Traces, labels: Mapping[str, float]) -> Lesson:
        """Make Tango's train batch of the verifier with these labels, and with a reward for self-consistency."""
        o, agrees = self.options, np.zeros(len(checks))
        for rows in group_rows(checks.subjects):
            agrees[rows] = verdict_consistency([checks[row].reading.value.final for row in rows])
        lesson = self.credit_verifier(table, checks, labels, o.self_consistency * agrees)
        own = o.self_consistency / (1 + o.self_consistency)
        told = mean([t.subject.problem.id.startswith(LABELLED) for t in checks]) or 0.0
        sources = {"generator": (1 - own) * (1 - told), "verifier": own, "answers": (1 - own) * told}
        notes = lesson.notes | {"verdict_consistency": mean(agrees) or 0.0}
        return replace(lesson, sources={key: share for key, share in sources.items() if share}, notes=notes)

    def measure(self, table: Table) -> dict[str, float | None]:
        """Measure collusion of generator and verifier against the hidden truth, on held-out problems."""
        solutions = table.ask("generator", table.problems(self.options.audit), self.options.votes)
        checks = table.ask("verifier", solutions, max(2, self.options.checks))  # consistency needs two verdicts
        return collusion_metrics(list(tally_votes(table, solutions).values()), checks)
