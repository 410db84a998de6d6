"""MARTI: the shaping table, the sandbagging bound, what a critique is paid for, three workflows row by row, and majorities."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import TINY
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit.critiques import agreement_reward, names_answer
from milonga.credit.history import compute_histories, known_mean, max_safe_alpha, shape_by_history
from milonga.errors import ConfigError
from milonga.patterns.voting import (
    grade_by_truth,
    majority_at_budget,
    majority_correctness,
    make_majority_grader,
    make_majority_labeller,
    tally_votes,
)
from milonga.patterns.workflows import AgentTurns, Rules, collect_solutions, pair_proposals
from milonga.resolve import resolve
from milonga.roles import Reviser, StepSolver, StepVerifier
from milonga.roles.reviser import make_panel
from milonga.systems.marti.recipe import FORMAT, Marti
from milonga.types import Grade, Problem, Rollout, Rollouts
from short import assert_resumes, short_loop

NAN = float("nan")
AGENTS = {
    "chain": ("generator", "verifier", "refiner"),
    "debate": ("generator", "partner"),
    "mixture": ("generator", "partner", "aggregator"),
}

# Credit by hand.


@pytest.mark.parametrize(
    ("reward", "before", "margin", "quality"),
    [(1, 0, 1, 0), (1, 1, 0, 1), (0, 1, -1, 0), (0, 0, 0, -1), (1, 0.5, 0.5, 0.5), (0, 0.5, -0.5, -0.5)],
)
def test_the_shaping_table(reward: float, before: float, margin: float, quality: float) -> None:
    r, q = np.array([float(reward)]), np.array([float(before)])
    assert shape_by_history(r, q, "margin", 0.5).tolist() == [reward + 0.5 * margin]
    assert shape_by_history(r, q, "quality", 0.5).tolist() == [reward + 0.5 * quality]
    assert shape_by_history(r, q, "none", 0.5).tolist() == [reward]


def test_a_turn_without_history_is_paid_as_it_is_and_the_unknown_stays_unknown() -> None:
    for how in ("margin", "quality"):
        shaped = shape_by_history(np.array([1.0, 0.0, NAN]), np.array([NAN, NAN, 1.0]), how, 0.5)
        assert shaped[:2].tolist() == [1.0, 0.0] and np.isnan(shaped[2])


def test_history_is_ones_own_or_everybodys_of_the_last_round_or_of_all() -> None:
    rewards = np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    own = compute_histories(rewards, "own", "all")
    assert np.isnan(own[0]).all() and own[1:].tolist() == [[0.0, 1.0], [0.5, 1.0]]
    assert compute_histories(rewards, "all", "all")[1:].tolist() == [[0.5, 0.5], [0.75, 0.75]]
    assert compute_histories(rewards, "own", "last")[2].tolist() == [1.0, 1.0]
    assert compute_histories(np.array([[NAN, 1.0], [1.0, 1.0]]), "all", "all")[1].tolist() == [1.0, 1.0]
    assert np.isnan(known_mean(np.array([NAN])))


@pytest.mark.parametrize(("turns", "most"), [(2, 1.0), (3, 0.667), (4, 0.545), (5, 0.48)])
def test_above_the_bound_a_wrong_first_answer_pays(turns: int, most: float) -> None:
    """Rewards over all turns of an agent that is always right, and of one that is wrong in its first turn only."""
    assert max_safe_alpha(turns) == pytest.approx(most, abs=5e-4)

    def total(first: float, alpha: float) -> float:
        rewards = np.array([[first], *[[1.0]] * (turns - 1)])
        return float(shape_by_history(rewards, compute_histories(rewards, "own", "all"), "margin", alpha).sum())

    assert total(0.0, max_safe_alpha(turns) * 0.99) < total(1.0, 0.0) < total(0.0, max_safe_alpha(turns) * 1.01)
    if turns == 2:
        assert (total(1.0, 0.5), total(0.0, 0.5)) == (2.0, 1.5)


def test_a_critique_is_paid_for_its_verdict_not_for_solving() -> None:
    assert [agreement_reward(verdict, right) for verdict in (True, False, None) for right in (1.0, 0.0)] == [1, 0, 0, 1, 0, 0]
    assert np.isnan(agreement_reward(True, NAN))
    assert names_answer("26+\n=+", "26") and not names_answer("126+\n=+", "26") and not names_answer("2 6", "26")
    assert names_answer("so a.b it is", "a.b") and not names_answer("so axb it is", "a.b")


# At the context.


@cache
def engine(workflow: str, binding: str = "own") -> Any:
    return make_engine(plan(workflow, binding))


def plan(workflow: str = "chain", binding: str = "own", **options: Any) -> Any:
    return resolve([TINY, {"recipe": "marti", "binding": binding, "options": {"workflow": workflow} | options}])


def ctx(p: Any, phase: str = "") -> Context:
    made = engine(p.recipe.options.workflow, p.config.binding)
    return Context(RunContext(made, p.task, p.roles, p.agents, p.config.sampling, 0, 4), 1, "generator", phase)


def sample_rollouts(p: Any, n: int = 4) -> tuple[Context, Rollouts]:
    one = ctx(p)
    return one, p.recipe.workflow.rollout(one, one.problems(), n)


def graded(rows: Rollouts, right: Any) -> None:
    """Rows with grades by hand: `right` says of each place whether it is right."""
    for place, rollout in enumerate(rows):
        rollout.grade = Grade(bool(right(place)), None)


def test_only_the_agents_of_the_workflow_are_taken() -> None:
    for workflow, agents in AGENTS.items():
        assert tuple(plan(workflow).policies) == tuple(plan(workflow).roles) == agents
    with pytest.raises(ConfigError, match="unknown policy 'partner'"):
        resolve([TINY, {"recipe": "marti", "policies": {"partner": {"lr": 1e-4}}}])
    assert set(Marti.agents) == {agent for agents in AGENTS.values() for agent in agents}


def test_what_a_reviser_reads_is_foreign_and_tells_nothing_of_who_is_right() -> None:
    problem = Problem("p", "3+4%10", "SECRET")
    solver, verifier = StepSolver("terse"), StepVerifier("terse")
    solution = Rollout.from_text("s", "generator", problem, "3+4=8\n#8", solver.parse("3+4=8\n#8"), Grade(False, (False,)))
    critique = Rollout.from_text("c", "verifier", problem, "7-\n=-", verifier.parse("7-\n=-", solution))
    for dialect, shown in (("terse", ">3+4%10\n3+4=8\n#8\n7-\n=-\n>3+4%10\n"), ("tagged", "<critique>\n7-\n=-\n</critique>")):
        parts = Reviser(dialect).prompt(problem, make_panel([solution, critique]))  # type: ignore[arg-type]
        text = "".join(part.text for part in parts)
        assert shown in text and "SECRET" not in text
        assert {part.text for part in parts if part.foreign} == {problem.text, solution.text, critique.text}
        assert Reviser(dialect).prompt(problem) == StepSolver(dialect).prompt(problem)  # type: ignore[arg-type]


def test_a_chain_refines_each_solution_by_each_of_its_critiques() -> None:
    p = plan()
    _, found = sample_rollouts(p)
    solutions, critiques, refined = (found.of(agent) for agent in AGENTS["chain"])
    assert (len(solutions), len(critiques), len(refined)) == (16, 32, 32)
    assert critiques.target_ids == [s.id for s in solutions for _ in range(2)]
    assert [rollout.target.targets for rollout in refined] == [(c.target, c) for c in critiques]
    text = engine("chain").policy("refiner").codec.decode_ids(refined[0].ids[: refined[0].segments[0].end].tolist())
    problem, critique = refined[0].problem.text, critiques[0]
    assert text == f">{problem}\n{critique.target.text}\n{critique.text}\n>{problem}\n"


def test_a_refiner_is_compared_with_the_solution_it_refines() -> None:
    p = plan()
    one, found = sample_rollouts(p)
    solutions, critiques, refined = (found.of(agent) for agent in AGENTS["chain"])
    graded(solutions, lambda place: place % 2)
    graded(refined, lambda place: place % 4 < 2)
    generator, verifier, refiner = p.recipe.workflow.score_turns(one, found, Rules(grade_by_truth))
    assert generator.local[0].tolist() == [0.0, 1.0] * 8 and np.isnan(generator.before[0]).all()
    assert generator.whole.tolist() == [1.0, 0.0] * 8  # each solution's refinements: both right, then both wrong
    assert refiner.before[0].tolist() == [0.0, 0.0, 1.0, 1.0] * 8 and refiner.local[0].tolist() == [1.0, 1.0, 0.0, 0.0] * 8
    assert p.recipe.compute_turn_reward(refiner, 0).tolist() == [1.5, 1.5, -0.5, -0.5] * 8
    assert (
        verifier.whole.tolist() == refiner.local[0].tolist() and verifier.target_correct.tolist() == refiner.before[0].tolist()
    )
    said = [critique.parsed.value.final for critique in critiques]
    agrees = [
        float(final is not None and final == bool(right)) for final, right in zip(said, verifier.target_correct, strict=True)
    ]
    assert verifier.local[0].tolist() == agrees
    both = p.recipe.workflow.score_turns(one, found, Rules(grade_by_truth, scope="all"))[2].before[0]
    assert both.tolist() == [(right + own) / 2 for right, own in zip(verifier.target_correct, agrees, strict=True)]


def test_outcome_and_gain_are_added_where_they_are_asked_for() -> None:
    said = AgentTurns(
        "verifier", Rollouts([]), [np.array([1.0])], [np.array([NAN])], np.array([1.0]), np.array([1.0]), np.array([0.0])
    )
    assert plan().recipe.compute_turn_reward(said, 0).tolist() == [1.0]
    assert plan(outcome="last_stage").recipe.compute_turn_reward(said, 0).tolist() == [1.5]
    assert plan(refiner_gain=0.25).recipe.compute_turn_reward(said, 0).tolist() == [1.25]
    debater = AgentTurns("partner", Rollouts([]), [np.array([0.0])], [np.array([NAN])], np.array([1.0]), np.array([0.0]))
    assert plan("debate", outcome="own_last").recipe.compute_turn_reward(debater, 0).tolist() == [0.5]
    assert plan("debate", outcome="vote").recipe.compute_turn_reward(debater, 0).tolist() == [0.0]


def test_critiques_are_compared_with_those_of_the_same_solution_and_both_classes_count_alike() -> None:
    p = plan()
    one, found = sample_rollouts(p)
    graded(found.of("generator"), lambda place: place == 0)
    train_batch = {made.policy: made for made in p.recipe.credit(one, found)}["verifier"]
    for at in range(0, 32, 2):
        assert sum(
            float(train_batch.advantages[at + k].sum() / max(1, train_batch.rollouts[at + k].length)) for k in (0, 1)
        ) == pytest.approx(0)
    assert train_batch.weights == pytest.approx([8.0] * 2 + [32 / 60] * 30)


def test_groups_are_filtered_by_what_was_right_not_by_what_was_paid() -> None:
    """All refined solutions of the first problem are right: its shaped rewards differ, and teach nothing."""
    for filtered in (True, False):
        p = plan(filter=filtered)
        one, found = sample_rollouts(p)
        graded(found.of("generator"), lambda place: place % 2)
        graded(found.of("refiner"), lambda place: place < 8 or place % 2)
        train_batch = {made.policy: made for made in p.recipe.credit(one, found)}["refiner"]
        assert any(array.any() for array in train_batch.advantages[:8]) != filtered
        assert any(array.any() for array in train_batch.advantages[8:])


def test_an_aggregator_reads_one_proposal_of_each() -> None:
    p = plan("mixture")
    one, found = sample_rollouts(p)
    mine, theirs, joined = (found.of(agent) for agent in AGENTS["mixture"])
    assert [rollout.target.targets for rollout in joined] == list(zip(mine, theirs, strict=True))
    graded(mine, lambda place: True)
    graded(theirs, lambda place: place % 2)
    graded(joined, lambda place: place < 8)
    said = p.recipe.workflow.score_turns(one, found, Rules(grade_by_truth))
    assert (
        said[2].before[0].tolist() == [0.5, 1.0] * 8
        and said[0].whole.tolist() == said[1].whole.tolist() == [1.0] * 8 + [0.0] * 8
    )
    earlier, later = p.recipe.workflow.pair_first_and_final(found)
    assert len(earlier) == len(later) == 32 and earlier[1] is theirs[0] and later[1] is joined[0]
    # A proposer whose prompt did not fit leaves the other's proposals about that problem unread.
    assert [rollout.targets for rollout in pair_proposals(mine[4:], theirs)] == list(zip(mine[4:], theirs[4:], strict=True))


def test_a_debater_is_paid_turn_by_turn_with_its_own_history() -> None:
    p = plan("debate")
    one, found = sample_rollouts(p)
    mine, theirs = (found.of(agent) for agent in AGENTS["debate"])
    graded(Rollouts(talk.target for talk in mine), lambda place: place % 2)
    graded(mine, lambda place: True)
    generator, partner = p.recipe.workflow.score_turns(one, found, Rules(grade_by_truth))
    assert [p.recipe.compute_turn_reward(generator, turn).tolist() for turn in (0, 1)] == [[0.0, 1.0] * 8, [1.5, 1.0] * 8]
    assert partner.own_last.tolist() == theirs.correct.tolist() and generator.whole.tolist() == partner.whole.tolist()
    train_batch = p.recipe.credit_agent(one, generator)
    for talk, array in zip(train_batch.rollouts, train_batch.advantages, strict=True):
        (start, end), second = talk.turn_spans
        assert len(set(array[start:end])) == 1 and not array[slice(*second)].any()  # all are right in the second turn


def test_the_vote_of_a_debate_is_what_most_say() -> None:
    problem = Problem("p", "3+4%10", "7")
    one = ctx(plan())
    solver = StepSolver("terse")

    def said(*answers: str) -> Rollouts:
        texts = [f"3+4={answer}\n#{answer}" for answer in answers]
        made = [Rollout.from_text(f"{n}", "generator", problem, text, solver.parse(text)) for n, text in enumerate(texts)]
        graded(Rollouts(made), lambda place: answers[place] == "7")
        return Rollouts(made)

    assert (
        majority_correctness(one, said("7", "7", "8"), grade_by_truth) == 1.0
        and majority_correctness(one, said("8", "7", "8"), grade_by_truth) == 0.0
    )
    nothing = Rollout.from_text("n", "generator", problem, "", solver.parse(""))
    assert majority_correctness(one, Rollouts([nothing]), grade_by_truth) == 0.0
    right = make_majority_grader(tally_votes(one, said("8", "8", "7")), 0.5)
    assert [right(rollout) for rollout in said("8", "8", "7")] == [1.0, 1.0, 0.0]
    found = tally_votes(one, said("8", "8", "7"))
    assert all(np.isnan(make_majority_grader(found, 0.7)(rollout)) for rollout in said("8", "7"))
    assert make_majority_labeller(found, 0.5)(problem) == "8" and make_majority_labeller(found, 0.7)(problem) is None


def test_a_critique_is_paid_for_naming_the_answer_that_the_vote_gives() -> None:
    p = plan(labels="majority", verifier_reward="checker", min_share=0.0)
    one, found = sample_rollouts(p)
    rules = p.recipe.make_rules(one, found)
    critique = next(rollout for rollout in found.of("verifier") if rules.label(rollout.problem) is not None)
    voted = rules.label(critique.problem)
    names_it = replace(critique, text=f"it should be {voted}", problem=replace(critique.problem, answer="hidden"))
    assert rules.reward_critique(names_it) == 1.0
    assert rules.reward_critique(replace(names_it, text="it should be hidden")) == 0.0
    unsure = replace(rules, label=lambda problem: None)
    assert np.isnan(unsure.reward_critique(names_it))


@pytest.mark.parametrize("workflow", list(AGENTS))
def test_majorities_are_of_all_agents_and_turns_and_need_no_truth(workflow: str) -> None:
    p = plan(workflow, labels="majority")
    one, found = sample_rollouts(p)
    spoken = collect_solutions(found)
    assert len(spoken) == {"chain": 48, "debate": 64, "mixture": 48}[workflow]

    def credit() -> list[Any]:
        return [
            array
            for train_batch in p.recipe.credit(one, found)
            for array in [*train_batch.advantages, np.array(train_batch.weights or [])]
        ]

    before = credit()
    graded(spoken, lambda place: place % 3)
    assert all(np.array_equal(a, b) for a, b in zip(before, credit(), strict=True))


@pytest.mark.parametrize("workflow", list(AGENTS))
def test_every_workflow_teaches_all_its_agents_and_measures_itself(workflow: str, tmp_path: Path) -> None:
    options = {"workflow": workflow, "formats": 1, "format_lines": 4, "measured": 4}
    with short_loop("marti", tmp_path, {"options": options}) as loop:
        loop.run_turn()
        loop.run_turn()
        # A refiner that is still all wrong has nothing to learn from but the teacher.
        assert {agent for agent in AGENTS[workflow] if any(row.get(f"learn/{agent}/steps") for row in loop.rows)} == set(
            AGENTS[workflow]
        )
        assert f"credit/{AGENTS[workflow][-1]}/{AGENTS[workflow][-1]}_earned_turn0" in loop.rows[-1]
        found = loop.recipe.measure(Context(loop.run_context, "eval/more", "", split="dev"))
    assert set(found) == set(Marti.measures)
    assert found["team/over_vote"] == pytest.approx(found["team/outcome"] - found["team/vote"])
    assert (found["critic/names_answer"] is None) == (workflow != "chain")


def test_the_vote_has_as_many_tokens_as_the_workflow() -> None:
    p = plan()
    one = ctx(p)
    problems = one.problems()
    first = one.ask("generator", problems)
    again = ctx(p)
    majority_at_budget(again, "generator", problems, 3.2 * sum(rollout.length for rollout in first))
    assert again.asked["generator", problems[0].id, False] == 3


def test_the_others_can_stay_as_they_were() -> None:
    p = plan(train="generator")
    one, found = sample_rollouts(p)
    assert [train_batch.policy for train_batch in p.recipe.credit(one, found)] == ["generator"]
    with pytest.raises(ConfigError, match="share one model"):
        plan(binding="shared", train="generator")


def test_the_teacher_shows_the_agents_that_read_others() -> None:
    for workflow, agents in (("chain", {"refiner"}), ("mixture", {"aggregator"}), ("debate", {"generator", "partner"})):
        p = plan(workflow, format_lines=6)
        shown = p.recipe.rollout(ctx(p, FORMAT))
        assert {rollout.agent for rollout in shown} == agents and all(rollout.origin == "given" for rollout in shown)
        assert {train_batch.policy for train_batch in p.recipe.credit(ctx(p, FORMAT), shown)} == agents


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": 1.01}, "at most 1.000"),
        ({"workflow": "debate", "rounds": 4, "alpha": 0.6}, "at most 0.545"),
        ({"outcome": "vote"}, "a chain has 'last_stage'"),
        ({"workflow": "debate", "outcome": "last_stage"}, "a debate has 'vote'"),
        ({"critiques": 1}, "nothing to be compared with"),
        ({"workflow": "chain", "critiques": 1, "verifier_group": "problem", "labels": "majority"}, None),
        ({"test_time": True}, "unknown key 'options.test_time'"),
    ],
)
def test_what_would_pay_the_wrong_thing_is_refused(options: dict[str, Any], words: str | None) -> None:
    if words is None:
        assert plan(**options)
        return
    with pytest.raises(ConfigError, match=words):
        plan(**options)


def test_a_majority_needs_voters() -> None:
    with pytest.raises(ConfigError, match="6 solutions of a problem are too few"):
        resolve([TINY, {"recipe": "marti", "batch": {"rollouts": 2}, "options": {"labels": "majority"}}])


def test_a_run_that_was_cut_ends_in_the_same_bits(tmp_path: Path) -> None:
    assert_resumes("marti", tmp_path, after=1)
