"""GAR: what a verdict on a slice is worth, how slices are cut and judged, and the traps of its rewards."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import TINY
from helpers import GRAMMARS, PROPERTY, make_rollout
from milonga.api import make_engine
from milonga.config import merge
from milonga.context import Context, RunContext
from milonga.credit import SliceReward, approval_rate, average_step_verdicts, group_verdicts, normalise
from milonga.credit.slices import bound_logprob
from milonga.errors import ConfigError
from milonga.patterns.slicing import cut_slices, score_origin_logprobs, write_reference
from milonga.randomness import keyed_rng
from milonga.resolve import Plan, resolve
from milonga.roles import Dialect, SliceJudge, StepSolver
from milonga.systems.gar.metrics import origin_auc, slice_metrics, yes_rates
from milonga.tasks import make_task
from milonga.types import Grade, Parsed, Problem, Rollout, Rollouts, Verification

JUDGES = {dialect: SliceJudge(dialect) for dialect in GRAMMARS}
dialects = st.sampled_from(GRAMMARS)


# -- What a verdict is worth ------------------------------------------------------------------------


def least_sure(reward: SliceReward, correct: float) -> float:
    """The smallest q, in thousandths, at which yes is the better verdict: q is the chance that the slice is a reference."""

    def worth(verdict: bool, q: float) -> float:
        return q * reward(verdict, True, 1.0) + (1 - q) * reward(verdict, False, correct)

    grid = [k / 1000 for k in range(1001)]
    return next((q for q in grid if worth(True, q) > worth(False, q) + 1e-12), 2.0)


def test_published_reads_the_question_and_the_slice_alone() -> None:
    p = resolve([{"recipe": "gar", "published": True, "policies": {"generator": {"model": "a/model"}}}])
    options, judge = p.config.options, p.roles["verifier"]
    assert (options["context"], options["sft"], options["slice_chars"], p.config.turns) == ("slice", 500, 1280, 400)
    assert [options[f"lambda{number}"] for number in (1, 2, 3, 4)] == [1.0, 1.0, 1.0, 0.5]
    assert isinstance(judge, SliceJudge) and judge.context == "slice"


def test_the_published_weights_say_yes_from_a_third_or_three_fifths_on() -> None:
    assert least_sure(SliceReward(1.0, 0.5), 1.0) == pytest.approx(1 / 3, abs=1e-3)
    assert least_sure(SliceReward(1.0, 0.5), 0.0) == pytest.approx(0.6, abs=2e-3)


def test_a_style_that_tells_the_origin_makes_no_the_best_verdict_on_right_slices() -> None:
    """The built-in conflict: at q = 0 a right slice of a right rollout is worth more as a no."""
    plain = SliceReward(1.0, 0.5)
    assert plain(False, False, 1.0) > plain(True, False, 1.0)
    # Both remedies of the paper's trap: exempt right rollouts, or let agreement weigh as much as origin.
    assert least_sure(SliceReward(1.0, 0.5, z0_only_wrong=True), 1.0) == 0.0
    assert least_sure(SliceReward(1.0, 1.0), 1.0) <= 0.001
    assert least_sure(SliceReward(1.0, 0.5, z0_only_wrong=True), 0.0) == least_sure(plain, 0.0)


@pytest.mark.parametrize(
    ("verdict", "reference", "correct", "worth"),
    [
        (True, True, 1, 1.0),
        (False, True, 1, 0.0),
        (True, False, 1, 0.5),
        (False, False, 1, 1.0),
        (True, False, 0, 0.0),
        (False, False, 0, 1.5),
        (None, True, 1, 0.0),
        (None, False, 0, 0.0),
    ],
)
def test_rewards_of_verdicts_by_hand(verdict: bool | None, reference: bool, correct: float, worth: float) -> None:
    assert SliceReward(1.0, 0.5)(verdict, reference, correct) == worth
    paid_on_reference = 0.5 if reference and verdict else 0.0
    assert SliceReward(1.0, 0.5, on_reference=True)(verdict, reference, correct) == worth + paid_on_reference


def test_a_slice_of_unknown_correctness_has_no_credit_unless_it_is_a_reference() -> None:
    assert np.isnan(SliceReward()(True, False, float("nan")))
    assert SliceReward()(True, True, float("nan")) == 1.0


def test_log_probabilities_are_bounded() -> None:
    assert [bound_logprob(p) for p in (0.0, -2.5, -5.0, -1e9)] == [1.0, 0.5, 0.0, 0.0]
    assert SliceReward(1.0, 0.5)(False, False, 0.0, sure=-2.5) == 0.5 + 0.5


def drift(q: float, correct: float, how: Any, draws: int = 400) -> float:
    """The expected policy gradient of a tabular judge, at one half, that cannot tell references from others but by q."""
    rng, reward = np.random.default_rng(0), SliceReward(1.0, 0.5)
    total = 0.0
    for reference, share in ((True, q), (False, 1 - q)):
        verdicts = rng.random((draws, 4)) < 0.5
        rewards = [[reward(bool(v), reference, 1.0 if reference else correct) for v in row] for row in verdicts]
        groups = [row for row in range(draws) for _ in range(4)]
        advantage = normalise(np.array(rewards).ravel(), groups, how)
        total += share * float((advantage * np.where(verdicts.ravel(), 1.0, -1.0)).mean())
    return total


def test_a_z_score_would_undo_the_weights_of_the_judge() -> None:
    """Within the verdicts on one slice there are only two rewards: their z-score forgets how far apart they were."""
    for correct, threshold in ((1.0, 1 / 3), (0.0, 0.6)):
        assert drift(threshold - 0.05, correct, "centre") < 0 < drift(threshold + 0.05, correct, "centre")
    assert drift(0.45, 1.0, "zscore") < 0 and drift(0.55, 0.0, "zscore") > 0  # one half, whatever the weights say
    assert plan().recipe.objectives["verifier"].estimator.advantage == "centre"


def test_approval_is_the_share_of_yes_over_slices() -> None:
    assert approval_rate([[True], [True], [False], [False]]) == 0.5
    assert approval_rate([[True, False], [None, False]]) == 0.25
    assert approval_rate([]) == 0.0  # nothing shown, nothing approved


def test_votes_of_slices_reach_their_steps() -> None:
    solution = make_rollout(2, 6, (2, 4, 6))
    assert average_step_verdicts([[True, True], [True, False]], solution, [2, 1]) == [1.0, 1.0, 0.0]
    assert average_step_verdicts([[True, True], [False]], solution, [1, 2]) == [1.0, -1.0, -1.0]
    assert (
        average_step_verdicts([[True]], solution, [2, 1]) is None and average_step_verdicts([], make_rollout(2, 3), []) is None
    )
    assert average_step_verdicts([[True]] * 3, solution, [2, 1]) is None


# -- The role ---------------------------------------------------------------------------------------

NOTES = {
    "terse": st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=8).filter(lambda x: x[0] != "="),
        max_size=3,
    ).map("\n".join),
    "tagged": st.text(st.characters(codec="utf-8", exclude_characters="<>"), max_size=20),
}


def solved(steps: list[str], dialect: Dialect = "terse", truth: tuple[bool, ...] | None = None) -> Rollout:
    solver = StepSolver(dialect)
    text = solver.write(steps, "1")
    return Rollout.from_text("s", "generator", Problem("p", "3+4%10", "1"), text, solver.parse(text), Grade(True, truth))


@PROPERTY
@given(dialect=dialects, verdict=st.booleans(), data=st.data())
def test_a_written_verdict_reads_back_and_its_reverse_is_the_other(dialect: Dialect, verdict: bool, data: Any) -> None:
    judge, target = JUDGES[dialect], JUDGES[dialect].split_solution(solved(["a", "b", "c"], dialect))[0]
    text = judge.write(verdict, data.draw(NOTES[dialect]))
    parsed, other = judge.parse(text, target), judge.parse(judge.flip_verdict(text), target)
    assert parsed.is_valid and parsed.format == 1.0
    assert parsed.value == Verification((verdict, verdict), verdict)
    assert other.value.final == (not verdict) and judge.flip_verdict(judge.flip_verdict(text)) == text


@PROPERTY
@given(dialect=dialects, text=st.text(max_size=30) | st.text("=+-\n<>/verdictanlysYESNO ", max_size=60))
def test_whatever_is_read_is_a_verdict_or_says_why_not(dialect: Dialect, text: str) -> None:
    parsed = JUDGES[dialect].parse(text, JUDGES[dialect].split_solution(solved(["a"], dialect))[0])
    assert parsed.is_valid == (parsed.value.final is not None) == (parsed.format == 1.0)


@pytest.mark.parametrize("text", ["", "+", "=", "=+\n", "=+=-", "==+", "\n=+", "<analysis></analysis><verdict>MAYBE</verdict>"])
def test_half_a_verdict_is_none(text: str) -> None:
    for dialect in GRAMMARS:
        assert not JUDGES[dialect].parse(text, JUDGES[dialect].split_solution(solved(["a"], dialect))[0]).is_valid


@PROPERTY
@given(steps=st.lists(st.text("0123456789+*=", min_size=1, max_size=6), max_size=9), size=st.integers(1, 4))
def test_slices_cover_the_steps_in_order_and_nothing_twice(steps: list[str], size: int) -> None:
    truth = tuple(len(step) % 2 == 0 for step in steps)
    whole = solved(steps, truth=truth)
    slices = SliceJudge("terse", size).split_solution(whole)
    values = [piece.parsed.value for piece in slices]
    assert [step for value in values for step in value.steps] == steps
    assert all(len(value.steps) == size for value in values[:-1])
    assert all(list(value.before) == steps[: k * size] for k, value in enumerate(values))
    assert tuple(right for piece in slices if piece.grade for right in piece.grade.steps or ()) == truth
    assert all(piece.target is whole and piece.correct == 1.0 for piece in slices)
    assert len({piece.id for piece in slices}) == len(slices)


@pytest.mark.parametrize("dialect", GRAMMARS)
def test_a_slice_is_shown_with_what_came_before_it_only_where_that_is_wanted(dialect: Dialect) -> None:
    def seen(context: Any) -> str:
        judge = SliceJudge(dialect, 2, context)
        second = judge.split_solution(solved(["FIRST", "SECOND", "THIRD", "FOURTH", "FIFTH"], dialect))[1]
        return "".join(part.text for part in judge.prompt(second.problem, second))

    prefix, alone = seen("prefix"), seen("slice")
    assert all(step in prefix for step in ("FIRST", "SECOND", "THIRD", "FOURTH")) and "FIFTH" not in prefix
    assert "THIRD" in alone and "FIRST" not in alone and "SECOND" not in alone


def test_whole_solutions_get_a_verdict_for_each_step() -> None:
    judge, whole = JUDGES["terse"], solved(["a", "b", "c"])

    def said(*verdicts: bool | None) -> Parsed:
        texts = ["" if v is None else judge.write(v) for v in verdicts]
        pieces = zip(judge.split_solution(whole), texts, strict=False)
        return judge.merge_verdicts(whole, [replace(piece, parsed=judge.parse(text, piece)) for piece, text in pieces])

    assert said(True, False).value == Verification((True, True, False), False)
    assert said(True, True).value == Verification((True, True, True), True)
    assert not said(True, None).is_valid and not said(True).is_valid and not judge.merge_verdicts(solved([]), []).is_valid


def test_demonstrations_hold_both_classes_alike_and_are_sometimes_wrong() -> None:
    task, judge = make_task({"name": "chain", "ops": 5}), SliceJudge("terse")
    right, agree, odd = [], [], 0
    for problem in task.draw_problems("train", 0, 400):
        piece, text = judge.demonstrate(task, problem, keyed_rng("x", problem.id))
        assert piece is not None and piece.grade is not None and piece.grade.steps is not None
        parsed = judge.parse(text, piece)
        assert parsed.is_valid
        right.append(all(piece.grade.steps))
        agree.append(parsed.value.final == right[-1])
        odd += len(piece.grade.steps) == 1
    assert 0.42 < np.mean(right) < 0.58 and 0.75 < np.mean(agree) < 0.95
    assert odd > 50  # the fifth step stands alone in its slice, and is asked about too


# -- Measures ---------------------------------------------------------------------------------------


def test_style_is_noticed_and_its_absence_too() -> None:
    rng = np.random.default_rng(0)

    def texts(mark: str) -> list[str]:
        return ["".join(rng.choice(list("0123456789+=*"), 12)) + mark for _ in range(200)]

    same, marked = origin_auc(texts(""), texts("")), origin_auc(texts("~"), texts(""))
    assert same is not None and abs(same - 0.5) < 0.08
    assert marked is not None and marked > 0.95
    assert origin_auc(["a"] * 3, ["b"] * 9) is None


def verdict(piece: Rollout, said: bool | None, number: int = 0) -> Rollout:
    made = Rollout.from_text(f"{piece.id}/{number}", "verifier", piece.problem, "", Parsed(Verification(None, said), 1.0))
    return replace(made, targets=(piece,), origin="sampled")


def test_slice_metrics_by_hand() -> None:
    judge = SliceJudge("terse", 1)
    sampled = replace(solved(["a", "b", "c", "d"], truth=(True, True, False, False)), origin="sampled")
    reference = replace(solved(["e", "f"], truth=(True, True)), id="r")
    said = [True, False, False, None, True, False]
    verdicts = Rollouts(
        verdict(p, s) for p, s in zip([*judge.split_solution(sampled), *judge.split_solution(reference)], said, strict=True)
    )
    found = slice_metrics(verdicts)
    assert found["slice_f1"] == pytest.approx(0.5)  # half of the right slices cleared, half of the wrong ones found
    assert (found["yes_on_right"], found["yes_on_wrong"], found["yes_on_reference"]) == (0.5, 0.0, 0.5)
    assert found["slice_steps"] == 1.0 and found["slice_length"] == 1.0
    unknown = replace(sampled, grade=Grade(True))
    nobody = yes_rates(Rollouts(verdict(p, True) for p in judge.split_solution(unknown)))
    assert nobody == {"yes_on_reference": None, "yes_on_right": None, "yes_on_wrong": None}


# -- At the context -----------------------------------------------------------------------------------


def plan(**settings: Any) -> Plan:
    return resolve([{"recipe": "gar"}, merge(TINY, {"task": {"ops": 3}}), settings])


@cache
def engine() -> Any:
    return make_engine(plan())


def ctx(p: Plan, learner: str = "generator") -> Context:
    sampling, seed, problems = p.config.sampling, p.config.seed, p.config.batch.problems
    return Context(RunContext(engine(), p.task, p.roles, p.agents, sampling, seed, problems), 1, learner)


def sample_rollouts(p: Plan, yes: Any) -> tuple[Context, Rollouts, Rollouts]:
    """Solutions of the generator, and four verdicts by hand on each slice of theirs and of the references."""
    one = ctx(p)
    solutions = one.ask("generator", one.problems(), 4)
    problems = {t.problem.id: t.problem for t in solutions}.values()
    pieces = cut_slices(one, [*solutions, *(write_reference(one, problem) for problem in problems)])
    made = one.ask("verifier", pieces[:1])[0]  # real tokens to carry the credit
    checks = [verdict(piece, yes(piece, k), k) for piece in pieces for k in range(4)]
    nothing = np.zeros(len(made.ids))
    return one, solutions, Rollouts(replace(c, ids=made.ids, segments=made.segments, logprobs=nothing) for c in checks)


def test_both_players_learn_in_one_turn_and_the_frozen_one_does_not() -> None:
    for frozen in (False, True):
        p = plan(options={"frozen": frozen})
        one, solutions, checks = sample_rollouts(p, lambda piece, k: k % 2 == 0)
        train_batches = list(p.recipe.credit(one, Rollouts([*solutions, *checks])))
        assert [train_batch.policy for train_batch in train_batches] == (["generator"] if frozen else ["generator", "verifier"])


def test_a_group_with_equal_rewards_has_no_advantage() -> None:
    p = plan(options={"lambda1": 0.0})
    one, solutions, checks = sample_rollouts(p, lambda piece, k: True)
    train_batch = p.recipe.credit_generator(one, solutions, checks)  # type: ignore[attr-defined]
    assert train_batch.advantages is not None and not any(a.any() for a in train_batch.advantages)


def test_verdicts_are_compared_only_with_those_on_the_same_slice() -> None:
    """References and generated slices in one group would pay for the origin twice."""
    p = plan()
    one, _, checks = sample_rollouts(p, lambda piece, k: k > 0)
    train_batch = p.recipe.credit_verifier(one, checks)  # type: ignore[attr-defined]
    assert train_batch.advantages is not None and train_batch.weights is not None
    sums: dict[str, float] = {}
    for check, advantage in zip(checks, train_batch.advantages, strict=True):
        sums[check.target.id] = sums.get(check.target.id, 0.0) + float(advantage.max() + advantage.min())
    assert len(sums) == len(checks) // 4 and all(abs(total) < 1e-9 for total in sums.values())
    origins = np.array([check.target.target.origin == "given" for check in checks])
    weights = np.array(train_batch.weights)
    assert weights[origins].sum() == pytest.approx(weights[~origins].sum())


def test_normalising_each_reward_keeps_apart_what_a_sum_confuses() -> None:
    """Accepted slices alone, or accepted slices and a right answer: after the z-score of the sum both look alike."""

    def best(how: str, right: bool) -> float:
        p = plan(options={"normalise": how})
        one, solutions, checks = sample_rollouts(p, lambda piece, k: piece.target.id.endswith("/0"))
        graded = {t.id: Grade(right and t.id.endswith("/0"), t.grade.steps if t.grade else None) for t in solutions}
        solutions = Rollouts(replace(t, grade=graded[t.id]) for t in solutions)
        train_batch = p.recipe.credit_generator(one, solutions, checks)  # type: ignore[attr-defined]
        assert train_batch.advantages is not None
        return max(float(a.max()) for t, a in zip(solutions, train_batch.advantages, strict=True) if t.id.endswith("/0"))

    assert best("sum", True) == pytest.approx(best("sum", False), abs=1e-4)
    assert best("per_reward", True) == pytest.approx(2 * best("per_reward", False), abs=1e-4)


def test_slice_advantages_differ_along_a_solution_and_the_default_does_not() -> None:
    for steps in (False, True):
        p = plan(options={"slice_advantage": steps, "lambda1": 0.0})
        one, solutions, checks = sample_rollouts(p, lambda piece, k: piece.id.endswith(":0"))
        train_batch = p.recipe.credit_generator(one, solutions, checks)  # type: ignore[attr-defined]
        assert train_batch.advantages is not None
        kinds = [len(set(a[t.mask])) for t, a in zip(solutions, train_batch.advantages, strict=True) if len(t.steps) == 3]
        assert kinds and all((kind > 1) == steps for kind in kinds)


def test_the_certainty_of_a_verdict_is_a_chance_and_alike_without_an_analysis() -> None:
    one = ctx(plan())
    judge = one.run.roles["verifier"]
    assert isinstance(judge, SliceJudge)
    piece = judge.split_solution(write_reference(one, one.problems(1)[0]))[0]
    written = one.write("verifier", [piece] * 4, [judge.write(v, a) for v in (True, False) for a in ("", "42+")])
    both = score_origin_logprobs(one, written)
    sampled = replace(piece, targets=(replace(piece.target, origin="sampled"),))
    other = score_origin_logprobs(one, Rollouts(replace(t, targets=(sampled,)) for t in written))
    assert all(np.exp(both[t.id]) + np.exp(other[t.id]) == pytest.approx(1.0) for t in written)
    bare, noted, bare_no, noted_no = (both[t.id] for t in written)
    assert bare == pytest.approx(bare_no, abs=1e-5) and noted == pytest.approx(noted_no, abs=1e-5)
    assert bare != pytest.approx(noted, abs=1e-3)


def test_references_are_written_as_the_generator_writes_unless_they_are_marked() -> None:
    one = ctx(plan())
    problem = one.problems(1)[0]
    plain, marked = write_reference(one, problem), write_reference(one, problem, "~")
    assert plain.parsed.is_valid and plain.grade is not None and plain.grade.is_sound and plain.origin == "given"
    assert marked.text.count("~") == len(plain.parsed.value.steps) and marked.text.replace("~", "") == plain.text


def test_the_table_judges_whole_solutions_by_their_slices() -> None:
    one = ctx(plan(), "verifier")
    problems = one.problems(3)
    checks = one.judge("verifier", Rollouts(write_reference(one, problem) for problem in problems), 2)
    assert [c.target.problem.id for c in checks] == [p.id for p in problems for _ in range(2)]
    assert len({c.id for c in checks}) == 6 and all(c.origin == "given" and not c.length for c in checks)
    judge = one.run.roles["verifier"]
    for check in checks:
        value = check.parsed.value
        assert (value.steps is None) == (value.final is None) == (not check.parsed.is_valid)
        assert value.steps is None or (len(value.steps) == 3 and value.steps[0] == value.steps[1])
    assert judge.split_solution(checks[0].target) is not None


def test_without_worked_solutions_there_are_no_references(tmp_path: Any) -> None:
    for name, first in (("train.jsonl", 0), ("dev.jsonl", 50)):
        rows = (f'{{"question": "{k}+1?", "answer": "{k + 1}"}}\n' for k in range(first, first + 20))
        (tmp_path / name).write_text("".join(rows))
    task = {"name": "jsonl", "path": str(tmp_path / "train.jsonl"), "dev_path": str(tmp_path / "dev.jsonl")}
    model = {"policies": {"generator": {"model": "a/model"}}}
    with pytest.raises(ConfigError, match=r"no worked solution.*task\.fields\.solution, or set options\.ref_source=none"):
        resolve([{"recipe": "gar", "task": task}, model])
    assert resolve([{"recipe": "gar", "task": task, "options": {"ref_source": "none"}}, model]).recipe.name == "gar"


def test_verdicts_are_gathered_by_solution_and_slice() -> None:
    pieces = SliceJudge("terse", 1).split_solution(solved(["a", "b"]))
    said = ([True, None], [False, True])
    checks = [verdict(p, s, k) for p, both in zip(pieces, said, strict=True) for k, s in enumerate(both)]
    assert group_verdicts(Rollouts(checks)) == {"s": [[True, None], [False, True]]}
