"""Multi-Agent Evolve: rewards by hand, questions that are none, what the judge is asked, the pool, and a hidden truth."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import milonga.systems.multi_agent_evolve.questions
from cases import FAST, TINY
from helpers import GRAMMARS
from hidden import others_truth, weights
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.resolve import Plan, resolve
from milonga.roles import Dialect
from milonga.roles.proposer import Proposal, make_proposer_request
from milonga.systems.multi_agent_evolve.credit import difficulty_reward, mean_score, proposer_reward, solver_reward
from milonga.systems.multi_agent_evolve.questions import Pool, demonstrate_formats, is_question, question_to_problem
from milonga.systems.multi_agent_evolve.roles import Asker, Judge
from milonga.tasks import make_task
from milonga.tasks.base import assign_split
from milonga.tasks.invention import parse_invented, spoil_question
from milonga.types import Parsed, Problem, Rollout, Rollouts
from short import SHORT, short_loop

torch.set_num_threads(1)
CHAIN = make_task({"name": "chain", "ops": 3})
OPTIONS = {"formats": 0, "answers": 2, "judgements": 2, "audit": 4}
dialects = st.sampled_from(GRAMMARS)


def plan(**options: Any) -> Plan:
    return resolve([{"recipe": "multi_agent_evolve", "options": OPTIONS | options}, TINY])


def ctx(p: Plan, learner: str = "generator") -> Context:
    run_context = RunContext(make_engine(p), p.task, p.roles, p.agents, p.config.sampling, 0, p.config.batch.problems)
    return Context(run_context, 1, learner)


def proposal(text: str, id: str = "one", valid: bool = True) -> Rollout:
    parsed = Parsed(Proposal(text, None, ""), float(valid), None if valid else "not one question")
    return Rollout.from_text(id, "proposer", Problem("old", "^1+2%100", ""), text, parsed)


# Rewards.


def test_rewards_by_hand() -> None:
    assert proposer_reward(1.0, 0.4, 1.0, gate=0.7) == pytest.approx(2.4 / 3)
    assert proposer_reward(0.6, 0.4, 1.0, gate=0.7) == pytest.approx(1.6 / 3)  # the released code: no difficulty below the gate
    assert proposer_reward(0.6, 0.4, 1.0, gate=0.7, below_gate=True) == pytest.approx(2.0 / 3)  # the paper's algorithm
    assert proposer_reward(float("nan"), 0.4, 0.0, gate=0.7) == 0.0  # no question, no reward
    assert solver_reward(1.0, 1.0) == 1.0 and solver_reward(0.0, 1.0) == 0.5
    assert math.isnan(solver_reward(mean_score([]), 1.0))  # unreadable is not a neutral one half


def test_the_best_question_is_one_that_nobody_can_answer_unless_the_ends_earn_nothing() -> None:
    """The paper's trap, and the guard."""
    assert difficulty_reward(0.0) == 1.0 > difficulty_reward(0.5) == 0.5
    assert difficulty_reward(0.0, True) == difficulty_reward(1.0, True) == 0.0 and difficulty_reward(0.5, True) == 0.5


# Roles.


@given(dialects, st.integers(0, 100), st.booleans())
def test_a_written_question_and_a_verdict_on_it_read_back(dialect: Dialect, index: int, right: bool) -> None:
    asker, judge, text = Asker(dialect), Judge(dialect), CHAIN.problem("train", index).text
    parsed = asker.parse(asker.write(text))
    assert parsed.is_valid and parsed.value.question == text
    target = proposal(text)
    verdict = judge.parse(judge.write_question(right), target)
    assert verdict.is_valid and verdict.value.final is right
    asked = "".join(part.text for part in judge.prompt(target.problem, target))
    assert text in asked and (dialect == "tagged" or asked == f"?{text}\n!")


@pytest.mark.parametrize("dialect", GRAMMARS)
def test_what_is_no_question_or_no_verdict_is_invalid(dialect: Dialect) -> None:
    for text in ("", " ", "1+2%100\n#3", "<question></question>", "<question>a</question><question>b</question>"):
        terse = dialect == "terse" and text.startswith("<")  # a line like any other there
        assert Asker(dialect).parse(text).is_valid == terse
    for text in ("", "=", "=+-", "=+=-", "3+\n=+", "\\boxed{CORRECT}", "CORRECT"):
        parsed = Judge(dialect).parse(text, proposal("1+2%100"))
        assert not parsed.is_valid and parsed.value.final is None


@given(dialects, st.text(st.sampled_from("=+-\n<>question/final_verification\\boxed{CORRECT}IN1%"), max_size=50))
def test_no_text_breaks_the_readers(dialect: Dialect, text: str) -> None:
    parsed = Asker(dialect).parse(text)
    assert not parsed.is_valid or parsed.value.question
    judged = Judge(dialect).parse(text, proposal("1+2%100"))
    assert judged.is_valid == (judged.value.final is not None)


# Questions.


def test_what_is_none_of_the_tasks_can_be_asked_and_nothing_is_right_about_it() -> None:
    p = plan()
    at = ctx(p)
    good, bad = question_to_problem(at, "3+4%100", "one"), question_to_problem(at, "3+%100", "two")
    assert good.answer == "7" and bad.answer == ""
    assert p.task.grade(good, "7", ["3+4=7"]).is_sound
    assert p.task.grade(bad, "7", ["3+4=7"]).correct is False and p.task.grade(bad, None, []).correct is False


def test_held_out_texts_are_never_taken() -> None:
    assert all(is_question(proposal(CHAIN.problem("train", index).text)) for index in range(30))
    assert not any(is_question(proposal(CHAIN.problem(split, index).text)) for split in ("dev", "test") for index in range(30))  # type: ignore[arg-type]
    assert not is_question(proposal("3+4%100", valid=False))


def test_most_spoilt_questions_are_none() -> None:
    rng = random.Random(0)
    made = [spoil_question(CHAIN.problem("train", index).text, rng) for index in range(200)]
    assert sum(parse_invented(CHAIN, text, "", "") is None for text in made) > 150  # the teacher labels each by what it is


def test_the_teacher_writes_what_every_agent_can_read() -> None:
    p = plan()
    rows = demonstrate_formats(ctx(p, "proposer"))
    assert {t.agent: sum(x.agent == t.agent for x in rows) for t in rows} == {"proposer": 4, "generator": 4, "verifier": 8}
    assert all(t.parsed.is_valid for t in rows)


def test_the_pool_takes_a_question_once_and_forgets_the_oldest() -> None:
    state: dict[str, Any] = {}
    pool = Pool(state, keep=2)
    for id, text in (("a", "3+4%100"), ("b", "3+4%100 "), ("c", "5+4%100"), ("d", "6+4%100")):
        pool.add_question(proposal(text, id))
    assert state["questions"] == [["5+4%100", "c"], ["6+4%100", "d"]]


# The recipe.


def test_only_what_the_judge_finds_good_enters_the_pool() -> None:
    none = next(text for number in range(99) if assign_split(text := f"{number}+%") == "train")
    made = Rollouts([proposal(CHAIN.problem("train", 0).text, "a"), proposal(none, "b"), proposal("", "c", valid=False)])
    scores = {"a": [1.0, 0.0], "b": [1.0, 1.0]}
    for gate, admitted in ((0.7, ["b"]), (0.5, ["a", "b"])):
        p = plan(gate=gate)
        rewards = p.recipe.compute_proposer_rewards(made, Rollouts([]), scores)  # type: ignore[attr-defined]
        assert [id for _, id in p.recipe.state["questions"]] == admitted  # whether it makes sense, only the judge decides
        assert rewards == pytest.approx([1.5 / 3, 2 / 3, 0.0])


def test_the_judge_is_paid_for_its_format_and_on_labelled_solutions_for_the_truth() -> None:
    p = plan(judge_label_frac=0.5)
    at = ctx(p)
    p.recipe.state["pairs"] = [["3+4%100", "a", "3+4=7\n#7"]] * 4
    shown = p.recipe.sample_judge_practice(at)  # type: ignore[attr-defined]
    assert len(shown) == 4 and len(p.recipe.state["told"]) == 2
    target = shown[-1]
    label = p.recipe.state["told"][target.id]
    for right in (True, False):
        text = Judge("terse").write([right] * len(target.parsed.value.steps), right)
        parsed = Judge("terse").parse(text, target)
        for judged, reward in ((target, float(right == label)), (shown[0], 1.0)):
            check = Rollout.from_text("c", "verifier", judged.problem, text, parsed)
            check.targets = (judged,)
            assert p.recipe.compute_judge_reward(check) == reward  # type: ignore[attr-defined]


def test_three_agents_learn_in_a_turn_and_each_is_compared_with_itself() -> None:
    p = plan()
    at = ctx(p)
    p.recipe.state["pairs"] = [["3+4%100", "a", "3+4=7\n#7"]] * 4
    rollouts = p.recipe.rollout(at)
    train_batches = list(p.recipe.credit(at, rollouts))
    assert [train_batch.rollouts[0].agent for train_batch in train_batches] == ["proposer", "verifier", "generator"]
    assert [set(train_batch.sources) for train_batch in train_batches] == [{"verifier"}, {"format"}, {"verifier"}]
    for train_batch in train_batches:
        firsts = [
            float(a[t.mask][0]) for a, t in zip(train_batch.advantages or [], train_batch.rollouts, strict=True) if t.mask.any()
        ]
        assert sum(firsts) == pytest.approx(0, abs=1e-6)
    assert len(p.recipe.state["pairs"]) == 8  # one answer to each of the four questions was remembered


def test_one_model_sits_on_all_agents_unless_it_is_told_otherwise() -> None:
    assert set(plan().agents.values()) == {"generator"}


# The hidden truth.


def test_the_weights_know_nothing_of_a_truth_that_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task's own problems have the answers of others, and those of the pool a wrong one."""

    def run(name: str) -> Any:
        with short_loop("multi_agent_evolve", tmp_path / name, {"options": OPTIONS, "policies": {"generator": FAST}}) as loop:
            for _ in range(3):
                loop.run_turn()
            assert loop.rows[-1]["learn/generator/steps"]
            return [tensor.tolist() for tensor in loop.engine.policy("generator").clone()]  # type: ignore[attr-defined]

    true = run("true")
    others_truth(monkeypatch)
    monkeypatch.setattr(milonga.systems.multi_agent_evolve.questions, "compute_answer", lambda problem: "0")
    assert run("other") == true


def test_a_run_goes_on_in_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With questions and pairs in the state from the beginning: in so few turns nobody learns to ask."""
    from milonga.systems.multi_agent_evolve.recipe import MultiAgentEvolve

    begin = MultiAgentEvolve.__init__

    def with_questions(self: MultiAgentEvolve, *given: Any) -> None:
        begin(self, *given)
        self.state |= SHORT["multi_agent_evolve"].state

    settings = TINY | {
        "options": OPTIONS,
        "policies": {"generator": FAST},
        "keep": {"checkpoint_every": 1, "rollouts_every": 0},
    }
    folder = tmp_path / "run"
    monkeypatch.setattr(MultiAgentEvolve, "__init__", with_questions)
    milonga.run("multi_agent_evolve", turns=2, out=folder, settings=settings, quiet=True)
    monkeypatch.undo()  # what is gone on with comes from the checkpoint alone
    whole, rows = weights(folder), (folder / "metrics.jsonl").read_bytes()
    for file in sorted((newest := sorted((folder / "checkpoints").iterdir())[-1]).iterdir()):
        file.unlink()
    newest.rmdir()
    milonga.resume(folder, quiet=True)
    assert weights(folder) == whole and (folder / "metrics.jsonl").read_bytes() == rows


def test_an_old_question_is_shown_without_its_answer() -> None:
    assert make_proposer_request(Problem("p", "3+4%100", "SECRET"), True).answer == ""
