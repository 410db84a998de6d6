"""rStar-Math: the order of UCT, Q with a first opinion, pairs of a tree drawn by hand, the search, and its rounds."""

from __future__ import annotations

import json
import math
import random
import shutil
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import milonga
from cases import FAST, TINY
from helpers import GRAMMARS, PROPERTY, make_rollout
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit import select_best_solutions
from milonga.patterns.value_head import Labelled
from milonga.resolve import Plan, resolve
from milonga.roles import Dialect, ProgramSolver, StepScorer, StepSolver
from milonga.runfolder.files import JsonLines
from milonga.systems.rstar_math.data import corrupt_keys, harvest_tree, is_held_out, make_pair_rows, make_value_rows
from milonga.systems.rstar_math.recipe import RstarMath
from milonga.systems.rstar_math.search import (
    Search,
    SearchOptions,
    expand_nodes,
    make_roots,
    run_simulations,
    score_nodes,
    select_end,
)
from milonga.systems.rstar_math.trees import (
    Node,
    backpropagate,
    collect_step_pairs,
    iterate_paths,
    path_mean_values,
    select_child,
    uct,
)
from milonga.text import edit_distance
from milonga.types import Problem, Rollout, Rollouts, TrainBatch


def node(step: str, *children: Node, end: float | None = None) -> Node:
    made = Node(make_rollout(1, 1), step, end=end, right=end == 1.0)
    made.children = list(children) or None
    return made


def walk(*path: Node) -> None:
    """One simulation along these nodes, to an end."""
    backpropagate(path, path[-1].end or 0.0, path[-1].right)


# Which step to try.


def first_tries(untried: float, rollouts: int) -> list[int]:
    """The simulations in which each of six hopeless arms is tried for the first time."""
    root = node("", *(node(str(i), end=-1.0) for i in range(6)))
    rng, found = random.Random(0), []
    for number in range(1, rollouts + 1):
        child = select_child(root, 2.0, untried, rng)
        found += [] if child.visits else [number]
        walk(root, child)
    return found


def test_all_arms_are_tried_before_any_is_tried_again() -> None:
    assert first_tries(math.inf, 6) == [1, 2, 3, 4, 5, 6]


def test_the_trap_of_the_public_code_untried_arms_score_zero() -> None:
    """-1 + 2 sqrt(ln 2) = 0.67 > 0: what has failed comes before what was never tried, and the third arm waits until 29."""
    failed = node("x", end=-1.0)
    walk(failed)
    assert uct(failed, 2, 2.0) == pytest.approx(-1 + 2 * math.sqrt(math.log(2))) and uct(failed, 2, 2.0) > 0.66
    assert first_tries(0.0, 29)[:3] == [1, 2, 29]


def test_ties_are_broken_by_the_random_source_and_the_same_way_each_time() -> None:
    chosen = []
    for seed in range(40):
        root = node("", *(node(str(i), end=0.0) for i in range(3)))
        steps = [select_child(root, 2.0, math.inf, random.Random(seed)).step for _ in range(2)]
        assert steps[0] == steps[1]
        chosen.append(steps[0])
    assert set(chosen) == {"0", "1", "2"}


# What a step is worth.


def test_a_first_opinion_counts_as_one_visit() -> None:
    """PPM 0.4, then terminals +1 and -1: Q = 0.4 / 3."""
    step = node("s")
    step.add_prior_visit(0.4)
    assert step.q == 0.4 and not step.is_simulated
    backpropagate([step], 1.0, True)
    backpropagate([step], -1.0, False)
    assert step.q == pytest.approx(0.4 / 3) and (step.rights, step.wrongs) == (1, 1)


@PROPERTY
@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_without_an_opinion_q_is_the_mean_of_the_ends(ends: list[bool]) -> None:
    root, right, wrong = node(""), node("r", end=1.0), node("w", end=-1.0)
    for good in ends:
        walk(root, right if good else wrong)
    assert root.q == pytest.approx(np.mean([1 if good else -1 for good in ends]))
    assert root.visits == len(ends) == root.rights + root.wrongs


# Pairs.


def drawn() -> tuple[Node, dict[str, Node]]:
    """Three levels. a: two right ends and a wrong one; b: a wrong one and a right one; c: a wrong one; d: never tried."""
    ends = {name: node(name, end=value) for name, value in {"a1": 1.0, "a2": -1.0, "b1": -1.0, "b2": 1.0, "c1": -1.0}.items()}
    steps = {
        "a": node("a", ends["a1"], ends["a2"]),
        "b": node("b", ends["b1"], ends["b2"]),
        "c": node("c", ends["c1"]),
        "d": node("d"),
    }
    root = node("", *steps.values())
    for step, end in (("a", "a1"), ("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2"), ("c", "c1")):
        walk(root, steps[step], ends[end])
    return root, steps | ends


def names(root: Node, **settings: Any) -> list[tuple[str, str, float]]:
    return [(pair.winner.step, pair.loser.step, pair.weight) for pair in collect_step_pairs(root, **settings)]


def test_the_pairs_of_a_tree_drawn_by_hand() -> None:
    root, all_nodes = drawn()
    assert [all_nodes[name].q for name in "abc"] == pytest.approx([1 / 3, 0.0, -1.0])
    # Winners are a and b, losers c and b: the two lowest that led to a wrong end. b does not lose against itself.
    assert names(root, margin=0.0) == [
        ("a", "c", pytest.approx(1 / 3)),
        ("a", "b", pytest.approx(1 / 3)),
        ("b", "c", pytest.approx(1 / 3)),
        ("a1", "a2", 1.0),
        ("b2", "b1", 1.0),
    ]
    # Counted after the filter: two of the root's three pairs are far enough apart, and each weighs a half.
    assert names(root, margin=0.5)[:2] == [("a", "c", 0.5), ("b", "c", 0.5)]
    assert names(root, margin=1.5) == [("a1", "a2", 1.0), ("b2", "b1", 1.0)]
    assert names(root, margin=0.0, edits=2) == []
    assert collect_step_pairs(root)[0].reason == "Q +0.33 against -1.00"


def test_a_single_winner_meets_up_to_four_losers() -> None:
    good, bad = node("good", end=1.0), [node(f"bad{i}", end=-1.0) for i in range(6)]
    root = node("", good, *bad)
    for child in (good, *bad):
        walk(root, child)
    assert [pair[1] for pair in names(root)] == ["bad0", "bad1", "bad2", "bad3"]
    assert sum(weight for _, _, weight in names(root)) == pytest.approx(1.0)


def test_two_winners_meet_two_losers_at_most() -> None:
    goods, bads = [node(f"good{i}", end=1.0) for i in range(3)], [node(f"bad{i}", end=-1.0) for i in range(3)]
    root = node("", *goods, *bads)
    for child in (*goods, *bads):
        walk(root, child)
    assert len(names(root)) == 4 and {weight for _, _, weight in names(root)} == {0.25}


def test_the_best_continuation_of_a_winner_must_beat_the_worst_of_a_loser() -> None:
    root, all_nodes = drawn()
    assert path_mean_values(all_nodes["a"]) == pytest.approx([(1 / 3 + 1) / 2, (1 / 3 - 1) / 2])
    assert [[step.step for step in way] for way in iterate_paths(all_nodes["b"])] == [["b", "b1"], ["b", "b2"]]
    all_nodes["a1"].total = all_nodes["a2"].total = -50.0  # nothing good follows a any more, whatever its own q says
    assert not any(winner == "a" for winner, _, _ in names(root, margin=0.0))


@PROPERTY
@given(st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_edit_distance(left: str, right: str) -> None:
    found = edit_distance(left, right)
    assert found == edit_distance(right, left) and (found == 0) == (left == right)
    assert abs(len(left) - len(right)) <= found <= max(len(left), len(right))


def test_edit_distance_by_hand() -> None:
    assert edit_distance("kitten", "sitting") == 3 and edit_distance("", "abc") == 3


# The search, with the embedded model.


@cache
def engine() -> Any:
    return make_engine(plan())


def plan(**settings: Any) -> Plan:
    return resolve([{"recipe": "rstar_math"}, TINY, settings])


def ctx(p: Plan, phase: str = "search", turn: int = 1, learner: str = "verifier") -> Context:
    sampling, seed, problems = p.config.sampling, p.config.seed, p.config.batch.problems
    return Context(RunContext(engine(), p.task, p.roles, p.agents, sampling, seed, problems), turn, learner, phase)


def search(candidates: int, values: Any = None, guided: bool = False, blind: bool = False, **options: Any) -> Search:
    return Search(SearchOptions(candidates=candidates, **options), values, guided, blind)


def trees(how: Search, simulations: int = 6, problems: int = 4) -> list[Node]:
    one = ctx(plan())
    roots = make_roots(one, one.problems(problems))
    run_simulations(one, roots, simulations, how)
    return roots


def nodes(root: Node) -> list[Node]:
    return [root, *(below for child in root.children or () for below in nodes(child))]


def test_a_step_is_what_a_node_adds_and_it_is_never_encoded_again() -> None:
    for root in trees(search(4, check=False)):
        assert root.visits == 6 == root.rights + root.wrongs
        for parent in nodes(root):
            for child in parent.children or ():
                assert child.rollout.text == parent.rollout.text + child.step
                start = child.rollout.segments[-1].start
                kept = parent.rollout.ids[:start] if parent.depth else root.rollout.ids[: root.rollout.segments[-1].start]
                assert np.array_equal(child.rollout.ids[:start], kept)
                assert child.depth == len(child.rollout.steps) and (child.end is None) == child.step.endswith("\n")
                assert not child.rollout.mask[:start].any()
            steps = [child.step for child in parent.children or ()]
            assert len(set(steps)) == len(steps) <= 4


@pytest.mark.parametrize("dialect", GRAMMARS)
def test_a_solution_cut_where_a_step_ends_reads_as_its_first_steps(dialect: Dialect) -> None:
    solver = StepSolver(dialect)
    text, (mark,) = solver.write(["3+4=7", "7*5=35"], "35"), solver.step_stop
    cuts = [at + len(mark) for at in range(len(text)) if text.startswith(mark, at)]
    assert [solver.parse(text[:cut]).value.steps for cut in cuts] == [("3+4=7",), ("3+4=7", "7*5=35")]
    for cut in cuts:
        value = solver.parse(text[:cut]).value
        assert value.answer is None and value.ends[-1] == cut
    with pytest.raises(TypeError, match="have no steps"):
        _ = StepScorer(dialect).step_stop


def test_only_steps_that_compute_what_they_say_survive() -> None:
    task = ctx(plan()).run.task
    assert task.is_computation_right("37+5=42") and task.is_computation_right("42*3=26")
    assert (
        not task.is_computation_right("37+5=41")
        and not task.is_computation_right("37+5=")
        and not task.is_computation_right("error")
    )
    free, checked = (
        [n.step.strip() for root in trees(search(6, check=check), problems=8) for n in nodes(root) if n.step.endswith("\n")]
        for check in (False, True)
    )
    assert all(task.is_computation_right(step) for step in checked) and not all(
        task.is_computation_right(step) for step in free
    )


def test_a_search_is_one_batch_for_all_nodes_of_a_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    sample = engine().sample
    monkeypatch.setattr(
        engine(), "sample", lambda policy, requests, *more: calls.append(len(requests)) or sample(policy, requests, *more)
    )
    trees(search(3, check=False), simulations=1, problems=5)
    asked = [count for count in calls if count]
    assert asked[0] == 15 and len(asked) <= plan().task.options.ops + 2


def test_the_same_search_gives_the_same_trees_and_more_walks_go_on_in_them() -> None:
    first, second = trees(search(4)), trees(search(4))
    assert [harvest_tree(root, 0, 0.0, 1) for root in first] == [harvest_tree(root, 0, 0.0, 1) for root in second]
    one = ctx(plan())
    roots = make_roots(one, one.problems(2))
    run_simulations(one, roots, 3, search(4))
    before = [len(nodes(root)) for root in roots]
    run_simulations(one, roots, 5, search(4))
    assert [root.visits for root in roots] == [8, 8] and all(len(nodes(r)) >= b for r, b in zip(roots, before, strict=True))


def test_further_walks_begin_in_the_round_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the paper the preference model guides from the third round on, and the fourth walks on where nothing was solved."""
    calls: list[int] = []

    def watch(one: Context, roots: list[Node], simulations: int, how: Search) -> None:
        calls.append(simulations)
        run_simulations(one, roots, simulations, how)

    monkeypatch.setattr("milonga.systems.rstar_math.recipe.run_simulations", watch)
    options = {"candidates": 2, "more": 1, "min_accuracy": 1.0}
    for more, began in (({"more_from": 4}, 4), ({}, 3)):
        p = plan(batch={"problems": 2, "rollouts": 2}, options=options | more)
        for number in (2, 3, 4):
            calls.clear()
            p.recipe.state["round"] = number
            p.recipe.rollout(ctx(p))
            assert calls == ([2, 1] if number >= began else [2])


@pytest.mark.parametrize("blame", [True, False])
def test_dead_ends_count_as_wrong_for_all_that_led_there_unless_told_otherwise(blame: bool) -> None:
    for root in trees(search(3, depth=1, check=False, blame=blame), simulations=4):
        dead = [n for n in nodes(root) if n.depth == 1 and n.children is None and n.is_simulated]
        assert dead and all(n.end == -1.0 and not n.right for n in dead)
        assert root.wrongs == (4 if blame else 0)
        assert [way[-1] for way in iterate_paths(root) if way[-1].rollout.parsed.value.answer is not None] == []


def test_an_opinion_seeds_every_new_step_and_blind_ends_are_worth_what_it_says() -> None:
    def opinion(found: Any) -> list[float]:
        return [0.5 if n.end is None else 0.25 for n in found]

    for root in trees(search(4, values=opinion, guided=True, blind=True)):
        for n in nodes(root)[1:]:
            walks = n.rights + n.wrongs
            assert n.visits == 1 + walks
            if n.end is not None and n.rollout.parsed.value.answer is not None:
                assert n.end == 0.25 and n.q == pytest.approx(0.25)
        best = select_end(plan().task, root)
        assert best is None or best.end == 0.25


def test_the_verifier_scores_ends_by_all_steps_and_others_by_the_newest() -> None:
    p = plan()
    one = ctx(p)
    roots = make_roots(one, one.problems(2))
    expand_nodes(one, roots, search(3, check=False))
    found = [child for root in roots for child in root.children or ()]
    assert score_nodes(one, found) == pytest.approx([0.0] * len(found))  # a head that has learned nothing says one half
    assert score_nodes(one, []) == []


# Rounds.


def searched(p: Plan) -> tuple[RstarMath, Rollouts]:
    assert isinstance(p.recipe, RstarMath)
    rollouts = p.recipe.rollout(ctx(p))
    assert list(p.recipe.credit(ctx(p), rollouts)) == []
    return p.recipe, rollouts


def train_batches(p: Plan, phase: str, learner: str) -> list[TrainBatch]:
    one = ctx(p, phase, 2, learner)
    return list(p.recipe.credit(one, p.recipe.rollout(one)))


MANY = {"batch": {"problems": 12, "rollouts": 8}, "options": {"check": False, "candidates": 4}}


def test_the_policy_learns_the_two_best_right_solutions_of_each_problem() -> None:
    p = plan(**MANY)
    recipe, _ = searched(p)
    (train_batch,) = train_batches(p, "", "generator")
    assert train_batch.weights is not None and len(train_batch.rollouts) == sum(
        len(t["solutions"]) for t in recipe.state["searched"]
    )
    weighed = list(zip(train_batch.rollouts, train_batch.weights, strict=True))
    assert all(t.correct == 1.0 for t, weight in weighed if weight)
    for tree in recipe.state["searched"]:
        right = sorted(((np.mean(qs), min(qs)) for _, good, qs in tree["solutions"] if good), reverse=True)
        values = {text: (np.mean(qs), min(qs)) for text, _, qs in tree["solutions"]}
        own = [values[t.text] for t, weight in weighed if weight and t.problem.id == tree["problem"]]
        assert sorted(own, reverse=True) == right[:2]
    # Divided by the tokens of the chosen alone.
    total = sum(t.length for t in train_batch.rollouts)
    assert sum(weight * t.length for t, weight in weighed) == pytest.approx(total)
    assert 0 < train_batch.notes["solved"] <= 1 and train_batch.notes["round"] == 1


def test_problems_whose_key_is_doubtful_are_left_out_and_any_right_solution_may_be_picked() -> None:
    found = [("a", True, [0.2, 1.0]), ("b", True, [1.0, 1.0]), ("c", False, [-1.0])]
    assert select_best_solutions(found, 2, 0.0) == ["b", "a"] and select_best_solutions(found, 1, 0.0) == ["b"]
    assert select_best_solutions(found, 2, 0.6) == ["b", "a"] and select_best_solutions(found, 2, 0.7) == []
    assert {select_best_solutions(found, 1, 0.0, random.Random(seed))[0] for seed in range(20)} == {"a", "b"}


def test_pairs_end_with_the_step_they_are_about_and_those_of_a_node_weigh_one() -> None:
    p = plan(**MANY)
    recipe, _ = searched(p)
    (train_batch,) = train_batches(p, "learn", "verifier")
    assert train_batch.weights is not None and train_batch.labels is not None
    kept = [t for t in recipe.state["searched"] if not is_held_out(t)]
    assert all(set(t) == {"index", "problem", "text", "solutions", "pairs"} for t in kept)
    count = sum(len(t["pairs"]) for t in kept)
    assert len(train_batch.rollouts) == 2 * count > 4 and train_batch.labels == [1.0, 0.0] * count
    rows, weights, whys = make_pair_rows(ctx(p), [*kept, *kept])
    assert len(rows) == 2 * count and len(whys) == count  # a pair that comes again is one
    assert sum(train_batch.weights) == pytest.approx(len(train_batch.rollouts))
    assert np.array(train_batch.weights) / train_batch.weights[0] == pytest.approx(np.array(weights) / weights[0])
    for winner, loser in zip(train_batch.rollouts[::2], train_batch.rollouts[1::2], strict=True):
        assert winner.problem.id == loser.problem.id
        for row in (winner, loser):
            # A step's last token is the row's last; only an answer has an end.
            assert row.parsed.value.answer is not None or row.steps[-1][1] == len(row.ids)
    assert all(why.startswith("Q ") for tree in recipe.state["searched"] for *_, why in tree["pairs"])
    assert "accuracy" in recipe.state and 0.0 <= recipe.state["accuracy"] <= 1.0


@pytest.mark.parametrize("preset", ["value_mse", "value_bce"])
def test_the_other_scorers_learn_the_q_of_each_step_or_the_answer_alone(preset: str) -> None:
    p = plan(**MANY, policies={"verifier": {"objective": {"preset": preset}}})
    recipe, _ = searched(p)
    (train_batch,) = train_batches(p, "learn", "verifier")
    assert train_batch.targets is not None
    found = {(t["problem"], s[0]): s for t in recipe.state["searched"] for s in t["solutions"]}
    for row, targets in zip(train_batch.rollouts, train_batch.targets, strict=True):
        _, right, qs = found[row.problem.id, row.text]
        asked = targets[~np.isnan(targets)]
        expected = [float(right)] if preset == "value_bce" else [(q + 1) / 2 for q in qs]
        assert asked == pytest.approx(expected)
    assert p.roles["verifier"].aggregate == ("last" if preset == "value_bce" else "min")  # type: ignore[attr-defined]


def test_the_q_of_a_node_stands_at_each_of_its_steps_after_the_prompt_that_was_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first node has two steps, since a line of spaces parts paragraphs and stops no sample."""
    problem, solver = Problem("p", "How many?", "9", {"form": "open", "worked": "no"}), ProgramSolver("plain")
    texts = ["", "One.\n \nTwo.\n\n", "One.\n \nTwo.\n\nThree.\n\n", "One.\n \nTwo.\n\nThree.\n\nSo \\boxed{9}."]
    path = [Node(Rollout.from_text(text, "generator", problem, text, solver.parse(text)), text) for text in texts]
    for parent, child, depth, q in zip(path, path[1:], (2, 3, 3), (-0.5, 0.0, 1.0), strict=False):
        parent.children, child.depth, child.visits, child.total, child.rights = [child], depth, 1, q, 1
    path[-1].end = 1.0
    tree = json.loads(json.dumps(harvest_tree(path[0], 0, 0.5, 1)))
    assert tree["spans"] == [[2, 1]] and tree["form"] == "open" and "worked" not in tree
    monkeypatch.setattr("milonga.systems.rstar_math.data.build_value_rows", lambda _, labelled: labelled)
    one: Any = SimpleNamespace(role=lambda _: solver)
    (row,) = make_value_rows(one, [tree], of_outcomes=False)
    assert isinstance(row, Labelled) and row.steps == [0.25, 0.25, 0.5, 1.0] and row.end == 1.0
    assert solver.prompt(row.solution.problem) == solver.prompt(problem)


def test_the_preference_model_guides_only_when_it_is_time_and_it_is_good_enough() -> None:
    recipe = plan().recipe
    assert isinstance(recipe, RstarMath)
    one = ctx(plan())
    assert recipe.make_search(one, guided=False).values is None and recipe.make_search(one, guided=True).guided
    outcomes = plan(policies={"verifier": {"objective": {"preset": "value_bce"}}}).recipe
    assert isinstance(outcomes, RstarMath)
    blind = outcomes.make_search(one, guided=True, blind=True)
    assert not blind.guided and blind.blind and blind.values is not None


@pytest.mark.parametrize(("number", "accuracy", "guided"), [(2, 0.9, False), (3, 0.6, False), (3, 0.7, True)])
def test_rounds_and_accuracy_decide_who_guides(
    number: int, accuracy: float, guided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = plan()
    assert isinstance(p.recipe, RstarMath)
    seen: list[bool] = []
    how = p.recipe.make_search
    monkeypatch.setattr(p.recipe, "make_search", lambda t, guided: seen.append(guided) or how(t, guided))
    p.recipe.state |= {"round": number, "accuracy": accuracy}
    p.recipe.rollout(ctx(p))
    assert seen == [guided]


def test_wrong_keys_are_as_many_as_asked_for_and_the_task_still_knows_the_truth() -> None:
    p = plan(batch={"problems": 400})
    one = ctx(p)
    problems = one.problems()
    wrong = [a.answer != b.answer for a, b in zip(problems, corrupt_keys(one, problems, 0.2), strict=True)]
    assert 0.12 < np.mean(wrong) < 0.28 and corrupt_keys(one, problems, 0.0) == problems


def test_a_round_is_searches_then_both_learn_and_both_start_anew() -> None:
    schedule = plan(options={"searches": 3}).recipe.schedule()
    assert [(phase.learner, phase.turns, phase.name) for phase in schedule.cycle] == [
        ("verifier", 3, "search"),
        ("verifier", 1, "learn"),
        ("generator", 1, ""),
    ]
    assert [[a.kind for a in phase.enter] for phase in schedule.cycle] == [[], ["reset"], ["reset"]]
    assert not plan(options={"restart": "continue"}).recipe.schedule().cycle[1].enter


def test_a_round_resumes_in_its_middle_in_the_same_bits(tmp_path: Path) -> None:
    """Stopped between its searches, and before the policy learns: what was found is in the checkpoint."""
    settings = TINY | {
        "options": {"searches": 2, "candidates": 3, "check": False, "measured": 4, "guided": 2, "min_accuracy": 0.0, "more": 2},
        "policies": {"generator": FAST, "verifier": FAST},
        "keep": {"checkpoint_every": 1, "checkpoints": 10, "rollouts_every": 0},
    }
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    milonga.run("rstar_math", turns=2, out=whole, settings=settings, quiet=True)
    shutil.copytree(whole, cut)
    rows = JsonLines(whole / "metrics.jsonl").rows()
    assert [row["learner"] for row in rows[1:]] == ["verifier", "verifier", "verifier", "generator"] * 2
    for last in (3, 5):
        forget(cut, last)
        milonga.resume(cut, quiet=True)
        assert JsonLines(cut / "metrics.jsonl").rows() == rows
        pairs = (whole / "preferences.jsonl").read_bytes()
        assert (cut / "preferences.jsonl").read_bytes() == pairs and b'"reason":"Q ' in pairs.replace(b": ", b":")
        for policy in ("generator", "verifier"):
            weights = f"models/{policy}/model.safetensors"
            assert (cut / weights).read_bytes() == (whole / weights).read_bytes()


def forget(folder: Path, last: int) -> None:
    """As if the run had been killed right after this turn's checkpoint."""
    for path in sorted((folder / "checkpoints").iterdir()):
        if path.is_dir() and int(path.name.rsplit("-", 1)[-1]) > last:
            shutil.rmtree(path)
    (folder / "report.json").unlink()
