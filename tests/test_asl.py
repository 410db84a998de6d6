"""Agentic self-learning: verdicts that cannot be read two ways, the proposer's reward, pairs, invented problems, phases."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import milonga
from cases import TINY
from helpers import GRAMMARS, PROPERTY
from milonga.credit.self_learning import (
    parse_substring_verdict,
    proposal_reward,
    select_balanced_pairs,
    substring_agrees,
    verdict_entropy,
)
from milonga.patterns.self_questions import Memory, extract_conclusion, parse_verdict
from milonga.resolve import resolve
from milonga.roles import Dialect, Proposal, Proposer, StepSolver, StepVerifier
from milonga.roles.proposer import EASIER, HARDER, make_proposer_request
from milonga.runfolder.files import JsonLines
from milonga.systems.asl.recipe import Asl
from milonga.tasks import assign_split, make_task
from milonga.tasks.invention import compute_answer, parse_invented, vary_problem
from milonga.types import Parsed, Problem, Rollout, Verification

WORDS = ("correct", "wrong")
CHAIN = make_task({"name": "chain", "ops": 4, "min_ops": 2})
dialects = st.sampled_from(GRAMMARS)


# Verdicts.


@pytest.mark.parametrize(
    ("text", "substring"),
    [
        ("correct", True),
        (" wrong\n", False),
        ("incorrect", True),  # the opposite of what it says
        ("correct/wrong", True),
        ("wrong, not correct", True),
        ("", None),
        ("unsure", None),
    ],
)
def test_a_substring_is_taken_for_a_verdict(text: str, substring: bool | None) -> None:
    assert parse_substring_verdict(text, WORDS) is substring


def test_one_string_wins_everywhere_where_substrings_count() -> None:
    """The negative control: the string agrees with both labels, and is taken for a right solution besides."""
    for label in (True, False):
        assert substring_agrees("correct/wrong", label, WORDS)
    assert parse_substring_verdict("correct/wrong", WORDS) is True
    # The alarm: a judge that says so about everything pays 1, whatever is right.
    right = [True, False, False, False]
    paid = [parse_substring_verdict("correct/wrong", WORDS) is True for _ in right]
    assert sum(paid) / 4 - sum(right) / 4 == 0.75


WINNER: dict[Dialect, str] = {
    "terse": "7+\n=+-",
    "tagged": "<step_verification><step>\\boxed{CORRECT}</step></step_verification><final_verification>"
    "CORRECT/INCORRECT</final_verification>",
}


@pytest.mark.parametrize("dialect", GRAMMARS)
def test_the_recipe_pays_the_always_winning_string_only_with_the_substring_parser(dialect: Dialect) -> None:
    for parser in ("strict", "substring"):
        p = resolve([{"recipe": "asl"}, settings(parser=parser), {"dialect": dialect}])
        judged = solution(dialect)
        parsed = StepVerifier(dialect).parse(WINNER[dialect], judged)
        check = Rollout("c", "verifier", judged.problem, *nothing(), WINNER[dialect], parsed, targets=(judged,))
        ctx: Any = SimpleNamespace(role=p.roles.get)
        rewards = []
        for label in (True, False):
            p.recipe.state["labels"] = {judged.id: label}
            rewards.append(p.recipe.compute_judge_reward(check, ctx))  # type: ignore[attr-defined]
        assert rewards == ([0.0, 0.0] if parser == "strict" else [1.0, 1.0])
        assert parse_verdict(check, parser, dialect) is (None if parser == "strict" else True)  # type: ignore[arg-type]


def test_incorrect_is_not_correct_in_the_tagged_dialect() -> None:
    judged = solution("tagged")
    text = StepVerifier("tagged").write([True], False)
    check = Rollout(
        "c", "verifier", judged.problem, *nothing(), text, StepVerifier("tagged").parse(text, judged), targets=(judged,)
    )
    assert extract_conclusion(check, "tagged") == "\\boxed{INCORRECT}"
    assert parse_verdict(check, "strict", "tagged") is False
    assert parse_verdict(check, "substring", "tagged") is True  # the trap


def solution(dialect: Dialect) -> Rollout:
    solver = StepSolver(dialect)
    text = solver.write(["3+4=7"], "7")
    return Rollout.from_text("s", "generator", Problem("p", "3+4%100", "7"), text, solver.parse(text))


def nothing() -> tuple[Any, ...]:
    import numpy as np

    return np.zeros(0, dtype=np.int64), (), np.zeros(0)


# The proposer's reward.


def test_entropy_by_hand() -> None:
    assert verdict_entropy([True] * 10) == verdict_entropy([]) == 0.0
    assert verdict_entropy([True, False]) == pytest.approx(math.log(2))
    assert verdict_entropy([True] * 8 + [False] * 2) == pytest.approx(-(0.8 * math.log(0.8) + 0.2 * math.log(0.2)))


@PROPERTY
@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_entropy_is_bounded_and_blind_to_which_verdict_is_which(verdicts: list[bool]) -> None:
    entropy = verdict_entropy(verdicts)
    assert 0 <= entropy <= math.log(2) + 1e-12
    assert entropy == pytest.approx(verdict_entropy([not v for v in verdicts]))


def test_a_proposal_earns_the_entropy_of_the_verdicts_if_its_own_answer_is_accepted() -> None:
    half = [[True], [False], [True], [False]]
    assert proposal_reward(half, [True] * 5) == pytest.approx(math.log(2))
    assert proposal_reward(half, [True] * 4 + [False]) == pytest.approx(math.log(2))  # exactly 80 %
    assert proposal_reward(half, [True] * 3 + [False] * 2) == 0.0
    assert proposal_reward(half, []) == 0.0  # nobody could read a verdict on its own answer
    assert proposal_reward([[True]] * 4, [True] * 5) == 0.0  # nothing divides
    assert proposal_reward([[], []], [True] * 5) == 0.0
    assert proposal_reward([[], [True], [False]], [True] * 5) == pytest.approx(math.log(2))  # the unreadable are left out


def test_a_judge_that_contradicts_itself_can_be_taken_off() -> None:
    """The trap: entropy alone cannot tell a question that divides the solver from one that confuses the judge."""
    confused = [[True, False, True], [True, False, False], [True, True, False], [False, False, True]]
    divided = [[True] * 3, [False] * 3, [True] * 3, [False] * 3]
    own = [True] * 5
    assert proposal_reward(confused, own) == proposal_reward(divided, own) == pytest.approx(math.log(2))
    assert proposal_reward(divided, own, subtract_noise=True) == pytest.approx(math.log(2))
    noise = -(math.log(2 / 3) * 2 / 3 + math.log(1 / 3) / 3)
    assert proposal_reward(confused, own, subtract_noise=True) == pytest.approx(math.log(2) - noise)


# Pairs.


@PROPERTY
@given(st.lists(st.booleans(), max_size=12))
def test_pairs_are_balanced_and_one_sided_questions_dropped(labels: list[bool]) -> None:
    pairs = select_balanced_pairs(list(range(len(labels))), labels)
    said = [label for _, label in pairs]
    assert sum(said) * 2 == len(said) == 2 * min(sum(labels), len(labels) - sum(labels))
    assert all(labels[item] == label for item, label in pairs) and len({item for item, _ in pairs}) == len(pairs)


# Problems that were invented.


@PROPERTY
@given(index=st.integers(0, 300), harder=st.booleans(), seed=st.integers(0, 5))
def test_a_new_problem_is_one_operation_longer_or_shorter_and_never_held_out(index: int, harder: bool, seed: int) -> None:
    old = CHAIN.problem("train", index)
    new = vary_problem(CHAIN, old, harder, random.Random(seed))
    change = len(new.data["chain"]) - len(old.data["chain"])
    assert change == (0 if harder and len(old.data["chain"]) == 4 else 1 if harder else -1)
    assert assign_split(new.text) == "train"


def test_invented_problems_have_the_claimed_answer_and_the_exact_truth_beside_it() -> None:
    for problem in CHAIN.draw_problems("train", 0, 50):
        made = parse_invented(CHAIN, problem.text, "SOMETHING", "rollout")
        assert made is not None and made.source == "rollout" and made.answer == "SOMETHING"
        assert compute_answer(made) == problem.answer
        # Graded by the claim: the truth is for looking at.
        assert CHAIN.grade(made, problem.answer, ()).correct is False and CHAIN.grade(made, "SOMETHING", ()).correct is True
    for problem in CHAIN.draw_problems("dev", 0, 20):
        assert parse_invented(CHAIN, problem.text, problem.answer, "rollout") is None  # a held-out problem cannot be trained on


@pytest.mark.parametrize(
    "text", ["", "3%100", "3+4%10", "3+1%100", "300+4%100", "3+4+4+4+4+4%100", "3/4%100", "3+4%100\n", "３+4%100"]
)
def test_what_is_no_problem_of_the_task_is_not_taken(text: str) -> None:
    assert parse_invented(CHAIN, text, "7", "rollout") is None


@PROPERTY
@given(dialect=dialects, index=st.integers(0, 100), harder=st.booleans())
def test_a_written_proposal_reads_back(dialect: Dialect, index: int, harder: bool) -> None:
    problem, role = CHAIN.problem("train", index), Proposer(dialect)
    shown = CHAIN.demonstrate(problem, random.Random(0))
    work = StepSolver(dialect).write(shown.steps, shown.answer)
    parsed = role.parse(role.write(problem.text, work))
    assert parsed.is_valid and parsed.value == Proposal(problem.text, shown.answer, work)
    asked = "".join(part.text for part in role.prompt(make_proposer_request(problem, harder)))
    assert problem.text in asked and asked.count("harder" if harder else "easier") == (dialect == "tagged")
    assert dialect == "tagged" or (HARDER if harder else EASIER) in asked


@PROPERTY
@given(dialect=dialects, text=st.text(st.sampled_from(">^_123+%\n#=<question></>think stepanswer\\boxed{}"), max_size=60))
def test_no_text_breaks_the_reader_of_proposals(dialect: Dialect, text: str) -> None:
    parsed = Proposer(dialect).parse(text)
    assert not parsed.is_valid or (parsed.value.question and parsed.value.answer)


def test_a_request_does_not_hold_the_claimed_answer() -> None:
    old = Problem("p", "3+4%100", "SECRET", {"start": "SECRET"}, "source")
    assert make_proposer_request(old, True).answer == "" and "SECRET" not in "".join(
        p.text for p in Proposer("terse").prompt(make_proposer_request(old, True))
    )


# What is remembered.


def proposal(question: str, id: str) -> Rollout:
    return Rollout.from_text(id, "proposer", Problem("old", "", ""), "", Parsed(Proposal(question, "7", ""), 1.0))


def attempt(text: str) -> Rollout:
    return Rollout.from_text(text, "generator", Problem("p", "3+4%100", "7"), text, Parsed(Verification(None, None), 1.0))


def test_questions_are_remembered_once_if_they_divide_and_their_attempts_also_if_they_do_not() -> None:
    state: dict[str, Any] = {}
    memory = Memory(state, keep=3)
    judged = [(attempt("a"), True), (attempt("b"), True), (attempt("c"), False)]
    memory.remember(proposal("3+4%100", "one"), 0.6, judged)
    memory.remember(proposal("3+4%100 ", "two"), 0.6, judged)  # the same question in other white space
    memory.remember(proposal("9+4%100", "three"), 0.0, judged)  # its own answer was not accepted: no task, but pairs
    memory.remember(proposal("8+4%100", "four"), 0.6, judged[:2])  # a task without pairs: all verdicts are the same
    assert [task[2] for task in state["tasks"]] == ["one", "four"]
    assert state["tasks"][0][3] == pytest.approx(2 / 3)
    assert [(pair[2], pair[3], pair[4]) for pair in state["pairs"]] == [
        ("two", "c", False),
        ("three", "a", True),
        ("three", "c", False),
    ]


# The recipe.

OPTIONS = {"formats": 1, "n_proposer": 1, "n_verifier": 1, "n_generator": 1, "attempts": 2, "self_checks": 1, "audit": 4}


def settings(**options: Any) -> dict[str, Any]:
    keep = {"checkpoint_every": 1, "rollouts_every": 0}
    return TINY | {"task": {"name": "chain", "ops": 2}, "options": OPTIONS | options, "keep": keep}


def test_the_phases_go_round_and_a_frozen_judge_has_none(tmp_path: Path) -> None:
    learners = {}
    for grm in ("cotrained", "frozen"):
        milonga.run("asl", turns=2, out=tmp_path / grm, settings=settings(grm=grm), quiet=True)
        learners[grm] = [row["learner"] for row in JsonLines(tmp_path / grm / "metrics.jsonl").rows()[1:]]
    assert learners["cotrained"] == ["proposer", *["proposer", "verifier", "generator"] * 2]
    assert learners["frozen"] == ["proposer", *["proposer", "generator"] * 2]


def test_a_run_goes_on_in_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions, pairs and labels are in the state. The runs begin with some: in so few turns nobody learns to propose."""
    begin = Asl.__init__
    task = make_task({"name": "chain", "ops": 2})
    known = [task.problem("train", index) for index in range(6)]

    def with_questions(self: Asl, *args: Any) -> None:
        begin(self, *args)
        self.state["tasks"] = [[p.text, p.answer, f"s{n}", 0.5] for n, p in enumerate(known)]
        for n, p in enumerate(known):
            for wrong in ((), {1}):
                shown = task.demonstrate(p, random.Random(n), wrong)
                work = StepSolver("terse").write(shown.steps, shown.answer)
                self.state.setdefault("pairs", []).append([p.text, p.answer, f"s{n}", work, not wrong])

    monkeypatch.setattr(Asl, "__init__", with_questions)
    more = settings()
    milonga.run("asl", turns=2, out=tmp_path / "whole", settings=more, quiet=True)
    whole = JsonLines(tmp_path / "whole" / "metrics.jsonl").rows()
    assert all(row["learn/generator/grad_norm"] > 0 for row in whole if row["learner"] in ("verifier", "generator"))
    folder = tmp_path / "cut"
    milonga.run("asl", turns=2, out=folder, settings=more, quiet=True)
    for path in sorted((folder / "checkpoints").iterdir())[1:]:  # back to the older of the two that are kept
        for file in sorted(path.iterdir()):
            file.unlink()
        path.rmdir()
    monkeypatch.undo()  # what is gone on with comes from the checkpoint alone
    milonga.resume(folder, quiet=True)
    assert JsonLines(folder / "metrics.jsonl").rows() == whole
    name = "models/generator/model.safetensors"
    assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_one_model_sits_on_all_agents_unless_it_is_told_otherwise() -> None:
    assert set(resolve([{"recipe": "asl"}]).agents.values()) == {"generator"}
    assert set(resolve([{"recipe": "asl"}, {"binding": "own"}]).agents.values()) == {"proposer", "generator", "verifier"}
