"""Self-Taught Evaluators (arXiv 2408.02666): a pairwise judge that is trained without human preferences.

The worse of two solutions solves a slightly changed problem, so that the better one is known by construction. The judge samples
several judgements of each pair in both orders; those that agree with the construction are kept (rejection sampling), as many
for either position, and the judge is trained on them from its seed again. After the iterations right judgements are preferred
to the others of the same input, by DPO.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from typing import Literal

from pydantic import Field

from milonga.context import Context
from milonga.credit import downsample_to_balance, filter_right_rows, term_weights
from milonga.errors import ConfigError
from milonga.evals.metrics import mean
from milonga.objectives import make_objective
from milonga.patterns.imitation import make_imitation_batch, sample_demonstrations
from milonga.patterns.preference_pairs import Pair, make_pair_batch, record_pairs, to_given_rollout
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import Dialect, Role, StepSolver
from milonga.roles.proposer import QuestionWriter
from milonga.schedule import Action, Phase, Schedule
from milonga.systems.self_taught_evaluators.duels import (
    START,
    Answers,
    Negatives,
    build_pairs,
    classify_judgement,
    compute_duel_metrics,
    duel_both_orders,
    get_duel,
    is_right,
    pair_sampled_solutions,
)
from milonga.systems.self_taught_evaluators.judgements import cap_unreadable, compute_pool_metrics, from_json, to_json
from milonga.systems.self_taught_evaluators.roles import REWRITE, PairJudge
from milonga.tasks.base import ANSWERS, DEMONSTRATIONS, RELATED, STEPS, Capability
from milonga.types import Rollouts, TrainBatch

SEED, COLLECT, TRAIN, PREFER = "seed", "collect", "train", "prefer"
"""The phases. The judge is saved under the tag `seed` when it has been seeded, and under `prefer` when that phase begins."""
SAMPLES = 4
"""Solutions of a held-out problem among which a right and a wrong one are looked for."""


class SelfTaughtEvaluatorsOptions(RecipeOptions):
    seed_turns: int = Field(0, ge=0)
    """Turns that teach the seed to judge pairs, before anything else; 0 for models that can."""
    seed_noise: float = Field(0.0, ge=0, le=1)
    """Share of the seed's examples with the wrong verdict."""
    seed_first: float = Field(0.5, ge=0, le=1)
    """Share of them whose better solution is the first: more than half gives the seed a bias for that place."""
    iters: int = Field(3, ge=1)
    """Iterations. What is left of the run after them is the final stage, by DPO."""
    collect: int = Field(1, ge=1)
    """Turns of an iteration in which pairs are built and judged, `batch.rollouts` times in each order."""
    train: int = Field(5, ge=1)
    """Turns of an iteration in which the judge learns from what was kept."""
    rows: int = Field(256, ge=2)
    """Judgements in such a turn, drawn from all that were written; those that were not kept weigh nothing."""
    answers: Answers = "sampled"
    """Who writes the solutions: the task, or the generator as it started."""
    negatives: Negatives = "rewritten"
    """What the worse solution solves: the problem as a model rewrote it, or as the task did. digits: one character differs."""
    changes: int = Field(1, ge=1)
    """Places in which the task changes a problem; one is the hardest to see."""
    checked: bool = False
    """Whether pairs are left out whose good solution is known to be wrong, or the bad one right; not in the paper."""
    majority_filter: float = Field(0.0, ge=0, le=1)
    """Share of a pair's judgements in one order that must be right for any of them to be kept."""
    balance: bool = True
    """Whether as many judgements are kept for the first place as for the second."""
    restart: Literal["seed", "continue"] = "seed"
    """Whether each iteration trains the seed, or the judge of the iteration before, whose bias grows that way."""
    accumulate: bool = False
    """Whether judgements of earlier iterations are learned from too."""
    max_pairs: int = Field(6, ge=1)
    """Of the final stage: pairs of judgements of one input, at most."""
    max_unreadable: float = Field(0.2, ge=0, le=1)
    """Of the final stage: share of the pairs, at most, that lose by having no verdict; more would teach the format alone."""
    votes: int = Field(1, ge=1)
    """Judgements of a pair in one order when it is measured; their majority counts."""
    measured: int = Field(64, ge=1)
    """Held-out problems on which the judge is measured."""


class SelfTaughtEvaluators(Recipe):
    """A judge learns from its own judgements of pairs whose better side is known by construction (arXiv 2408.02666)."""

    name = "self_taught_evaluators"
    granularity = "sequence"
    truth = "none: pairs are built"
    agents = {"generator": StepSolver, "judge": PairJudge, "rewriter": QuestionWriter}
    lead = "judge"
    overlap = Refused("it learns from pairs of rounds, by what the round before has taught")
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    learns = {"generator": ("policy_gradient", "dpo"), "judge": ("dpo",), "rewriter": ("policy_gradient", "dpo")}
    inference_only = ("generator", "rewriter")
    defaults = {"policies": {"judge": {"objective": {"preset": "dpo", "nll_coef": 1.5, "kl_from": PREFER}}}}
    embedded_defaults = {
        "policies": {"judge": {"lr": 3e-4}},
        "options": {"seed_turns": 12, "seed_noise": 0.15, "seed_first": 0.6}
        | {"negatives": "modified", "answers": "written", "checked": True},
        "turns": 42,
    }
    published = {
        "sampling": {"temperature": 0.7, "max_tokens": 2048},
        "policies": {"judge": {"lr": 1e-6, "schedule": "cosine", "lr_end": 0.1, "weight_decay": 0.1}},
    }
    Options = SelfTaughtEvaluatorsOptions
    options: SelfTaughtEvaluatorsOptions
    measures = tuple(f"judge/{what}" for what in ("pair_accuracy", "consistency", "first_rate", "unreadable", "built_accuracy"))

    @property
    def needs(self) -> Set[Capability]:
        o = self.options
        wanted = {ANSWERS: o.checked, RELATED: o.negatives != "rewritten", STEPS: o.seed_turns > 0}
        wanted[DEMONSTRATIONS] = o.seed_turns > 0 or o.answers == "written"
        return {capability for capability, is_needed in wanted.items() if is_needed}

    @classmethod
    def select_agents(cls, options: SelfTaughtEvaluatorsOptions) -> Mapping[str, type[Role]]:
        """The rewriter takes part where it changes problems."""
        return {agent: role for agent, role in cls.agents.items() if agent != "rewriter" or options.negatives == "rewritten"}

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        o = self.options
        judge = PairJudge(dialect, o.seed_noise, o.seed_first)
        if o.negatives != "rewritten":
            return {"generator": StepSolver(dialect), "judge": judge}
        if dialect == "terse" or o.answers == "written":
            raise ConfigError("options.negatives=rewritten needs a model that writes prose, and options.answers=sampled")
        return {"generator": StepSolver(dialect), "judge": judge, "rewriter": QuestionWriter(dialect, REWRITE)}

    def schedule(self) -> Schedule:
        """The seed phase; iterations that each begin from it again; and the final DPO stage, whose reference is where it
        begins."""
        o, judge = self.options, self.policies["judge"]
        anew = (Action("reset", judge, SEED),) if o.restart == "seed" else ()
        first = Phase("judge", o.collect, enter=(Action("snapshot", judge, SEED),), name=COLLECT)
        again, train = Phase("judge", o.collect, name=COLLECT), Phase("judge", o.train, enter=anew, name=TRAIN)
        later = (again, train) * (o.iters - 1)
        begin = Phase("judge", 1, enter=(Action("snapshot", judge, PREFER),), name=PREFER)
        return Schedule(
            (Phase("judge", o.seed_turns, name=SEED), first, train, *later, begin), (Phase("judge", 1, name=PREFER),)
        )

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample judgements of the newest judge about pairs in both orders; nothing is sampled in a training phase."""
        if ctx.phase == SEED:
            return sample_demonstrations(ctx, "judge")
        if ctx.phase == TRAIN:
            return Rollouts([])
        pairs = build_pairs(ctx, ctx.problems(), self.options.answers, self.options.negatives, self.options.changes)
        self.state["construction_errors"] = mean([one.construction_failed for one in pairs])
        usable = [one for one in pairs if not (self.options.checked and one.construction_failed)]
        tag = PREFER if ctx.phase == PREFER else "live"
        return ctx.ask("judge", duel_both_orders(usable), self.group_size, tag=tag)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        if ctx.phase == SEED:
            return [make_imitation_batch(self, "judge", rollouts)]
        if ctx.phase == PREFER:
            return self.credit_preferred(ctx, rollouts)
        if ctx.phase == TRAIN:
            return self.credit_kept(ctx)
        self.collect(ctx, rollouts)
        return []

    def collect(self, ctx: Context, rollouts: Rollouts) -> None:
        """Store all judgements of the iteration, with whether each is kept: it is right, and its position is not
        over-represented."""
        begins = self.state.get("iteration") != ctx.round
        pool = [] if begins and not self.options.accumulate else self.state.get("pool", [])
        kept = filter_right_rows([is_right(t) for t in rollouts], rollouts.target_ids, self.options.majority_filter)
        if self.options.balance:
            kept = downsample_to_balance(kept, [get_duel(t).better for t in rollouts], ctx.rng("balance"))
        pool += [to_json(judgement, keep) for judgement, keep in zip(rollouts, kept, strict=True)]
        self.state |= {"pool": pool, "iteration": ctx.round}

    def credit_kept(self, ctx: Context) -> list[TrainBatch]:
        """Make a cross-entropy train batch of the kept judgements, on the tokens of the judge alone."""
        pool, judge = self.state["pool"], self.policies["judge"]
        chosen = ctx.rng("judgements").sample(range(len(pool)), min(len(pool), self.options.rows))
        drawn = [pool[row] for row in sorted(chosen)]
        rows = Rollouts(from_json(one, number, judge) for number, one in enumerate(drawn))
        kept = [float(one["keep"]) for one in drawn]
        if not any(kept):
            return []  # nothing that was drawn agrees with how its pair was built
        weights = term_weights(["kept"] * len(rows), {"kept": 1.0}, kept, [float(t.length) for t in rows])
        errors = self.state["construction_errors"]
        notes = compute_pool_metrics(pool) | ({} if errors is None else {"construction_errors": errors})
        loss, sources = make_objective("cross_entropy").loss, {"construction": 1.0}
        return [TrainBatch(judge, loss, rows, weights=weights, sources=sources, notes=notes)]

    def credit_preferred(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """-log sigmoid(beta * (log-ratio of a right judgement - log-ratio of another of the same input)) + 1.5 * NLL of it."""
        rng = ctx.rng("preferred")
        candidates: list[Pair] = []
        for target in dict.fromkeys(rollouts.target_ids):
            mine = [t for t in rollouts if t.target.id == target]
            rejected = [t for t in mine if not is_right(t)]
            both: list[Pair] = [
                (f"right against {classify_judgement(bad)}", to_given_rollout(good), to_given_rollout(bad))
                for good in mine
                if is_right(good)
                for bad in rejected
            ]
            candidates += rng.sample(both, min(len(both), self.options.max_pairs))
        pairs = record_pairs(ctx, cap_unreadable(candidates, self.options.max_unreadable))
        causes = Counter(reason.rpartition(" ")[2] for reason, _, _ in pairs)
        notes = {f"rejected_{name}": count / len(pairs) for name, count in causes.items()} | {"pairs": float(len(pairs))}
        return [make_pair_batch(self, "judge", pairs, sources={"construction": 1.0}, notes=notes)] if pairs else []

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure the judge on natural errors, in both orders, and on constructed ones: a judge may know one kind alone."""
        problems, votes = ctx.problems(self.options.measured), self.options.votes
        real = pair_sampled_solutions(ctx.ask("generator", problems, SAMPLES, tag=START))
        found = compute_duel_metrics(ctx.ask("judge", duel_both_orders(real), votes) if real else Rollouts([]))
        kind: Negatives = self.options.negatives if self.options.negatives == "rewritten" else "modified"
        written = kind == "modified" and DEMONSTRATIONS in ctx.task.offers
        built = build_pairs(ctx, problems, "written" if written else "sampled", kind, self.options.changes)
        right = compute_duel_metrics(
            ctx.ask("judge", duel_both_orders([one for one in built if not one.construction_failed]), votes)
        )["pair_accuracy"]
        return {f"judge/{key}": value for key, value in found.items()} | {"judge/built_accuracy": right}
