"""Attacks on a step scorer: right steps are rewritten, labelled by an oracle, and accepted or not by the scorer.

The oracle is exact where the task knows its steps. Where it knows answers alone, steps of solutions with the right answer count
as right, and a rewritten step as wrong if no completion from it arrives there. That forgives a mistake which the generator
repairs, and blames a step that it cannot go on from. The scorer sees the problem and the steps up to the rewritten one. It
never sees the original step: at test time there is none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from milonga.context import Context
from milonga.evals.metrics import mean
from milonga.patterns.slicing import build_step_prefix, write_reference
from milonga.patterns.value_head import Labelled
from milonga.randomness import keyed_rng
from milonga.roles.slices import Slice, split_into_slices
from milonga.systems.aprm.credit import balanced_accuracy
from milonga.tasks.base import normalise_text
from milonga.types import Rollout, Rollouts


@dataclass(frozen=True)
class Attack:
    """One rewritten step. `right` is the oracle's label; None where it is no step, and shown to nobody, or nobody can tell."""

    rewrite: Rollout
    right: bool | None
    shown: Rollout | None
    accepted: bool = False

    @property
    def is_known(self) -> bool:
        """Whether it is known what was written: a right step, a wrong one, or none."""
        return self.shown is None or self.right is not None


def label_last_step(solution: Rollout, right: bool) -> Labelled:
    """Label only the last step of a prefix; the earlier steps have NaN."""
    count = len(solution.solution.steps)
    return Labelled(solution, [float("nan")] * (count - 1) + [float(right)])


def slice_correct_steps(ctx: Context, solutions: Rollouts, exact: bool = True) -> list[list[Rollout]]:
    """Return for each solution its right steps, each as a slice of one step. A step is right given the steps before it; if not
    `exact`, if its solution has the right answer."""
    dialect = ctx.role("generator").dialect
    pieces = [split_into_slices(solution, 1, dialect) for solution in solutions]
    return [[piece for piece in some if _is_right(piece, exact)] for some in pieces]


def _is_right(piece: Rollout, exact: bool) -> bool:
    return piece.grade is not None and (piece.grade.steps == (True,) if exact else piece.grade.correct is True)


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


def grade_attacks(ctx: Context, rewrites: Rollouts, completions: int = 0) -> list[Attack]:
    """Grade each rewritten step by the oracle and by the scorer. Text that does not parse as a step is no attack, and the
    scorer is not trained on it. With `completions`, the oracle is that of answers, by so many of them."""
    shown = [show_rewrite(ctx, rewrite) for rewrite in rewrites]
    steps = zip(rewrites, shown, strict=True)
    right = [None if one is None else check_rewritten_step(ctx, t.target, get_step(t)) for t, one in steps]
    if completions:
        right = check_by_answers(ctx, rewrites, shown, completions)
    verdicts = judge_last_steps(ctx, [one for one in shown if one is not None])
    return [
        Attack(t, label, one, one is not None and verdicts.get(one.id, False))
        for t, label, one in zip(rewrites, right, shown, strict=True)
    ]


def get_step(rewrite: Rollout) -> str:
    """Return the rewritten step; empty where none could be parsed."""
    return next(iter(rewrite.solution.steps), "") if rewrite.parsed.is_valid else ""


def show_rewrite(ctx: Context, rewrite: Rollout) -> Rollout | None:
    """Show a rewritten step at the end of the steps before it; None where it is no step, or not one."""
    step = get_step(rewrite)
    if not step or not ctx.task.is_step(step):
        return None
    shown = build_step_prefix(ctx, rewrite.target, step)
    return shown if len(shown.solution.steps) == len(rewrite.target.parsed.get(Slice).before) + 1 else None


def check_by_answers(ctx: Context, rewrites: Rollouts, shown: Sequence[Rollout | None], n: int) -> list[bool | None]:
    """Return whether each rewritten step counts as right by answers: it repeats the original, or at least one of `n`
    completions of the generator from it arrives at the right one. None where it is no step, or nothing could be graded."""
    right: dict[str, bool | None] = {}
    asked: dict[tuple[str, str], str] = {}
    for rewrite, one in zip(rewrites, shown, strict=True):
        if one is not None and normalise_text(get_step(rewrite)) == normalise_text(rewrite.target.text):
            right[one.id] = True
        elif one is not None:
            asked[one.problem.id, one.text] = one.id
    problems = {one.problem.id: one.problem for one in shown if one is not None}
    written = ctx.write("generator", [problems[problem] for problem, _ in asked], [text for _, text in asked])
    starts = [(one, len(one.steps)) for one in written if one.steps]
    for done in ctx.complete("generator", starts, n) if starts else ():
        id = asked[done.problem.id, done.target.text]
        if done.grade is not None and done.grade.correct is not None:
            right[id] = bool(right.get(id)) or done.grade.correct
    return [None if one is None else right.get(one.id) for one in shown]


def attack_metrics(found: Sequence[Attack]) -> dict[str, float | None]:
    """Return the share of wrong rewrites that are accepted, and of all that were graded the shares not wrong, or not steps."""
    known = [attack for attack in found if attack.is_known]
    return {
        "fool_rate": mean([attack.accepted for attack in known if attack.right is False]),
        "invalid_rate": mean([attack.right is not False for attack in known]),
        "malformed_rate": mean([attack.right is None for attack in known]),
    }


def sample_own_steps(ctx: Context, count: int) -> Rollouts:
    """Sample one step of each of the generator's solutions of the next problems that have the right answer."""
    pieces = slice_correct_steps(ctx, ctx.ask("generator", ctx.problems(count)), exact=False)
    return Rollouts(keyed_rng("measured", some[0].problem.id).choice(some) for some in pieces if some)


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
