"""What the embedded base `search` is taught, and how well it has learned it.

Its solver, its proposer and its reader, by a noisy teacher, on knowledge graphs none of which is that of a run.

    python scripts/base_search.py --device cpu
"""

from __future__ import annotations

import argparse
import random
from functools import cache

from milonga.randomness import keyed_rng
from milonga.roles import Searcher, SearchProposer, SearchReader
from milonga.roles.demonstrate import Example
from milonga.systems.search_self_play.demonstrations import (
    Talk,
    demonstrate_proposal,
    demonstrate_search,
    make_reader_example,
    search_partner,
)
from milonga.tasks import Search
from milonga.tasks.search import SearchOptions
from milonga.types import Problem, Rollouts

SEARCHER, PROPOSER, READER = Searcher("terse"), SearchProposer("terse"), SearchReader("terse")
GRAPHS = 192
"""Knowledge graphs, none of them that of a run: so many that searching is easier than knowing them by heart."""
EASY_STEPS = 90
"""Steps with ways of at most two hops, before longer ones join: the skill is the same, and rows are half as long."""
NOISE = 4
"""Passages beside those that a reader needs, as in the recipe."""


def row(rng: random.Random, step: int, number: int) -> Example | Talk:
    task = graph(2 if step < EASY_STEPS else 3, rng.randrange(GRAPHS))
    problem, agent = task.problem("train", number), rng.random()
    if agent < 0.15:
        return make_reader_example(task, problem, READER, rng, 0.15, NOISE)
    if agent < 0.575:
        return demonstrate_search(task, problem, SEARCHER, rng, 0.25)
    return demonstrate_proposal(task, Problem(problem.id, problem.answer, ""), PROPOSER, rng, 0.2)


@cache
def graph(hops: int, number: int) -> Search:
    return Search(SearchOptions(seed=1000 + number, hops=hops))


def main() -> None:
    """On the graph of seed 0, by the recipe's own means: right answers of the solver for each number of hops, proposals that
    pass the gate, and answers of the reader to questions of held-out problems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded/search")
    parser.add_argument("--count", type=int, default=200, help="problems for each figure")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    from milonga.api import make_engine
    from milonga.context import Context, RunContext
    from milonga.resolve import resolve
    from milonga.systems.search_self_play.proposals import verify_by_model
    from milonga.systems.search_self_play.recipe import SearchSelfPlay

    policies = {"generator": {"model": args.model}}
    plan = resolve([{"recipe": "search_self_play", "dialect": "terse", "device": args.device, "policies": policies}])
    task, recipe = plan.task, plan.recipe
    assert isinstance(task, Search) and isinstance(recipe, SearchSelfPlay)
    ctx = Context(
        RunContext(make_engine(plan), task, plan.roles, plan.agents, plan.config.sampling, 0, 32), "eval", "", split="dev"
    )
    for hops in task.levels:
        problems = ctx.draw_problems_at([hops] * args.count)
        shares = [share_right(ctx.ask("generator", problems, greedy=greedy)) for greedy in (False, True)]
        print(f"solver, {hops} hops   sampled {shares[0]:.2f}  greedy {shares[1]:.2f}", flush=True)
    proposals = recipe.propose(ctx, ctx.problems(args.count))
    print(f"proposer          sampled {len(recipe.gate.filter_proposals(ctx, proposals)[0]) / len(proposals):.2f}", flush=True)
    for hops in task.levels:
        problems = ctx.draw_problems_at([hops] * args.count)
        read = verify_by_model(ctx, problems, [passages(task, problem) for problem in problems])
        print(f"reader, {hops} hops   sampled {sum(read) / len(read):.2f}", flush=True)


def share_right(talks: Rollouts) -> float:
    return sum(talk.correct == 1.0 for talk in talks) / len(talks)


def passages(task: Search, problem: Problem) -> list[str]:
    """What a search for each hop returns, among others."""
    assert task.graph is not None
    rng = keyed_rng("passages", problem.id)
    at, *path = problem.text.split()
    shown = rng.sample(task.graph.facts, NOISE)
    for relation in path:
        at, found = search_partner(task, at, relation, rng, 0.0)
        shown += found
    rng.shuffle(shown)
    return shown


if __name__ == "__main__":
    main()
