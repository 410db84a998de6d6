"""Attacks on a step scorer: right steps are rewritten, labelled by an exact oracle, and accepted or not by the scorer.

The scorer sees the problem and the steps up to the rewritten one. It never sees the original step: at test time there is none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from milonga.context import Context
from milonga.evals.metrics import mean
from milonga.patterns.slicing import write_reference
from milonga.patterns.value_head import Labelled
from milonga.randomness import keyed_rng
from milonga.roles import StepSolver
from milonga.roles.slices import Slice, split_into_slices
from milonga.systems.aprm.credit import balanced_accuracy
from milonga.types import Rollout, Rollouts, Solution


@dataclass(frozen=True)
class Attack:
    """One rewritten step. `right` is the oracle's label; None where it is not a step at all, which is shown to nobody."""

    rewrite: Rollout
    right: bool | None
    shown: Rollout | None
    accepted: bool = False


def label_last_step(solution: Rollout, right: bool) -> Labelled:
    """Label only the last step of a prefix; the earlier steps have NaN."""
    count = len(solution.solution.steps)
    return Labelled(solution, [float("nan")] * (count - 1) + [float(right)])


def slice_correct_steps(ctx: Context, solutions: Rollouts) -> list[list[Rollout]]:
    """Return for each solution its right steps, each as a slice of one step. A step is right given the steps before it."""
    dialect = ctx.role("generator").dialect
    pieces = [split_into_slices(solution, 1, dialect) for solution in solutions]
    return [[piece for piece in some if piece.grade is not None and piece.grade.steps == (True,)] for some in pieces]


def build_step_prefix(ctx: Context, piece: Rollout, step: str | None = None) -> Rollout:
    """Build the prefix of a solution up to one step, which `step` replaces, in the solver's format."""
    solver, value = ctx.role("generator"), piece.parsed.get(Slice)
    assert isinstance(solver, StepSolver)
    whole = solver.write([*value.before, value.steps[0] if step is None else step], "")
    read = solver.parse(whole).get(Solution)
    text = whole[: read.ends[len(value.before)]]
    prefix = Rollout.from_text(f"{piece.id}>{step or ''}", "generator", piece.problem, text, solver.parse(text))
    return replace(prefix, finish="length")


def check_rewritten_step(ctx: Context, piece: Rollout, step: str) -> bool | None:
    """Return whether a rewritten step is right given the steps before it; None where the task cannot tell. The later steps stay
    as they were, because a solution that stops early is graded wrong where it stops."""
    solution, at = piece.target.solution, len(piece.parsed.get(Slice).before)
    steps = [*solution.steps[:at], step, *solution.steps[at + 1 :]]
    truth = ctx.task.grade(piece.problem, solution.answer, steps).steps
    return None if truth is None else truth[at]


def judge_last_steps(ctx: Context, works: Sequence[Rollout]) -> dict[str, bool]:
    """Return rollout id to whether the scorer accepts its last step (score >= 0.5)."""
    distinct = {work.id: work for work in works}
    checks = ctx.judge("verifier", Rollouts(distinct.values()))
    found = {check.target.id: check.verification.step_scores for check in checks}
    return {id: scores[-1] >= 0.5 for id, scores in found.items() if scores}


def grade_attacks(ctx: Context, rewrites: Rollouts) -> list[Attack]:
    """Grade each rewritten step by the oracle and by the scorer. Text that does not parse as a step is no attack, and the
    scorer is not trained on it."""
    found = []
    for rewrite in rewrites:
        piece, step = rewrite.target, next(iter(rewrite.solution.steps), None)
        if step is None or not rewrite.parsed.is_valid or not ctx.task.is_step(step):
            found.append(Attack(rewrite, None, None))
        else:
            found.append(Attack(rewrite, check_rewritten_step(ctx, piece, step), build_step_prefix(ctx, piece, step)))
    verdicts = judge_last_steps(ctx, [attack.shown for attack in found if attack.shown is not None])
    return [replace(a, accepted=a.shown is not None and verdicts.get(a.shown.id, False)) for a in found]


def attack_metrics(found: Sequence[Attack]) -> dict[str, float | None]:
    """Return the share of wrong rewrites that are accepted, and of all rewrites the shares that are not wrong or not steps."""
    return {
        "fool_rate": mean([attack.accepted for attack in found if attack.right is False]),
        "invalid_rate": mean([attack.right is not False for attack in found]),
        "malformed_rate": mean([attack.right is None for attack in found]),
    }


def sample_gold_steps(ctx: Context, count: int) -> Rollouts:
    """Sample one step of the reference solution of each of the next problems."""
    pieces = []
    for problem in ctx.problems(count):
        solution = write_reference(ctx, problem)
        pieces.append(keyed_rng("measured", problem.id).choice(split_into_slices(solution, 1, ctx.role("generator").dialect)))
    return Rollouts(pieces)


def list_family_metrics(families: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the metrics that `family_metrics` returns."""
    return (*(f"accuracy_on_{name}" for name in families), "held_out_accuracy", "allowed_accuracy", "accepts_untouched")


def family_metrics(ctx: Context, targets: Rollouts, held_out: Collection[str]) -> dict[str, float | None]:
    """Return the scorer's balanced accuracy on untouched steps against each family of mistakes, and its means over the families
    that are held out and those that are not."""
    task = ctx.task
    works: dict[str, list[Rollout]] = {name: [] for name in ("untouched", *task.families)}
    for piece in targets:
        value, rng = piece.parsed.get(Slice), keyed_rng("corrupted", piece.problem.id)
        works["untouched"].append(build_step_prefix(ctx, piece))
        for family in task.families:
            text = task.corrupt_step(piece.problem, [*value.before, *value.steps], len(value.before), family, rng)
            works[family] += [] if text is None else [build_step_prefix(ctx, piece, text)]
    verdicts = judge_last_steps(ctx, [work for some in works.values() for work in some])
    yes = {name: [verdicts[work.id] for work in some if work.id in verdicts] for name, some in works.items()}
    out = {
        name: balanced_accuracy(yes["untouched"] + yes[name], [True] * len(yes["untouched"]) + [False] * len(yes[name]))
        for name in task.families
    }
    apart = {True: "held_out_accuracy", False: "allowed_accuracy"}
    means = {
        label: mean([v for n, v in out.items() if v is not None and (n in held_out) == held]) for held, label in apart.items()
    }
    return {f"accuracy_on_{name}": value for name, value in out.items()} | means | {"accepts_untouched": mean(yes["untouched"])}
