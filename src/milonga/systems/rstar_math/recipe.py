"""rStar-Math (arXiv 2501.04519): a policy and a process preference model improve each other by tree search, in rounds.

In each round the policy searches trees of checked steps, and the answers at their ends give a value to each step. Steps with
high values are preferred to siblings with low ones, and the preference model is trained on these pairs from scratch. The policy
is trained on the best solutions, from its start again. From the third round on the preference model guides the search.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from milonga.context import Context
from milonga.credit import select_best_solutions, term_weights
from milonga.errors import ConfigError
from milonga.evals.metrics import mean
from milonga.patterns.preference_pairs import make_pair_batch, record_pairs
from milonga.recipe import ALLOWED, Recipe, Refused
from milonga.roles import Dialect, ProgramSolver, Role, StepScorer
from milonga.roles.scorer import Aggregate
from milonga.schedule import Action, Phase, Schedule
from milonga.systems.rstar_math.data import Harvest, corrupt_keys, harvest_tree, is_held_out, make_pair_rows, make_value_rows
from milonga.systems.rstar_math.search import Search, SearchOptions, make_roots, run_simulations, score_nodes, select_end
from milonga.systems.rstar_math.trees import iterate_paths
from milonga.tasks.base import ANSWERS
from milonga.tasks.code_python import PythonRunner
from milonga.types import Rollouts, TrainBatch


class RstarMathOptions(SearchOptions):
    steps: Literal["code", "text"] | None = None
    """code: a step is a comment with Python under it, and is run. text: a paragraph. None: code in the plain dialect, text in
    the others."""
    searches: int = Field(4, ge=1)
    """Turns of search in a round, each over batch.problems new problems; then both learn, once. N turns are N rounds."""
    more: int = Field(0, ge=0)
    """Further walks where none has arrived at the right answer."""
    more_from: int | None = Field(None, ge=1)
    """Round from which on there are such walks; None: as `guided`."""
    top: int = Field(2, ge=1)
    """Right solutions of a problem that the policy learns."""
    pick: Literal["q", "random"] = "q"
    """Which: those with the highest mean Q of their steps (the lowest Q decides among equals), or any."""
    solved_min: float = Field(0.0, ge=0, le=1)
    """Least share of right ones among a problem's solutions; the paper has 0.5 where the answer key is doubtful."""
    margin: float = Field(0.5, ge=0)
    """Least difference of Q between the two steps of a pair."""
    edits: int = Field(20, ge=1)
    """Least number of characters in which they differ; 1 for embedded models, whose steps are shorter than 20."""
    guided: int = Field(3, ge=1)
    """The first round in which the preference model gives each new step its first visit."""
    min_accuracy: float = Field(0.65, ge=0, le=1)
    """Least accuracy on held-out pairs without which it does not."""
    restart: Literal["base", "continue"] = "base"
    """Where the preference model of a round starts; the policy always starts from the base model."""
    aggregate: Aggregate = "min"
    """How a solution's score follows from those of its steps. A model of outcomes (value_bce) is asked at the end alone."""
    wrong_keys: float = Field(0.0, ge=0, le=1)
    """Share of the problems searched whose answer key is another problem's, to see what that does."""
    vote: int = Field(1, ge=1)
    """Ends of the highest values that vote on the answer of such a search; the paper has 4 to 8, of 64 searches."""
    measured: int = Field(32, ge=1)
    """Held-out problems that are searched without their answers at every evaluation."""


class RstarMath(Recipe):
    """Tree search, preferences among sibling steps, both models anew in rounds (rStar-Math, arXiv 2501.04519)."""

    name = "rstar_math"
    granularity = "step"
    truth = "answers"
    needs = {ANSWERS}
    agents = {"generator": ProgramSolver, "verifier": StepScorer}
    lead = "generator"
    overlap = Refused("its search is guided by scores, and its rounds build on those before")
    bindings = {
        "own": ALLOWED,
        "lora": ALLOWED,
        "shared": Refused("the preference model has a value head, and both start anew each round on different data"),
    }
    learns = {"generator": ("cross_entropy",), "verifier": ("bradley_terry", "value_mse", "value_bce")}
    measures = ("search/accuracy", "search/reached")
    defaults = {
        "policies": {
            "generator": {"objective": {"preset": "cross_entropy"}, "lr": 1e-5, "epochs": 2, "minibatches": 4},
            "verifier": {"objective": {"preset": "bradley_terry"}, "lr": 1e-5, "minibatches": 8},
        },
        "batch": {"rollouts": 16},
    }
    embedded_defaults = {"policies": {"generator": {"lr": 2e-4}, "verifier": {"lr": 2e-4}}, "options": {"edits": 1}}
    published = {
        "turns": 4,
        "batch": {"rollouts": 48},
        "policies": {"generator": {"lr": 7e-6, "epochs": 2}, "verifier": {"lr": 7e-6, "epochs": 1}},
        "options": {"steps": "code", "candidates": 12, "more": 64, "more_from": 4, "min_accuracy": 0.0, "vote": 8},
    }
    Options = RstarMathOptions
    options: RstarMathOptions

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.state = {"round": 1, "searched": [], "learned": False, "accuracy": 0.0}

    @property
    def is_outcome_model(self) -> bool:
        """Whether the verifier is an outcome model: its loss is on the whole solution alone."""
        return self.objectives["verifier"].loss.kind == "value_bce"

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        o = self.options
        if o.steps == "code" and dialect != "plain":
            raise ConfigError(f"options.steps = 'code' is for the plain dialect, not for '{dialect}'; set it to 'text'")
        runs = dialect == "plain" and o.steps != "text"
        solver = ProgramSolver(dialect, PythonRunner(allow_weak=o.allow_weak_isolation) if runs else None)
        verifier = StepScorer(dialect, "last" if self.is_outcome_model else o.aggregate)
        verifier.solver = solver
        return {"generator": solver, "verifier": verifier}

    def schedule(self) -> Schedule:
        """Search, then train both. What the search found stays in the state until then: a round resumes at any of its turns."""
        anew = {agent: (Action("reset", policy),) for agent, policy in self.policies.items()}
        search = Phase("verifier", self.options.searches, name="search")
        model = Phase("verifier", 1, enter=anew["verifier"] if self.options.restart == "base" else (), name="learn")
        return Schedule((), (search, model, Phase("generator", 1, enter=anew["generator"])))

    def rollout(self, ctx: Context) -> Rollouts:
        if ctx.phase == "search":
            return self.search(ctx)
        return Rollouts([]) if ctx.learner == "verifier" else self.write_solutions(ctx)

    def credit(self, ctx: Context, rollouts: Rollouts) -> Iterator[TrainBatch]:
        if ctx.phase == "search":
            return
        if ctx.learner == "generator":
            if len(rollouts):
                yield self.credit_policy(ctx, rollouts)
            self.state["learned"] = True
            return
        is_ranked = self.objectives["verifier"].loss.kind == "bradley_terry"
        train_batch = self.credit_pairs(ctx) if is_ranked else self.credit_values(ctx)
        if len(train_batch.rollouts):
            yield train_batch
        self.state["accuracy"] = self.held_out_accuracy(ctx)

    def search(self, ctx: Context) -> Rollouts:
        """Search trees over new problems and keep what both models will learn from. Returns the solutions that were reached."""
        o, state = self.options, self.state
        if state["learned"]:
            state |= {"round": state["round"] + 1, "searched": [], "learned": False}
        first, problems = ctx.start + ctx.drawn, ctx.problems()
        places = {problem.id: first + number for number, problem in enumerate(problems)}
        search = self.make_search(ctx, guided=state["round"] >= o.guided and state["accuracy"] >= o.min_accuracy)
        roots = make_roots(ctx, corrupt_keys(ctx, problems, o.wrong_keys))
        run_simulations(ctx, roots, self.group_size, search)
        if o.more and state["round"] >= (o.more_from or o.guided):
            run_simulations(ctx, [root for root in roots if not root.rights], o.more, search)
        trees = [harvest_tree(root, places[root.rollout.problem.id], o.margin, o.edits) for root in roots]
        state["searched"] = state["searched"] + trees
        return Rollouts(way[-1].rollout for root in roots for way in iterate_paths(root))

    def make_search(self, ctx: Context, guided: bool, blind: bool = False) -> Search:
        """Make the search settings. An outcome model gives no value to an unfinished solution, and so cannot guide."""
        guided = guided and not self.is_outcome_model
        values = (lambda nodes: score_nodes(ctx, nodes)) if guided or blind else None
        return Search(self.options, values, guided, blind)

    def write_solutions(self, ctx: Context) -> Rollouts:
        """Write all solutions that the round's searches reached as rollouts of the policy."""
        draw, searched = ctx.task.draw_problems, self.state["searched"]
        found = [(draw(ctx.split, tree["index"], 1)[0], text) for tree in searched for text, _, _ in tree["solutions"]]
        return ctx.write("generator", [problem for problem, _ in found], [text for _, text in found])

    def credit_policy(self, ctx: Context, solutions: Rollouts) -> TrainBatch:
        """Cross-entropy on the best right solutions of each problem; the others weigh nothing."""
        trees, o = self.state["searched"], self.options
        rng = ctx.rng("pick") if o.pick == "random" else None
        chosen_of = {t["problem"]: select_best_solutions(t["solutions"], o.top, o.solved_min, rng) for t in trees}
        chosen = [float(t.text in chosen_of[t.problem.id]) for t in solutions]
        weights = term_weights(["best"] * len(solutions), {"best": 1.0}, chosen, [float(t.length) for t in solutions])
        solved = [any(right for _, right, _ in tree["solutions"]) for tree in trees]
        notes = {"solved": mean(solved) or 0.0, "chosen": sum(chosen), "round": float(self.state["round"])}
        return self.train_batch("generator", solutions, weights=weights, sources={"answers": 1.0}, notes=notes)

    def credit_pairs(self, ctx: Context) -> TrainBatch:
        """-log sigmoid(v(winner) - v(loser)) at the last token of the step, divided by the sum of the weights."""
        rows, weights, reasons = make_pair_rows(ctx, self.select_trees(held_out=False))
        pairs = list(zip(reasons, rows[::2], rows[1::2], strict=True))
        record_pairs(ctx, pairs)
        shares, notes = term_weights(["pairs"] * len(rows), {"pairs": 1.0}, weights), {"pairs": float(len(pairs))}
        return make_pair_batch(self, "verifier", pairs, weights=shares, sources={"answers": 1.0}, notes=notes)

    def credit_values(self, ctx: Context) -> TrainBatch:
        """Make a train batch for comparison: targets are the Q of each step (value_mse), or the answer alone (value_bce)."""
        rows, targets = make_value_rows(ctx, self.select_trees(held_out=False), self.is_outcome_model)
        return self.train_batch(
            "verifier", rows, targets=targets, sources={"answers": 1.0}, notes={"solutions": float(len(rows))}
        )

    def select_trees(self, held_out: bool) -> list[Harvest]:
        """Select the searched trees of held-out problems, or the others."""
        return [tree for tree in self.state["searched"] if is_held_out(tree) == held_out]

    def held_out_accuracy(self, ctx: Context) -> float:
        """Return the pair accuracy of the model just trained, on problems that it has not learned from; 0 if there are none."""
        rows, _, _ = make_pair_rows(ctx, self.select_trees(held_out=True))
        last = [float(numbers[-1]) for numbers in ctx.score_tokens("verifier", rows)]
        return mean([float(won > lost) for won, lost in zip(last[::2], last[1::2], strict=True)]) or 0.0

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Search held-out problems without answers: how often the end that is selected is right, and how often any end is."""
        roots = make_roots(ctx, ctx.problems(self.options.measured))
        run_simulations(ctx, roots, self.group_size, self.make_search(ctx, guided=True, blind=True))
        ends = [select_end(ctx.task, root, self.options.vote) for root in roots]
        return {
            "search/accuracy": mean([float(end is not None and end.right) for end in ends]),
            "search/reached": mean([float(root.rights > 0) for root in roots]),
        }
