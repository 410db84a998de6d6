"""Advice from the figures of a probe: sentences, each with the setting to change where there is one. A pure function.

Advice that is `blocking` says that nothing can be learned as things are: `milonga run` refuses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from milonga.config import Config
from milonga.health import FEW_SIGNALS, MOST, OFTEN_CUT, OFTEN_UNREADABLE, ONE_SIDED, explains_unreadable
from milonga.probing.figures import JudgeFigures, OutputFigures, SolverFigures
from milonga.text import format_share

BOOTSTRAP_TURNS = 10
"""Turns of bootstrap that are advised: in so many a 0.5B verifier went from 37 % to 99 % readable (docs/results)."""
OFTEN_UNSOUND = 0.2
GREEDY_GAIN = 0.15
"""Difference between greedy and sampled accuracy from which on the temperature costs too much."""
CHANCE = 0.55
"""AUROC up to which a verifier cannot tell right from wrong."""


@dataclass(frozen=True)
class Advice:
    """One sentence; `setting` is `key=value`, to be given by `--set`."""

    text: str
    setting: str | None = None
    blocking: bool = False

    def __str__(self) -> str:
        return self.text if self.setting is None else f"{self.text}: --set {self.setting}"


BY_PASS_RATE = Advice("problems can be chosen by pass rate, once before the first turn", "task.pass_rate=[0.1,0.9]")


def advise(
    solver: SolverFigures, judge: JudgeFigures | None, config: Config, bootstrapped: Collection[str] = ()
) -> list[Advice]:
    """Advise what to change before a run, what blocks it first. `bootstrapped` are the agents that a bootstrap would train."""
    found = [*_advise_on_outputs(solver, solver, config, bootstrapped), *_advise_on_solver(solver, config)]
    if judge is not None:
        found += [*_advise_on_outputs(judge, solver, config, bootstrapped), *_advise_on_judge(judge, config)]
    elif solver.unsound is not None and solver.unsound >= OFTEN_UNSOUND:
        wrong = f"{format_share(solver.unsound)} of the right answers have a wrong step"
        found.append(Advice(f"{wrong}: rewards for answers alone do not see that, the recipe tango trains a step verifier too"))
    return sorted(found, key=lambda advice: not advice.blocking)


def _advise_on_outputs(
    figures: OutputFigures, solver: SolverFigures, config: Config, bootstrapped: Collection[str]
) -> Iterator[Advice]:
    """Advise on what is cut, and on what cannot be read for another reason.

    Where nothing can be read nothing is earned. That does not block an agent that first learns from examples, which may teach
    it to write, nor a judge that does not learn: the solver still earns by its answers.
    """
    harmless = ("examples",) if figures is solver else ("examples", "nothing")
    blocking = figures.readable == 0 and figures.learns_from not in harmless
    share = figures.truncated or 0.0
    cut_at = figures.cut_at if share >= OFTEN_CUT else None
    if cut_at is not None:
        cut = f"{format_share(share)} of the {figures.agent}'s outputs were cut at {cut_at} tokens"
        if cut_at < figures.limit:
            where = f"{cut}, where its model's context ends: choose shorter problems or a model with a longer context"
            yield Advice(where, None, blocking)
        else:
            yield Advice(cut, f"sampling.max_tokens={2 * solver.limit}", blocking)
    why = cut_at is not None and figures.readable is not None and explains_unreadable(share, 1 - figures.readable)
    if figures.readable is not None and figures.readable <= 1 - OFTEN_UNREADABLE and not why:
        little = "nothing" if figures.readable == 0 else f"only {format_share(figures.readable)}"
        unread = f"{little} of what the {figures.agent} wrote can be read in the dialect '{config.dialect}'"
        if config.dialect == "tagged":
            yield Advice(f"{unread}, which only models that were trained in it speak", "dialect=plain", blocking)
        elif figures.readable and figures.agent in bootstrapped and not config.bootstrap:
            yield Advice(f"{unread}, so let it imitate what can be, before the run", f"bootstrap={BOOTSTRAP_TURNS}", blocking)
        else:
            yield Advice(f"{unread}: try another prompt (policies.{figures.policy}.prompt) or another model", None, blocking)


def _advise_on_solver(solver: SolverFigures, config: Config) -> Iterator[Advice]:
    """Advise on rewards that do not differ within a group, and on the temperature."""
    chosen = "pass_rate" in config.task  # then what the probe saw is not what the run will learn from
    can_choose = not chosen and config.options.get("levels") != "task"  # a choice among the levels is one among all problems
    if solver.signal == 0 and solver.readable:
        blocking = solver.learns_from == "outcomes" and not chosen
        if config.rewards:
            yield Advice("your reward is the same for all solutions of each problem", None, blocking)
        elif solver.accuracy == 0 and (solver.truncated or 0.0) >= MOST:
            yield Advice("no group has both outcomes: nearly all solutions were cut", None, blocking)
        elif solver.accuracy == 0:
            yield Advice(
                "no group has both outcomes, all answers are wrong: choose easier problems or a stronger model", None, blocking
            )
        elif solver.accuracy == 1:
            yield Advice("no group has both outcomes, all answers are right: choose harder problems", None, blocking)
        else:
            same = "no group has both outcomes: each problem is solved always or never"
            yield Advice(same, f"batch.rollouts={2 * config.batch.rollouts}", blocking)
            if can_choose:
                yield BY_PASS_RATE
    elif solver.signal is not None and 0 < solver.signal < FEW_SIGNALS and solver.learns_from == "outcomes":
        few = (
            f"only {format_share(solver.signal)} of the groups have both outcomes, so draw other problems in place of the rest"
        )
        yield Advice(few, f"policies.{solver.policy}.objective.dynamic_sampling=true")
        if can_choose:
            yield BY_PASS_RATE
    if solver.accuracy is not None and solver.greedy is not None and solver.greedy - solver.accuracy >= GREEDY_GAIN:
        gain = f"greedy solutions are right in {format_share(solver.greedy)}, sampled ones in {format_share(solver.accuracy)}"
        yield Advice(f"{gain}, so sample colder", f"sampling.temperature={round(0.7 * config.sampling.temperature, 2)}")


def _advise_on_judge(judge: JudgeFigures, config: Config) -> Iterator[Advice]:
    """Advise on verdicts that tell nothing about a solution."""
    warmup = config.options.get("warmup")
    longer = f"options.warmup={max(10, 2 * warmup)}" if isinstance(warmup, int) and judge.learns_from != "nothing" else None
    if judge.positive_rate is not None and not 1 - ONE_SIDED < judge.positive_rate < ONE_SIDED:
        most, side = max((judge.positive_rate, "right"), (1 - judge.positive_rate, "wrong"))
        yield Advice(
            f"the {judge.agent} calls {format_share(most)} of the solutions {side}: its verdicts tell nothing yet", longer
        )
    elif judge.auroc is not None and judge.auroc <= CHANCE:
        yield Advice(f"the {judge.agent} cannot tell right solutions from wrong ones (AUROC {judge.auroc:.2f})", longer)
