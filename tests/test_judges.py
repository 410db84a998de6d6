"""Judges at the context: scorers of both kinds, given texts, solutions continued from a prefix; shuffling, flow and claims."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from cases import TINY
from helpers import make_rollout
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit.shuffle import shuffle_targets
from milonga.engine.local import LocalEngine
from milonga.evals.evaluate import ranking_metrics
from milonga.evals.metrics import order_accuracy
from milonga.objectives import make_objective
from milonga.patterns.imitation import sample_demonstrations
from milonga.resolve import Plan, resolve
from milonga.roles import ROLES, ImplicitScorer, StepScorer, StepSolver
from milonga.roles.scorer import aggregate_scores, sigmoid
from milonga.runfolder.flow import compute_reward_flow, to_mermaid
from milonga.types import Grade, Parsed, Problem, Rollout, Rollouts, Solution, TrainBatch, Verification


@cache
def plan() -> Plan:
    return resolve([{"recipe": "tango"}, TINY, {"task": {"name": "chain", "ops": 3}}])


@cache
def engine() -> LocalEngine:
    sections = dict(plan().policies)
    sections["head"] = sections["verifier"].model_copy(update={"kind": "scalar"})
    sections["ratio"] = sections["verifier"]
    return LocalEngine(sections, device="cpu", rows=64)


def ctx(turn: int = 1, **roles: Any) -> Context:
    p = plan()
    agents = {"generator": StepSolver("terse"), **roles}
    policies = {"generator": "generator", "head": "head", "ratio": "ratio"}
    return Context(RunContext(engine(), p.task, agents, policies, p.config.sampling, 0, 4), turn, "generator")


# Scorers.


def test_a_scorer_sees_the_example_and_the_steps_that_the_solver_does() -> None:
    scorer, solver = StepScorer("plain"), StepSolver("plain")
    problem, text = Problem("p", "What is 2 + 3?", "5"), "<think>One.\n\nTwo.</think>So \\boxed{5}."
    for role in (scorer, solver):
        role.example = role.thought_steps = True
    assert scorer.prompt(problem, None) == solver.prompt(problem) and scorer.stop == solver.stop != ()
    assert scorer.parse(text, None) == solver.parse(text) and len(solver.parse(text).get(Solution).steps) == 2


@pytest.mark.parametrize(("how", "score"), [("product", 0.36), ("min", 0.4), ("geometric", 0.6), ("last", 0.7)])
def test_a_solution_is_scored_from_its_steps_or_at_its_end(how: Any, score: float) -> None:
    assert aggregate_scores([0.9, 0.4], 0.7, how) == pytest.approx(score)
    assert aggregate_scores([], 0.7, how) == 0.7


def test_a_logit_of_any_size_is_a_probability() -> None:
    assert sigmoid(0.0) == 0.5 and sigmoid(1e4) == 1.0 and sigmoid(-1e4) == 0.0
    assert sigmoid(-1.2) == pytest.approx(1 - sigmoid(1.2))


def test_a_scorer_reads_its_head_at_the_ends_of_the_steps() -> None:
    written = make_rollout(2, 6, step_ends=[2, 5])
    numbers = np.zeros(8)
    numbers[[3, 6, 7]] = [2.0, -1.0, 3.0]
    value = StepScorer("terse", "min").make_verdict(written, numbers).value
    assert value.steps == (True, False) and value.step_scores == pytest.approx((sigmoid(2), sigmoid(-1)))
    assert value.score == pytest.approx(sigmoid(-1)) and value.final is False
    assert StepScorer("terse", "last").make_verdict(written, numbers).value.score == pytest.approx(sigmoid(3))


def test_an_implicit_scorer_sums_its_log_ratios() -> None:
    written = make_rollout(2, 6, step_ends=[2, 5])
    numbers = np.array([0, 0, 1.0, 2.0, -1.0, -1.0, -3.0, 0.5])
    value = ImplicitScorer("terse", beta=0.5).make_verdict(written, numbers).value
    assert value.step_scores == pytest.approx((sigmoid(1.5), sigmoid(-2.5)))
    assert value.score == pytest.approx(sigmoid(0.5 * -1.5)) and value.steps == (True, False)


def test_steps_that_cannot_be_told_apart_are_unreadable() -> None:
    written = make_rollout(2, 6)
    written.parsed = Parsed(Solution(("a", "b"), (1, 2), "x"), 1.0)
    parsed = StepScorer("terse").make_verdict(written, np.zeros(8))
    assert not parsed.is_valid and parsed.value.steps is None and parsed.value.score == 0.5


@pytest.mark.parametrize("kind", ["head", "ratio"])
def test_a_scorer_judges_solutions_sampled_and_given(kind: str) -> None:
    role = StepScorer("terse", "last") if kind == "head" else ImplicitScorer("terse")
    one = ctx(**{kind: role})
    solutions = one.ask("generator", one.problems(), 2)
    checks = one.judge(kind, solutions)
    assert [c.target.id for c in checks] == [s.id for s in solutions]
    # Both start as they are: the head at zero, the ratio to itself at one.
    assert all(c.parsed.value.score == pytest.approx(0.5, abs=1e-6) for c in checks)
    assert all(c.origin == "given" and c.text == c.target.text for c in checks)
    same = [c for c in checks if c.target.finish == "eos" and c.target.parsed.is_valid]
    assert same
    for check in same:
        # The same tokenizer and the solver's own prompt: the judge reads the very ids, and the same steps.
        assert check.ids.tolist() == check.target.ids.tolist() and check.steps == check.target.steps


def test_what_was_cut_off_is_not_given_an_end() -> None:
    one = ctx(head=StepScorer("terse"))
    solution = one.ask("generator", one.problems(1))[0]
    solution.finish = "length"
    (check,) = one.write("head", Rollouts([solution]), [solution.text])
    (other,) = one.write("head", Rollouts([solution]), [solution.text + " "])
    eos = engine().policy("head").eos[0]
    assert check.ids[-1] != eos and other.ids[-1] == eos


# Continuing from a prefix.


def test_solutions_go_on_from_a_prefix_in_token_space() -> None:
    one = ctx()
    solutions = [s for s in one.ask("generator", one.problems(), 4) if len(s.steps) == 3]
    first = solutions[0]
    rest = one.complete("generator", [(first, 0), (first, 1), (first, 3)], 2)
    assert [t.target.id for t in rest] == [first.id] * 6
    assert len({t.id for t in rest}) == 6
    for k, rollout in zip((0, 0, 1, 1, 3, 3), rest, strict=True):
        cut = first.steps[k - 1][1] if k else first.segments[-1].start
        assert rollout.ids[:cut].tolist() == first.ids[:cut].tolist()
        assert rollout.parsed.value.steps[:k] == first.parsed.value.steps[:k]
        assert rollout.steps[:k] == first.steps[:k] and len(rollout.steps) == len(rollout.parsed.value.steps)
        # What was there before is not trained.
        assert not rollout.mask[:cut].any() and rollout.mask[cut:].all()
        assert rollout.grade is not None
        if rollout.parsed.is_valid and rollout.finish == "eos":
            (whole,) = one.write("generator", [rollout.problem], [rollout.text])
            assert whole.steps == rollout.steps


def test_completions_do_not_depend_on_their_company() -> None:
    one = ctx()
    solutions = [s for s in one.ask("generator", one.problems(), 4) if len(s.steps) == 3][:2]
    together = ctx().complete("generator", [(s, 1) for s in solutions], 2)
    alone = ctx().complete("generator", [(solutions[1], 1)], 2)
    assert [t.text for t in together][2:] == [t.text for t in alone]


# Given texts.


def test_nobody_demonstrates_a_role_without_a_teacher() -> None:
    with pytest.raises(TypeError, match="demonstrate"):
        sample_demonstrations(ctx(verifier=StepScorer("terse")), "verifier")


def test_written_solutions_are_graded_and_trained() -> None:
    one = ctx()
    problems = one.problems(2)
    task = plan().task
    shown = [StepSolver("terse").write(["1+1=2"], p.answer) for p in problems]
    written = one.write("generator", problems, shown)
    assert task.name == "chain" and [t.correct for t in written] == [1.0, 1.0]
    assert all(t.origin == "given" and t.length and t.text == text for t, text in zip(written, shown, strict=True))


# Ranking.


def test_order_accuracy_by_hand() -> None:
    # Pairs: 3>1, 3>2, 2=2, 2>1 of four: (1 + 1 + 0.5 + 1) / 4.
    assert order_accuracy([3, 2, 2, 1], [1, 1, 0, 0]) == pytest.approx(0.875)
    assert order_accuracy([1, 2], [1, 1]) is None and order_accuracy([], []) is None


def test_ranking_takes_the_score_where_there_is_one() -> None:
    solutions, checks = [], []
    for i, (correct, score) in enumerate([(True, 0.4), (False, 0.3), (False, 0.2)]):
        solution = make_rollout(1, 2, problem="p", id=f"s{i}")
        solution.grade = Grade(correct, (correct,))
        check = Rollout.from_text(
            f"c{i}", "verifier", solution.problem, "", Parsed(Verification((True,), False, score=score), 1.0)
        )
        check.targets = (solution,)
        solutions.append(solution)
        checks.append(check)
    found = ranking_metrics(Rollouts(solutions), Rollouts(checks))
    assert {found[key] for key in ("best_of_k", "best_of_k_sound", "pair_accuracy", "auroc")} == {1.0}


# The control.


def rows_of(count: int) -> Rollouts:
    return Rollouts(make_rollout(1, 3 + i, id=f"t{i}") for i in range(count))


def test_shuffled_targets_change_places_among_the_labelled_tokens() -> None:
    rows = rows_of(20)
    targets = [np.where(np.arange(len(t.ids)) % 2 == 1, float(i % 2), np.nan) for i, t in enumerate(rows)]
    found = shuffle_targets(TrainBatch("p", make_objective("value_bce").loss, rows, targets=targets), 0, 1).targets
    assert found is not None
    assert all(np.array_equal(np.isnan(a), np.isnan(b)) for a, b in zip(found, targets, strict=True))
    assert np.nansum(np.concatenate(found)) == np.nansum(np.concatenate(targets))
    assert any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(found, targets, strict=True))


def test_shuffled_pairs_stay_pairs_and_half_of_them_turn() -> None:
    rows = rows_of(40)
    labels = [1.0, 0.0] * 20
    found = shuffle_targets(
        TrainBatch("p", make_objective("dpo").loss, rows, labels=labels, units=[i // 2 for i in range(40)]), 0, 1
    ).labels
    assert found is not None
    assert all(found[i] + found[i + 1] == 1.0 for i in range(0, 40, 2))
    assert 4 < sum(a != b for a, b in zip(found, labels, strict=True)) / 2 < 16


def test_shuffled_weights_are_the_same_weights_elsewhere() -> None:
    weights = [1.0] * 5 + [0.0] * 15
    found = shuffle_targets(TrainBatch("p", make_objective("cross_entropy").loss, rows_of(20), weights=weights), 0, 1).weights
    assert found is not None and sorted(found) == sorted(weights) and found != weights


# The flow of rewards.


def test_the_flow_is_the_mean_share_over_the_turns_in_which_an_agent_learned() -> None:
    """A source that gave nothing in such a turn is zero there, so that what one agent got adds up to 1."""
    rows = [{"turn": 1, "flow/answers>generator": 0.5, "flow/verifier>generator": 0.5}, {"flow/answers>generator": 1.0}]
    flow = compute_reward_flow([*rows, {"flow/answers>verifier": 1.0}])
    assert flow == {("answers", "generator"): 0.75, ("verifier", "generator"): 0.25, ("answers", "verifier"): 1.0}
    drawn = to_mermaid(flow)
    assert "answers(answers)" in drawn and "verifier[verifier]" in drawn and "verifier -->|0.25| generator" in drawn
    assert "verifier[verifier]" in to_mermaid({("verifier", "generator"): 1.0})


def test_scorers_are_registered_and_judge() -> None:
    assert {"scorer", "implicit_scorer"} <= set(ROLES)
    assert make_engine(plan()).has_same_vocabulary("generator", "verifier")
