"""Inference with a trained pair: its generator solves problems, its verifier verifies solutions.

`Pair.open("runs/tango-…")` loads the newest intact checkpoint of a run, `Pair.bare(verifier="a/model")` models from no run.

Invariants: only the weights of the requested agents are loaded; a result depends only on the seed and the id of its problem or
solution, never on the rest of the batch; nothing is trained, and the run folder is only read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from milonga.config import is_endpoint
from milonga.context import Context, RunContext
from milonga.engine.factory import make_engine
from milonga.errors import ConfigError, DataError, RunFolderError, TooLongError
from milonga.evals.bench import rewrite_steps
from milonga.evals.evaluate import fill_unjudged, get_confidence
from milonga.evals.metrics import find_first_wrong, majority_vote, mean
from milonga.evals.verdicts import get_soft_steps, get_soft_verdict
from milonga.resolve import Plan, resolve
from milonga.roles import StepSolver, make_step_solver
from milonga.runfolder.checkpoints import Checkpoints
from milonga.runfolder.console import print_to_stderr
from milonga.runfolder.folder import read_config
from milonga.tasks.foreign import WithForeign, make_foreign_problem
from milonga.trust import check_trust
from milonga.types import Problem, Rollout, Rollouts, Verification

if TYPE_CHECKING:
    from milonga.engine import Engine

BARE_TOKENS = 1024
"""Most tokens of a solution by a model that comes from no run; a verification may have twice as many."""
AGENTS = ("generator", "verifier")


@dataclass(frozen=True)
class Finished:
    """A run with a checkpoint: its plan, and its newest intact checkpoint. The run itself need not have ended."""

    plan: Plan
    weights: Path
    turn: int

    def list_checkpoints(self) -> dict[int, Path]:
        """List the intact checkpoints of the run, by their turns."""
        return Checkpoints(self.weights.parent, 1).list_intact()


def load_finished_run(path: Path, layer: Mapping[str, Any] | None = None, trust: Collection[str] = ()) -> Finished:
    """Load the plan and newest checkpoint of a run, with `layer` merged into its config.

    The engine is always the local one, wherever the run was trained, and nothing is rewarded. What the config of a run that was
    not made here names outside its folder has to be in `trust`.
    """
    config = read_config(path)
    check_trust(path, config, trust)
    own = config.model_dump(mode="json", exclude_none=True)
    plan = resolve([own, {"engine": "local", "staleness": 0}, layer or {}], learns=False)
    found = Checkpoints(path / "checkpoints", 1).find_newest()
    if found is None:
        raise RunFolderError(f"'{path}' holds no complete checkpoint")
    return Finished(plan, found[0], found[1]["place"]["turn"])


def plan_bare_models(generator: str, verifier: str, layer: Mapping[str, Any] | None = None) -> Plan:
    """Make a plan for models that come from no run."""
    models = {"generator": {"model": generator}, "verifier": {"model": verifier}}
    bare = {"recipe": "verifier_only", "policies": models, "sampling": {"max_tokens": BARE_TOKENS}}
    return resolve([bare, layer or {}], learns=False)


def restrict_to_agents(plan: Plan, agents: Collection[str]) -> Plan:
    """Restrict a plan to the policies of these agents, so that no other weights are loaded."""
    names = {plan.agents[agent] for agent in agents}
    return replace(plan, policies={name: section for name, section in plan.policies.items() if name in names})


def check_agents(plan: Plan, agents: Collection[str]) -> None:
    """Refuse agents that the recipe of a plan does not have."""
    for agent in agents:
        if agent not in plan.roles:
            raise ConfigError(f"recipe '{plan.config.recipe}' has no {agent}; its agents are {', '.join(plan.roles)}")


def make_run_context(plan: Plan, weights: Path | None) -> RunContext:
    """Make the run context of a plan: load its engine, and the weights of a checkpoint if there is one."""
    engine = make_engine(plan.policies, plan.config, print_to_stderr)
    if weights is not None:
        engine.load(weights)
    return plan.make_run_context(engine)


@dataclass(frozen=True)
class Verdict:
    """The aggregated verdict of repeated verifications of one solution. Checks that cannot be parsed are only counted."""

    solution: Rollout
    checks: tuple[Rollout, ...]

    @property
    def values(self) -> list[Verification]:
        return [check.verification for check in self.checks]

    @property
    def readable(self) -> int:
        """How many checks end in a verdict."""
        return sum(value.final is not None for value in self.values)

    @property
    def probability(self) -> float | None:
        """Probability that the solution is right: the mean over parsed checks of their scores, or of how sure their words are.
        In prose that is the verdict on the whole, or where there is none all steps together; in other dialects all steps
        together, or where there are none the whole. So one check is not certain of what it was just as likely not to say,
        unless an endpoint does not say how likely its words were."""
        return mean([soft for value in self.values if (soft := get_soft_verdict(value)) is not None])

    @property
    def final(self) -> bool | None:
        """The final verdict: right if at least half of the parsed checks say so, or if their mean score is at least 0.5; None
        if no check can be parsed."""
        share = mean([get_confidence(value) for value in self.values if value.final is not None])
        return None if share is None else share >= 0.5

    @property
    def steps(self) -> tuple[float, ...] | None:
        """Probability that each step is right, by the checks that reach it; None if no check judges steps. Steps that no check
        reaches, because each stopped at a wrong step before, are left out."""
        return _average_by_step([get_soft_steps(value) for value in self.values])

    @property
    def step_verdicts(self) -> tuple[bool, ...] | None:
        """The verdict on each of these steps: right if at least half of the checks that reach it say so, however sure they
        were."""
        shares = _average_by_step([value.steps for value in self.values])
        return None if shares is None else tuple(share >= 0.5 for share in shares)

    @property
    def first_error(self) -> int | None:
        """The first wrong step as ProcessBench counts: from 0, -1 if there is none, None if nothing can be parsed.

        It is a majority vote of the checks. It need not be the first step that most of them judge wrong.
        """
        return majority_vote([find_first_wrong(value.steps) for value in self.values])

    @property
    def rank(self) -> float:
        """The score that orders solutions of one problem, as in evaluations: the mean rank of all checks, 0 if unparsed."""
        return mean([value.rank for value in self.values]) or 0.0


def _average_by_step(rows: Sequence[Sequence[float] | None]) -> tuple[float, ...] | None:
    """Average what checks say of each step, over those that say something of it; None if none says anything."""
    said = [row for row in rows if row is not None]
    most = max(map(len, said), default=0)
    columns = [[row[k] for row in said if k < len(row)] for k in range(most)]
    return tuple(sum(column) / len(column) for column in columns) if said else None


class Pair:
    """A generator and a verifier with their weights; either may be missing. Use it in a `with` statement, or call `close`."""

    def __init__(self, plan: Plan, weights: Path | None, agents: Collection[str], turn: int | None = None) -> None:
        check_agents(plan, agents)
        if "generator" in agents and not isinstance(plan.roles["generator"], StepSolver):
            raise ConfigError(f"the generator of recipe '{plan.config.recipe}' does not solve problems by steps")
        self.plan, self.turn = plan, turn
        self.agents = tuple(agents)
        self.run_context = replace(make_run_context(restrict_to_agents(plan, agents), weights), task=WithForeign(plan.task))
        self.solver = make_step_solver(plan.config.dialect)

    @classmethod
    def open(
        cls,
        path: str | Path,
        agents: Collection[str] | None = None,
        *,
        seed: int | None = None,
        device: str | None = None,
        temperature: float | None = None,
        sampler: str | None = None,
        max_tokens: int | None = None,
        trust: Collection[str] = (),
    ) -> Pair:
        """Open the newest intact checkpoint of a run, or a model (a folder, or `openai:URL#model`), which then is every agent.

        `agents` defaults to those of generator and verifier that the recipe has. Seed, device, temperature, sampler and
        the most tokens of a solution (a verification may have twice as many) default to the run's. `trust` names what a run
        that was not made here may use of code, hosts and variables.
        """
        name, folder, layer = str(path), Path(path), _collect_overrides(seed, device, temperature, sampler, max_tokens)
        if not (folder / "config.toml").exists() and (folder / "adapter_config.json").exists():
            raise ConfigError(
                f"'{path}' is an adapter, not a model: use the run folder that it was exported from, or export that agent "
                "merged into its base, by 'milonga export' without --adapters"
            )
        if is_endpoint(name) or (not (folder / "config.toml").exists() and (folder / "config.json").exists()):
            return cls(plan_bare_models(name, name, layer), None, AGENTS if agents is None else agents)
        found = load_finished_run(folder, layer, trust)
        return cls(found.plan, found.weights, _list_present_agents(found.plan) if agents is None else agents, found.turn)

    @classmethod
    def bare(
        cls,
        *,
        generator: str | None = None,
        verifier: str | None = None,
        seed: int | None = None,
        device: str | None = None,
        temperature: float | None = None,
        sampler: str | None = None,
        max_tokens: int | None = None,
    ) -> Pair:
        """Open models that come from no run: folders, hub names, GGUF files, `embedded`, or endpoints."""
        named = {agent: model for agent, model in zip(AGENTS, (generator, verifier), strict=True) if model is not None}
        if not named:
            raise ConfigError("a pair needs a generator or a verifier")
        other = next(iter(named.values()))
        layer = _collect_overrides(seed, device, temperature, sampler, max_tokens)
        plan = plan_bare_models(named.get("generator", other), named.get("verifier", other), layer)
        return cls(plan, None, tuple(named))

    @property
    def solves(self) -> bool:
        return "generator" in self.agents

    @property
    def judges(self) -> bool:
        return "verifier" in self.agents

    @property
    def engine(self) -> Engine:
        return self.run_context.engine

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.engine.close()

    @staticmethod
    def problem(question: str, answer: str | None = None, id: str | None = None) -> Problem:
        """Make a problem from a question; without an id, its text is the id."""
        return make_foreign_problem(id or question, question, answer)

    def solve(self, problems: Sequence[Problem], n: int = 1, greedy: bool = False) -> Rollouts:
        """Sample `n` solutions of each problem in one batch, grouped by problem, and graded if an answer is known.

        Problems that do not fit into the model's context get none; the others are not affected.
        """
        _check_distinct_ids("problem", [problem.id for problem in problems])
        try:
            return Context(self.run_context, "use", "").ask("generator", problems, n, greedy)
        except TooLongError:
            return Rollouts([])

    def verify(self, solutions: Sequence[Rollout] | Rollouts, checks: int = 1, greedy: bool = False) -> list[Verdict]:
        """Verify each solution `checks` times in one batch; return one verdict per solution.

        A scorer is asked once: it is deterministic. If a solution does not fit into the model's context, all its checks
        count as unparsed.
        """
        _check_distinct_ids("solution", [solution.id for solution in solutions])
        targets = Rollouts(solutions)
        try:
            judged = Context(self.run_context, "use", "").judge("verifier", targets, checks, greedy)
        except TooLongError:
            judged = Rollouts([])
        found: dict[str, list[Rollout]] = {}
        for check in fill_unjudged(judged, targets, checks):
            found.setdefault(check.target.id, []).append(check)
        return [Verdict(solution, tuple(found[solution.id])) for solution in targets]

    def wrap_solution(
        self, problem: Problem, steps: Sequence[str], answer: str | None = None, id: str | None = None
    ) -> Rollout:
        """Convert somebody else's solution into a rollout in this pair's dialect, to be verified.

        Without an answer, the last box of the last step is taken; where there is none, none is shown. In the terse dialect the
        last number of the last step is its result.
        """
        rollout = rewrite_steps(self.solver, id or problem.id, problem, steps, answer)
        if rollout is None:
            raise DataError(f"the steps of a solution hold marks of the {self.solver.dialect} dialect")
        return rollout


def _collect_overrides(
    seed: int | None, device: str | None, temperature: float | None, sampler: str | None, max_tokens: int | None
) -> dict[str, Any]:
    """Collect the config overrides that the user of a pair gave; None means not given."""
    known = {"seed": seed, "device": device}
    sampling = {"temperature": temperature, "sampler": sampler, "max_tokens": max_tokens}
    return _drop_none(known) | ({"sampling": _drop_none(sampling)} if _drop_none(sampling) else {})


def _drop_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def _list_present_agents(plan: Plan) -> tuple[str, ...]:
    return tuple(agent for agent in AGENTS if agent in plan.roles)


def _check_distinct_ids(what: str, ids: Sequence[str]) -> None:
    """Check that ids are distinct: they seed the sampling, and identify the results."""
    if len(set(ids)) != len(ids):
        raise ValueError(f"two {what}s have the same id")
