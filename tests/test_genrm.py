"""GenRM: the chance of a word, by hand and against the model; the filter, the balance, and what may not leak."""

from __future__ import annotations

import json
import math
import random
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import TINY
from helpers import GRAMMARS, PROPERTY
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit import compute_group_class_weights, term_weights
from milonga.errors import ConfigError, UserError
from milonga.resolve import Plan, resolve
from milonga.roles import Dialect, StepSolver, YesNoVerifier
from milonga.roles.demonstrate import write_check
from milonga.roles.solver import demonstration_to_rollout
from milonga.roles.yes_no import compute_word_chances, yes_probability
from milonga.systems.genrm.recipe import has_right_reasons, label_correct_checks, summarise_kept_checks
from milonga.tasks import make_task
from milonga.types import Grade, Parsed, Problem, Rollout, Rollouts, Solution, Verification

FORMS: tuple[Literal["cot", "direct"], ...] = ("cot", "direct")


@cache
def engine() -> Any:
    return make_engine(resolve([{"recipe": "genrm"}, TINY]))


def plan(**settings: Any) -> Plan:
    return resolve([{"recipe": "genrm"}, TINY, settings])


def ctx(p: Plan, turn: int = 1) -> Context:
    sampling, seed, problems = p.config.sampling, p.config.seed, p.config.batch.problems
    return Context(RunContext(engine(), p.task, p.roles, p.agents, sampling, seed, problems), turn, "verifier")


def solution(steps: int = 2, text: str = "a solution") -> Rollout:
    value = Solution(tuple("s" for _ in range(steps)), tuple(range(1, steps + 1)), "1")
    return Rollout.from_text("s", "generator", Problem("p", "a problem", "1"), text, Parsed(value, 1.0))


# The role.


@PROPERTY
@given(dialect=st.sampled_from(GRAMMARS), form=st.sampled_from(FORMS), data=st.data())
def test_what_is_written_reads_back(dialect: Dialect, form: Any, data: st.DataObject) -> None:
    role = YesNoVerifier(dialect, form)
    verdicts = data.draw(st.lists(st.booleans(), min_size=1, max_size=5))
    final = data.draw(st.booleans())
    note = st.text(st.characters(codec="utf-8", exclude_characters="\n=<{}\\"), max_size=8).map(str.strip)
    notes = data.draw(st.none() | st.lists(note, min_size=len(verdicts), max_size=len(verdicts)))
    parsed = role.parse(role.write(verdicts, final, notes), solution(len(verdicts)))
    assert parsed.is_valid and parsed.format == 1.0
    assert parsed.value.final is final
    assert parsed.value.steps == (tuple(verdicts) if form == "cot" else None)


@PROPERTY
@given(dialect=st.sampled_from(GRAMMARS), form=st.sampled_from(FORMS), text=st.text(max_size=60))
def test_no_output_breaks_the_reader(dialect: Dialect, form: Any, text: str) -> None:
    role = YesNoVerifier(dialect, form)
    parsed = role.parse(text, solution())
    assert 0 <= parsed.format <= 1 and parsed.value.final in (True, False, None)
    assert parsed.is_valid or parsed.format < 1


@pytest.mark.parametrize(
    ("text", "final"),
    [("Yes", True), (" No\n", False), ("yes", None), ("Yes, it is", None), ("YesNo", None), ("", None), ("+", None)],
)
def test_only_the_word_itself_is_a_verdict(text: str, final: bool | None) -> None:
    assert YesNoVerifier("tagged", "direct").parse(text, solution()).value.final is final
    checks = "<step_verification><step>\\boxed{CORRECT}</step><step>\\boxed{CORRECT}</step></step_verification>"
    assert YesNoVerifier("tagged").parse(f"{checks}\n<verdict>{text}</verdict>", solution()).value.final is final


@pytest.mark.parametrize("dialect", GRAMMARS)
def test_the_two_forms_ask_differently(dialect: Dialect) -> None:
    """A model that learned to check first must never be scored without its check, nor the other way round."""
    prompts = [YesNoVerifier(dialect, form).prompt(Problem("p", "1+1%10", "2"), solution()) for form in FORMS]
    assert prompts[0] != prompts[1]


# The score.


def test_the_chance_of_yes_by_hand() -> None:
    yes, no = math.log(0.3), math.log(0.1)
    assert yes_probability(yes, no) == pytest.approx(0.75)
    assert yes_probability(yes, no, normalise=False) == pytest.approx(0.3)
    assert yes_probability(-1000.0, 0.0) == pytest.approx(0.0) and yes_probability(0.0, -1000.0) == 1.0


@PROPERTY
@given(st.floats(-50, 0), st.floats(-50, 0), st.floats(0, 20))
def test_the_normalised_chance_does_not_see_other_tokens(yes: float, no: float, lost: float) -> None:
    assert yes_probability(yes, no) == pytest.approx(yes_probability(yes - lost, no - lost), abs=1e-9)
    assert yes_probability(yes, no) + yes_probability(no, yes) == pytest.approx(1)


def check(final: bool | None, steps: tuple[bool, ...] | None = (True, True)) -> Parsed:
    return Parsed(Verification(steps, final), 1.0, None if final is not None else "unreadable")


def test_the_mean_of_chances_is_not_a_vote() -> None:
    """Three checks that said yes, yes, no, with chances 0.6, 0.6 and 0.01: the vote is 2/3, the mean 0.4033."""
    said, chances = [check(True), check(True), check(False)], [0.6, 0.6, 0.01]
    mean = YesNoVerifier("terse").combine_checks(said, chances).value
    vote = YesNoVerifier("terse", voting="vote").combine_checks(said, chances).value
    assert mean.score == pytest.approx(1.21 / 3) and mean.final is False
    assert vote.score == pytest.approx(2 / 3) and vote.final is True
    # They differ for a single check too.
    assert YesNoVerifier("terse").combine_checks([check(True)], [0.6]).value.score == pytest.approx(0.6)
    assert YesNoVerifier("terse", voting="vote").combine_checks([check(True)], [0.6]).value.score == 1.0


def test_a_check_without_a_verdict_has_no_part_in_the_score() -> None:
    role = YesNoVerifier("terse")
    weighed = role.combine_checks([check(True), check(None, None)], [0.9, float("nan")])
    assert weighed.value.score == pytest.approx(0.9) and weighed.is_valid
    nothing = role.combine_checks([check(None, None)], [float("nan")])
    assert nothing.value.score is None and nothing.value.final is None and not nothing.is_valid


def test_steps_are_judged_by_the_majority_of_the_checks() -> None:
    said = [check(True, (True, True)), check(False, (True, False)), check(False, (False, False))]
    value = YesNoVerifier("terse").combine_checks(said, [0.9, 0.2, 0.1]).value
    assert value.step_scores == pytest.approx((2 / 3, 1 / 3)) and value.steps == (True, False)


@pytest.mark.parametrize("form", FORMS)
def test_the_score_is_what_the_model_says_at_the_verdict(form: Any) -> None:
    """Against log-probabilities of whole written verdicts, which the learner's own forward gives."""
    p = plan(options={"form": form, "rationales": 1})
    one = ctx(p)
    solutions = one.ask("generator", one.problems(), 2)
    judged = one.judge("verifier", solutions)
    role = p.roles["verifier"]
    assert isinstance(role, YesNoVerifier)
    for found in judged:
        if found.parsed.value.final is None:
            continue
        ends = [found.text[:-1] + word for word in role.words]
        written = one.write("verifier", [found.target] * 2, ends)
        yes, no = (float(row[-2]) for row in engine().score("verifier", written))  # the last is the end of the text
        assert found.parsed.value.score == pytest.approx(yes_probability(yes, no), abs=1e-5)
        assert found.parsed.value.final == (found.parsed.value.score >= 0.5)
    assert any(found.parsed.value.score is not None for found in judged)


def test_several_checks_are_sampled_apart_and_averaged() -> None:
    p = plan(options={"rationales": 4})
    solutions = ctx(p).ask("generator", ctx(p).problems(), 2)
    judged = ctx(p).judge("verifier", solutions, n=2)
    assert len(judged) == 2 * len(solutions)
    again = ctx(p)
    checks = again.ask("verifier", solutions, 8)
    role = p.roles["verifier"]
    assert isinstance(role, YesNoVerifier)
    chances = compute_word_chances(again, "verifier", role, checks, "live")
    for row, found in enumerate(judged):
        known = [c for c in chances[4 * row : 4 * row + 4] if not math.isnan(c)]
        assert found.parsed.value.score == pytest.approx(np.mean(known)) if known else found.parsed.value.score is None
        assert found.target.id == checks[4 * row].target.id
    assert len(ctx(p).judge("verifier", solutions, greedy=True)) == len(solutions)


def test_a_word_of_several_tokens_is_refused() -> None:
    p = plan(dialect="tagged", options={"form": "direct"})
    one = ctx(p)
    text = StepSolver("tagged").write(["1+1=2"], "2")
    given_one = as_rollout_of(text, p)
    with pytest.raises(UserError, match="'Yes' as 3 tokens"):
        one.judge("verifier", Rollouts([given_one]))


def as_rollout_of(text: str, p: Plan) -> Rollout:
    return Rollout.from_text(
        "s", "generator", p.task.problem("train", 0), text, StepSolver("tagged").parse(text), Grade(True, (True,))
    )


# Learning: the filter, the balance, the terms.


def test_the_filter_keeps_checks_whose_verdict_is_the_label() -> None:
    right, wrong = solution(), solution()
    right.grade, wrong.grade = Grade(True, (True, True)), Grade(False, (True, False))
    rows = [
        (right, check(True, (True, True))),
        (right, check(False, (True, False))),
        (wrong, check(False, (False, False))),  # right for the wrong reasons
        (wrong, check(None, None)),
    ]
    checks = Rollouts(
        Rollout.from_text(f"c{i}", "verifier", target.problem, "", parsed) for i, (target, parsed) in enumerate(rows)
    )
    for rollout, (target, _) in zip(checks, rows, strict=True):
        rollout.targets = (target,)
    assert label_correct_checks(checks) == pytest.approx(np.array([1, np.nan, 0, np.nan]), nan_ok=True)
    assert label_correct_checks(checks, consistent=True) == pytest.approx(np.array([1, np.nan, np.nan, np.nan]), nan_ok=True)
    assert [has_right_reasons(t) for t in checks] == [True, False, False, None]
    assert summarise_kept_checks(checks, label_correct_checks(checks)) == {"kept": 0.5, "kept_right": 0.5, "wrong_reasons": 0.5}


def test_classes_count_alike_within_each_problem() -> None:
    nan = float("nan")
    labels = [1, 0, 0, 0, nan, 1, 1]
    weights = compute_group_class_weights(labels, ["a"] * 5 + ["b"] * 2)
    assert weights == pytest.approx([2, 2 / 3, 2 / 3, 2 / 3, 0, 0, 0])


@PROPERTY
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 1.0, float("nan")])), max_size=20))
def test_balanced_weights_of_every_problem_sum_alike(rows: list[tuple[str, float]]) -> None:
    weights = np.array(compute_group_class_weights([label for _, label in rows], [group for group, _ in rows]))
    for group in "abc":
        sums = [sum(w for w, (g, label) in zip(weights, rows, strict=True) if g == group and label == kind) for kind in (0, 1)]
        assert sums[0] == pytest.approx(sums[1])


def loss_of(
    terms: list[str], factors: dict[str, float], weights: list[float], sizes: list[float], losses: list[float]
) -> float:
    """As the learner sums it: losses of single tokens, alike within a row, over the tokens of all rows."""
    found = term_weights(terms, factors, weights, sizes)
    return sum(w * s * x for w, s, x in zip(found, sizes, losses, strict=True)) / sum(sizes)


def test_each_term_is_the_mean_over_its_own_tokens() -> None:
    losses, sizes, weights = [1.0, 4.0, 9.0], [3.0, 1.0, 2.0], [1.0, 1.0, 1.0]
    total = loss_of(["verify", "verify", "generate"], {"verify": 1.0, "generate": 0.33}, weights, sizes, losses)
    assert total == pytest.approx((3 * 1 + 4) / 4 + 0.33 * 9)


@PROPERTY
@given(st.integers(1, 6), st.integers(0, 6), st.randoms(use_true_random=False))
def test_rows_of_another_kind_do_not_change_a_term(own: int, other: int, rng: random.Random) -> None:
    sizes = [float(rng.randint(1, 9)) for _ in range(own + other)]
    losses = [rng.random() if i < own else 0.0 for i in range(own + other)]
    weights = [rng.choice([0.0, 1.0, 2.0]) for _ in range(own + other)]
    terms = ["a"] * own + ["b"] * other
    together = loss_of(terms, {"a": 1.0, "b": 0.5}, weights, sizes, losses)
    alone = loss_of(terms[:own], {"a": 1.0}, weights[:own], sizes[:own], losses[:own])
    assert together == pytest.approx(alone)


@pytest.mark.parametrize("options", [{"form": "direct"}, {"source": "own"}, {"source": "teacher", "corrupt": 0.5}])
def test_what_is_kept_agrees_with_the_label_and_nothing_else_weighs(options: dict[str, Any]) -> None:
    p = plan(options=options | {"generation": 0.33})
    one = ctx(p)
    (train_batch,) = p.recipe.credit(one, p.recipe.rollout(one))
    assert train_batch.weights is not None
    verify = [(t, w) for t, w in zip(train_batch.rollouts, train_batch.weights, strict=True) if t.agent == "verifier"]
    generate = [(t, w) for t, w in zip(train_batch.rollouts, train_batch.weights, strict=True) if t.agent == "generator"]
    assert any(w > 0 for _, w in verify) and any(w == 0 for _, w in verify) and any(w > 0 for _, w in generate)
    assert all(t.parsed.value.final == bool(t.target.correct) for t, w in verify if w > 0)
    assert all((w > 0) == (t.correct == 1.0) for t, w in generate)
    for problem in {t.problem.id for t, _ in verify}:
        by_label = [sum(w for t, w in verify if t.problem.id == problem and t.target.correct == kind) for kind in (0.0, 1.0)]
        assert by_label[0] == pytest.approx(by_label[1])
    # The control must have something to mix up: where the label picks a text, the other text is there too.
    if options.get("form") == "direct":
        assert sum(t.parsed.value.final for t, _ in verify) * 2 == len(verify)


def test_the_terms_reach_the_learner_as_they_are_meant() -> None:
    """lambda = 0 and lambda > 0 have the same verification loss; the difference is lambda times the generation loss."""

    def loss(generation: float) -> float:
        engine().copy("verifier", "verifier", "ref")
        p = plan(options={"generation": generation})
        one = ctx(p)
        (train_batch,) = p.recipe.credit(one, p.recipe.rollout(one))
        return float(engine().learn(train_batch).loss)

    none, some, more = loss(0.0), loss(0.5), loss(1.0)
    assert none > 0 and some > none
    assert more - none == pytest.approx(2 * (some - none), rel=1e-4)


# The teacher.


@pytest.mark.parametrize("task", ["chain", "last_letter"])
def test_a_teacher_does_every_step_again(task: str) -> None:
    """Of what the task itself wrote, it finds what the task says; of what others wrote, exactly the wrong steps."""
    made, role = make_task({"name": task}), YesNoVerifier("terse")
    for index in range(30):
        problem = made.problem("train", index)
        rng = random.Random(index)
        shown = made.demonstrate(problem, rng, {k for k in range(made.step_count(problem)) if rng.random() < 0.3})
        target = demonstration_to_rollout(shown, problem, StepSolver("terse"), "d")
        assert made.redo_steps(problem, shown.steps) == shown.checks
        parsed = role.parse(write_check(made, target, role, 0.0, rng), target)
        assert parsed.value.steps == shown.truth and parsed.value.final == all(shown.truth)
        corrupted = role.parse(write_check(made, target, role, 1.0, rng), target)
        assert sum(a != b for a, b in zip(corrupted.value.steps, shown.truth, strict=True)) == 1


def test_redoing_goes_on_from_what_was_written_however_odd() -> None:
    chain = make_task({"name": "chain", "ops": 2})
    problem = Problem("p", "3+4*2%100", "14", {"start": 3, "chain": [("+", 4), ("*", 2)], "mod": 100})
    assert chain.redo_steps(problem, ["3+4=9", "nonsense", "1+1=2"]) == ("7", "18", "")
    assert chain.redo_steps(problem, ["nonsense", "3*2=6"]) == ("7", "6")
    assert chain.redo_steps(problem, []) == ()


def test_a_task_without_steps_has_no_teacher_and_says_so_before_anything_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps({"question": f"What is {n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(40)))
    settings = {"task": {"name": "jsonl", "path": str(path)}, "policies": {"generator": {"model": "a/model"}}}
    with pytest.raises(ConfigError, match=r"options\.source: nobody can check the steps of 'jsonl'; set it to 'reference'"):
        resolve([{"recipe": "genrm", "options": {"source": "teacher"}}, settings])
    assert list(resolve([{"recipe": "genrm"}, settings]).roles) == ["generator", "verifier", "annotator"]
    for options in ({"source": "own"}, {"form": "direct"}):
        assert list(resolve([{"recipe": "genrm", "options": options}, settings]).roles) == ["generator", "verifier"]
    assert list(plan().roles) == ["generator", "verifier"], "the embedded models have a teacher"


def test_the_reference_answer_reaches_no_prompt_of_the_verifier() -> None:
    """A verifier whose prompt held it would be trivially right in training and lost afterwards."""
    p = plan()
    one = ctx(p)
    solutions = one.ask("generator", one.problems(), 2)
    hidden = Rollouts(
        Rollout.from_text(
            t.id, t.agent, Problem(t.problem.id, t.problem.text, "ZZZ", t.problem.data), t.text, t.parsed, t.grade
        )
        for t in solutions
    )
    for form in FORMS:
        role = YesNoVerifier("terse", form)
        for ours, theirs in zip(solutions, hidden, strict=True):
            assert role.prompt(ours.problem, ours) == role.prompt(theirs.problem, theirs)
