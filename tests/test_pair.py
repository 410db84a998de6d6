"""A trained pair in use: what it says depends on the seed and the ids alone, and only what is needed is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import milonga
from cases import TINY
from helpers import PROPERTY
from milonga.errors import ConfigError, DataError, RunFolderError
from milonga.pair import Pair, Verdict
from milonga.resolve import resolve
from milonga.runfolder.checkpoints import Checkpoints
from milonga.tasks.foreign import is_same_answer, make_foreign_problem
from milonga.types import Parsed, Problem, Rollout, Verification

PROBLEMS = [
    make_foreign_problem("a", "3+4*5%100", "35"),
    make_foreign_problem("b", "50-6+2%100"),
    make_foreign_problem("c", "9*9%100", "wrong"),
]


@pytest.fixture(scope="module")
def pair(trained: Path) -> Pair:
    return Pair.open(trained)


def test_solutions_are_graded_by_the_known_answer_alone(pair: Pair) -> None:
    solutions = pair.solve(PROBLEMS, n=4)
    assert solutions.problem_ids == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    for rollout in solutions:
        grade = rollout.grade
        assert grade is not None and grade.steps is None
        expected = {"a": rollout.parsed.value.answer == "35", "b": None, "c": False}[rollout.problem.id]
        assert grade.correct is expected


def test_a_problem_of_the_task_is_graded_by_the_task(pair: Pair) -> None:
    solutions = pair.solve(pair.plan.task.draw_problems("test", 0, 3), n=2)
    assert all(t.grade is not None and t.grade.steps is not None for t in solutions)


def test_what_is_said_does_not_depend_on_what_else_is_asked(pair: Pair) -> None:
    together = pair.solve(PROBLEMS, n=3)
    alone = pair.solve(PROBLEMS[1:2], n=3)
    assert [t.text for t in together[3:6]] == [t.text for t in alone]
    checked, one = pair.verify(together, checks=3), pair.verify(alone, checks=3)
    assert [[c.text for c in v.checks] for v in checked[3:6]] == [[c.text for c in v.checks] for v in one]


def test_the_seed_decides(trained: Path, pair: Pair) -> None:
    def texts(seed: int | None) -> list[str]:
        with Pair.open(trained, ["generator"], seed=seed) as opened:
            return [t.text for t in opened.solve(PROBLEMS, n=4)]

    assert texts(None) == [t.text for t in pair.solve(PROBLEMS, n=4)]
    assert texts(5) == texts(5) != texts(None)


def test_only_the_weights_that_are_needed_are_loaded(trained: Path) -> None:
    with milonga.Pair.open(trained, ["verifier"]) as judge:
        assert list(judge.engine.policies) == ["verifier"]  # type: ignore[attr-defined]
        assert judge.judges and not judge.solves
        theirs = judge.wrap_solution(judge.problem("3+4*5%100"), ["3+4=7", "7*5=35"])
        assert theirs.id == "3+4*5%100" and judge.verify([theirs])[0].steps is not None


def test_the_weights_are_those_of_the_newest_checkpoint(trained: Path, pair: Pair) -> None:
    from safetensors.torch import load_file

    found = Checkpoints(trained / "checkpoints", 1).find_newest()
    assert found is not None and pair.turn == found[1]["place"]["turn"]
    saved = load_file(found[0] / "generator.safetensors")
    policy = pair.engine.policies["generator"]  # type: ignore[attr-defined]
    for name, parameter in zip(policy.names, policy.parameters, strict=True):
        assert np.array_equal(parameter.detach().numpy(), saved[f"live/{name}"].numpy())


def test_foreign_solutions_are_judged_step_by_step(pair: Pair) -> None:
    solution = pair.wrap_solution(PROBLEMS[0], ["3+4=7", "7*5=36"], id="theirs")
    assert solution.parsed.value.answer == "36" and solution.id == "theirs"
    assert pair.wrap_solution(PROBLEMS[0], ["3+4=7"], "7\n#8").parsed.value.answer == "7 #8"
    verdict = pair.verify([solution], checks=8)[0]
    assert len(verdict.checks) == 8 and verdict.solution is solution
    assert verdict.steps is not None and len(verdict.steps) == 2 and all(0 <= p <= 1 for p in verdict.steps)
    assert verdict.first_error in (-1, 0, 1)


def test_what_does_not_fit_is_unreadable_not_wrong(pair: Pair) -> None:
    long = pair.wrap_solution(make_foreign_problem("long", "1+1%100"), ["1+1=2"] * 2000)
    fits = pair.wrap_solution(PROBLEMS[0], ["3+4=7", "7*5=35"])
    verdicts = pair.verify([long, fits], checks=2)
    assert (verdicts[0].readable, verdicts[0].probability, verdicts[0].final, verdicts[0].first_error) == (0, None, None, None)
    assert "context" in str(verdicts[0].checks[0].parsed.invalid) and verdicts[1].checks[0].text
    alone = pair.verify([long], checks=2)[0]
    assert [c.parsed for c in alone.checks] == [c.parsed for c in verdicts[0].checks]
    assert not pair.solve([make_foreign_problem("long", "9" * 3000)], n=2)


@pytest.mark.parametrize("recipe", ["genrm", "gar", "lets_verify", "prime", "deepseek_math_v2"])
def test_verifiers_of_every_kind_can_be_used(recipe: str) -> None:
    """One that is scored by a word, one asked about pieces, a value head, a log-ratio, and one with three scores."""
    plan = resolve([TINY, {"recipe": recipe}])
    with Pair(plan, None, ("generator", "verifier")) as pair:
        verdicts = pair.verify([*pair.solve(PROBLEMS, n=2), pair.wrap_solution(PROBLEMS[0], ["3+4=7", "7*5=36"])], checks=2)
        assert len(verdicts) == 7 and all(1 <= len(v.checks) <= 2 for v in verdicts)
        assert verdicts[-1].steps is not None and len(verdicts[-1].steps) == 2
        assert verdicts[-1].probability is not None and 0 <= verdicts[-1].probability <= 1


def test_who_does_not_solve_by_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="the generator of recipe 'rlp' does not solve problems by steps"):
        Pair(resolve([TINY, {"recipe": "rlp"}]), None, ("generator",))


def test_a_model_as_it_is_sits_on_the_agents_that_are_named() -> None:
    with Pair.bare(verifier="embedded", device="cpu") as judge:
        assert list(judge.engine.policies) == ["verifier"]  # type: ignore[attr-defined]
        assert judge.verify([judge.wrap_solution(PROBLEMS[0], ["3+4=7", "7*5=35"])])[0].readable <= 1


def test_mistakes_are_named(trained: Path, tmp_path: Path, pair: Pair) -> None:
    with pytest.raises(RunFolderError, match="does not exist"):
        Pair.open(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="has no judge; its agents are generator, verifier"):
        Pair.open(trained, ["judge"])
    with pytest.raises(ConfigError, match="a generator or a verifier"):
        Pair.bare()
    with pytest.raises(ValueError, match="the same id"):
        pair.solve([PROBLEMS[0], PROBLEMS[0]])


def test_steps_that_hold_marks_of_the_dialect_are_refused() -> None:
    plan = resolve([TINY, {"recipe": "tango", "dialect": "tagged"}])
    with Pair(plan, None, ("verifier",)) as tagged, pytest.raises(DataError, match="marks of the tagged dialect"):
        tagged.wrap_solution(PROBLEMS[0], ["a</step><step>b"])


def verdict_of(*values: Verification) -> Verdict:
    nobody = Problem("p", "", "")
    solution = Rollout.from_text("s", "generator", nobody, "", Parsed(None, 1.0))
    made = [
        replace(Rollout.from_text(f"c{i}", "verifier", nobody, "", Parsed(v, 1.0)), targets=(solution,))
        for i, v in enumerate(values)
    ]
    return Verdict(solution, tuple(made))


def test_a_verdict_counts_readable_checks_alone() -> None:
    verdict = verdict_of(
        Verification((True, False), False),
        Verification(None, None),
        Verification((True, True), True),
        Verification((True,) * 2, True),
    )
    assert verdict.probability == pytest.approx(2 / 3) and verdict.final is True and verdict.readable == 3
    assert verdict.steps == pytest.approx((1.0, 2 / 3)) and verdict.first_error == -1
    # The unreadable check counts as nothing in the order, as it does in evaluations.
    assert verdict.rank == pytest.approx((0.25 + 0 + 1.5 + 1.5) / 4)


def test_a_check_is_as_sure_as_its_words_were() -> None:
    """What decides is what was said, by most of the checks; the probability is how likely it was that this was said."""
    one = verdict_of(Verification((True, True), True, soft=0.3, soft_steps=(0.6, 0.5)))
    assert (one.probability, one.final, one.first_error, one.steps) == (0.3, True, -1, (0.6, 0.5))
    two = verdict_of(
        Verification((True,), True, soft=0.3, soft_steps=(0.3,)), Verification((True,), True, soft=0.5, soft_steps=(0.5,))
    )
    assert two.probability == pytest.approx(0.4) and two.final is True and two.steps == pytest.approx((0.4,))
    assert two.step_verdicts == (True,)


def test_verdicts_on_steps_are_votes_of_the_checks_that_reach_them() -> None:
    right, wrong = Verification((True, True), True, soft_steps=(0.4, 0.4)), Verification((False,), False, soft_steps=(0.1,))
    verdict = verdict_of(right, wrong, wrong)
    assert verdict.step_verdicts == (False, True) and verdict.steps == pytest.approx((0.2, 0.4))
    assert verdict_of(Verification(None, None)).step_verdicts is None


def test_scores_are_averaged_where_a_verifier_gives_them() -> None:
    verdict = verdict_of(
        Verification((False,), False, score=0.2, step_scores=(0.4,)), Verification((True,), True, score=0.7, step_scores=(0.8,))
    )
    assert verdict.probability == pytest.approx(0.45) and verdict.final is False
    assert verdict.steps == pytest.approx((0.6,)) and verdict.first_error == 0  # a tie goes to the first seen


def test_a_verdict_without_a_readable_check_says_nothing() -> None:
    verdict = verdict_of(Verification(None, None), Verification(None, None))
    assert (verdict.probability, verdict.final, verdict.steps, verdict.first_error, verdict.rank) == (None,) * 4 + (0.0,)


@PROPERTY
@given(st.lists(st.tuples(st.lists(st.booleans(), min_size=3, max_size=3), st.sampled_from([True, False, None])), min_size=1))
def test_a_verdict_stays_between_its_checks(said: list[tuple[list[bool], bool | None]]) -> None:
    verdict = verdict_of(*(Verification(tuple(steps), final) for steps, final in said))
    finals = [final for _, final in said if final is not None]
    assert verdict.probability == (None if not finals else pytest.approx(sum(finals) / len(finals)))
    assert verdict.first_error in [next((k for k, right in enumerate(steps) if not right), -1) for steps, _ in said]


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("", "7", None),
        ("7", None, False),
        ("7", "7.0", True),
        ("1,000", "1000", True),
        ("Oslo", " oslo", True),
        ("7", "8", False),
    ],
)
def test_foreign_answers_are_compared(gold: str, answer: str | None, equal: bool | None) -> None:
    assert is_same_answer(gold, answer) is equal


def test_without_the_grader_for_mathematics_some_answers_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_same_answer("x+1", "1+x") is True
    monkeypatch.setattr("milonga.tasks.foreign.importlib.util.find_spec", lambda name: None)
    assert is_same_answer("x+1", "1+x") is None and is_same_answer("7", "7.0") is True
