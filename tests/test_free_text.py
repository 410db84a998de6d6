"""Systems of judges and proposers on questions in words, with a model that writes prose: turns run, batches are made, weights
move, and no answer is needed. The model's tokens are whole phrases (phrases.py), so that what it writes can be read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.numpy import load_file

import milonga
from helpers import make_rollout
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.errors import ConfigError, DataError
from milonga.patterns.self_questions import proposal_to_problem, restore_solution
from milonga.resolve import Plan, resolve
from milonga.roles import StepSolver
from milonga.roles.proposer import make_proposer_request
from milonga.runfolder.files import JsonLines
from milonga.systems.multi_agent_evolve.recipe import MultiAgentEvolve
from milonga.systems.self_rewarding.prompts import compute_rouge, is_usable
from milonga.systems.self_rewarding.roles import Grader
from milonga.systems.self_taught_evaluators.duels import Built, rewrite_problems
from milonga.systems.self_taught_evaluators.roles import make_duel
from milonga.tasks import make_task
from milonga.tasks.graded import read_graded
from milonga.tasks.invention import pose_question
from milonga.types import Problem, Rollout, Rollouts
from phrases import phrase_model, write_questions

pytest.importorskip("math_verify", reason="answers are graded by math-verify, which is not installed")
QUICK = {
    "batch": {"problems": 3, "rollouts": 4},
    "sampling": {"max_tokens": 10},
    "eval": {"problems": 2, "samples": 1, "greedy": False, "bench": 0, "every": 100},
    "probe": "off",
    "lr": 1e-3,
    "keep": {"checkpoint_every": 100, "rollouts_every": 1},
}
MAE = {"answers": 2, "judgements": 2, "probe_judgements": 2, "audit": 2, "gate": 0.1}
ASL = {"n_proposer": 1, "n_verifier": 1, "n_generator": 1, "attempts": 3, "self_checks": 1, "accept": 0.0, "audit": 2}
STE = {"iters": 1, "collect": 1, "train": 1, "rows": 16, "measured": 2}
ENDING = {"max_tokens": 60}
"""Room for most answers to end: those that are cut make no pair."""
RUNS: list[tuple[str, dict[str, Any], int, str]] = [
    ("self_rewarding", {"options": {"gradings": 2}, "sampling": ENDING}, 1, "generator"),
    ("self_rewarding", {"options": {"gradings": 2, "prompts": "proposed"}, "sampling": ENDING}, 1, "generator"),
    ("multi_agent_evolve", {"options": MAE}, 2, "generator"),
    ("asl", {"options": ASL}, 2, "generator"),
    ("self_taught_evaluators", {"options": STE}, 3, "judge"),
]
"""Recipe, settings, turns of its lead, and the policy that learns."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return phrase_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Questions without answers."""
    return write_questions(tmp_path_factory.mktemp("data") / "prompts.jsonl", answers=False)


def settle(recipe: str, model: str, path: str, more: dict[str, Any]) -> dict[str, Any]:
    lead = "judge" if recipe == "self_taught_evaluators" else "generator"
    task = {"name": "jsonl", "path": path, "open": True}
    return {"task": task, "policies": {lead: {"model": model}}, **QUICK, **more}


@pytest.mark.parametrize(("recipe", "more", "turns", "policy"), RUNS)
def test_questions_without_answers_are_enough(
    recipe: str, more: dict[str, Any], turns: int, policy: str, model: str, prompts: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    milonga.run(recipe, turns=turns, out=out, settings=settle(recipe, model, prompts, more), quiet=True)
    rows = JsonLines(out / "metrics.jsonl").rows()
    assert any(row.get(f"learn/{policy}/grad_norm", 0) > 0 for row in rows)
    start, end = (load_file(Path(folder) / "model.safetensors") for folder in (model, out / "models" / policy))
    assert any((end[name] != start[name]).any() for name in start)
    assert all(row.get("rollouts/generator/accuracy") is None for row in rows), "there is no truth"


@pytest.mark.parametrize(("recipe", "more", "turns", "policy"), [RUNS[0], *RUNS[2:]])
def test_answers_only_measure(recipe: str, more: dict[str, Any], turns: int, policy: str, model: str, tmp_path: Path) -> None:
    """Whatever the answers are, the same weights are learned, to the bit."""
    learned, accuracies = [], []
    for shift in (0, -1):  # the model says 4 and 6: right now and then, or never
        path, out = write_questions(tmp_path / f"{shift}.jsonl", shift=shift), tmp_path / f"run{shift}"
        settings = settle(recipe, model, path, more)
        settings["task"] = {"name": "jsonl", "path": path}
        milonga.run(recipe, turns=max(1, turns - 1), out=out, settings=settings, quiet=True)
        learned.append((out / "models" / policy / "model.safetensors").read_bytes())
        accuracies.append([row.get("eval/generator/accuracy") for row in JsonLines(out / "metrics.jsonl").rows()])
    assert learned[0] == learned[1] and accuracies[0][0] is not None


def plan(recipe: str, model: str, path: str, **more: Any) -> Plan:
    lead = "judge" if recipe == "self_taught_evaluators" else "generator"
    task = {"name": "jsonl", "path": path}
    return resolve([{"recipe": recipe, "task": task, "policies": {lead: {"model": model}}}, more])


def show(plan: Plan, agent: str, problem: Problem, target: Rollout | None = None) -> str:
    """The prompt of an agent."""
    return "".join(part.text for part in plan.roles[agent].render_prompt(problem, target))


def answer(text: str, problem: Problem) -> Rollout:
    return Rollout.from_text("answer", "generator", problem, text, StepSolver("plain").parse(text))


# Open questions.


def test_an_open_question_is_asked_as_it_is_and_any_text_answers_it(model: str, prompts: str, tmp_path: Path) -> None:
    free = plan("self_rewarding", model, prompts, task={"open": True})
    problem = free.task.problem("train", 0)
    assert problem.is_open and not problem.has_reference and not free.task.has_answers
    assert show(free, "generator", problem) == problem.text
    free.roles["generator"].example = True  # a model without a chat template has to be told what is wanted
    assert show(free, "generator", problem) == f"Question:\n{problem.text}\n\nAnswer:\n"
    boxed = plan("self_rewarding", model, write_questions(tmp_path / "answers.jsonl"))
    own = boxed.task.problem("train", 0)
    assert own.has_reference and "\\boxed{}" in show(boxed, "generator", own)
    assert not pose_question(boxed.task, "Why?", "id").is_open and pose_question(free.task, "Why?", "id").is_open


def test_rows_of_open_questions_need_no_answers_and_grades_are_unknown(prompts: str) -> None:
    with pytest.raises(DataError, match="field 'answer' is missing"):
        make_task({"name": "jsonl", "path": prompts})
    task = make_task({"name": "jsonl", "path": prompts, "open": True})
    assert task.grade(task.problem("train", 0), "4", ()).correct is None


def test_a_question_that_a_model_posed_is_never_graded(model: str, tmp_path: Path) -> None:
    """Beside the task's own, which are: nobody knows the answers to the others, and none of them is wrong for it."""
    p = plan("multi_agent_evolve", model, write_questions(tmp_path / "answers.jsonl"))
    run = RunContext(make_engine(p), p.task, p.roles, p.agents, p.config.sampling.model_copy(update={"max_tokens": 8}), 0, 2)
    ctx = Context(run, 1, "generator")
    rollouts = ctx.ask("generator", [p.task.problem("train", 0), pose_question(p.task, "How many pears?", "posed", "one")], 4)
    assert [t.grade is None for t in rollouts] == [False] * 4 + [True] * 4
    assert not ctx.dropped, "the grader was not asked"


def test_a_posed_question_is_asked_in_the_form_of_the_tasks_own(prompts: str, tmp_path: Path) -> None:
    """Otherwise answers to the two could be told apart by a box, and a judge would learn that."""
    rows = [{"prompt": f"Write haiku {n}.", "completion": "Old pond."} for n in range(20)]
    (tmp_path / "replies.jsonl").write_text("\n".join(map(json.dumps, rows)))
    replies = make_task({"name": "jsonl", "path": str(tmp_path / "replies.jsonl"), "form": "sft"})
    program = [{"text": f"Add {n}.", "code": "def f(a):\n    return a", "test_list": ["assert f(1) == 1"]} for n in range(20)]
    (tmp_path / "programs.jsonl").write_text("\n".join(map(json.dumps, program)))
    code = make_task({"name": "code", "dialect": "python", "path": str(tmp_path / "programs.jsonl")})
    opened = make_task({"name": "jsonl", "path": prompts, "open": True})
    boxed = make_task({"name": "jsonl", "path": write_questions(tmp_path / "answers.jsonl")})
    solver = StepSolver("plain")
    for task in (replies, code, opened, boxed):
        own, posed = task.problem("train", 0), pose_question(task, "What now?", "posed")
        texts = ["".join(part.text for part in solver.prompt(one)).replace(one.text, "") for one in (own, posed)]
        assert texts[0] == texts[1] and not posed.has_reference


def test_a_restored_solution_is_read_as_it_was_when_it_was_written(model: str, tmp_path: Path) -> None:
    p = plan("asl", model, write_questions(tmp_path / "answers.jsonl"))
    ctx = Context(RunContext(make_engine(p), p.task, p.roles, p.agents, p.config.sampling, 0, 2), 1, "generator")
    problem = p.task.problem("train", 0)
    found = restore_solution(ctx, problem, f"They have some. So there are {problem.answer}.", "again")
    assert found.solution.answer == problem.answer and found.correct == 1.0


# Self-Rewarding.


def test_the_grader_in_prose_shows_the_rubric_and_reads_points(model: str, prompts: str) -> None:
    p = plan("self_rewarding", model, prompts, task={"open": True})
    problem = p.task.problem("train", 0)
    judged = answer("There are 4.", problem)
    asked = show(p, "verifier", problem, judged)
    assert problem.text in asked and "There are 4." in asked and asked.endswith("\n\nScore: N/5") and "0 to 5" in asked
    value = p.roles["verifier"].parse("It is right.\n\n**Score: 4**", judged).value
    assert value.score == 0.8 and value.final is True and value.steps is None
    grader = p.roles["verifier"]
    assert isinstance(grader, Grader) and grader.parse(grader.write((), 3, ["Fine."]), judged).value.score == pytest.approx(0.6)


def test_rouge_by_hand() -> None:
    """The longest common subsequence of 'a b c d' and 'a x c d' has 3 words: 2 * 3 / (4 + 4)."""
    assert compute_rouge(["a", "b", "c", "d"], ["a", "x", "c", "d"]) == 0.75
    assert compute_rouge(["a", "b"], ["c", "d"]) == 0.0 == compute_rouge([], ["a"])
    assert compute_rouge(["a", "b"], ["b", "a"]) == 0.5


def test_new_prompts_that_repeat_an_old_one_or_cannot_be_answered_are_dropped() -> None:
    shown = ["How many apples does Ana have in all?"]
    assert is_usable("Why do leaves fall from trees in autumn?", shown, 0.7)
    for text in ("How many apples does Bo have in all?", "Why?", "Draw a tree with nine leaves.", "so " * 300, ""):
        assert not is_usable(text, shown, 0.7)


def test_a_turn_whose_new_prompts_are_all_dropped_learns_nothing(model: str, prompts: str, tmp_path: Path) -> None:
    options = {"prompts": "proposed", "most_similar": 1e-9, "gradings": 1}
    settings = settle("self_rewarding", model, prompts, {"options": options})
    milonga.run("self_rewarding", turns=1, out=tmp_path / "run", settings=settings, quiet=True)
    row = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()[1]
    assert "learn/generator/steps" not in row and row["rollouts/proposer/invalid_rate"] < 1


def test_a_file_of_graded_answers_is_the_seed(model: str, prompts: str, tmp_path: Path) -> None:
    rows = [{"question": f"Why {n}?", "response": "Because.", "score": n % 6, "grading": "Short."} for n in range(6)]
    seed = tmp_path / "graded.jsonl"
    seed.write_text("\n".join(map(json.dumps, rows)))
    options = {"seed_turns": 1, "seed_path": str(seed), "gradings": 1}
    settings = settle("self_rewarding", model, prompts, {"options": options})
    milonga.run("self_rewarding", turns=1, out=tmp_path / "run", settings=settings, quiet=True)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()
    assert rows[1]["learner"] == "verifier" and rows[1]["flow/demonstrations>generator"] == 1.0
    assert rows[1]["learn/generator/grad_norm"] > 0 and rows[1]["rollouts/verifier/invalid_rate"] == 0.0


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "Why?", "response": "So.", "score": 6}, "line 1: field 'score' is no number from 0 to 5"),
        ({"question": "Why?", "score": 3}, "line 1: field 'response' is not a text"),
        ({"question": "Why?", "response": "So.", "score": 3, "grading": 4}, "line 1: field 'grading' is not a text"),
    ],
)
def test_a_wrong_seed_is_one_line_that_says_where(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "graded.jsonl").write_text(json.dumps(row))
    with pytest.raises(DataError, match=words):
        read_graded(str(tmp_path / "graded.jsonl"), 5)


def test_a_seed_is_read_before_anything_is_loaded(model: str, prompts: str) -> None:
    free = {"task": {"open": True}}
    with pytest.raises(DataError, match="does not exist"):
        plan("self_rewarding", model, prompts, **free, options={"seed_turns": 1, "seed_path": "nowhere.jsonl"})
    with pytest.raises(ConfigError, match=r"set options\.seed_turns too"):
        plan("self_rewarding", model, prompts, **free, options={"seed_path": "nowhere.jsonl"})
    with pytest.raises(ConfigError, match="needs a model that writes prose"):
        resolve([{"recipe": "self_rewarding", "options": {"prompts": "proposed"}}])
    with pytest.raises(ConfigError, match="nobody knows the answers to proposed prompts"):
        plan("self_rewarding", model, prompts, **free, options={"prompts": "proposed", "judge": "oracle"})
    with pytest.raises(ConfigError, match="needs the exact truth of each step"):
        plan("self_rewarding", model, prompts, **free, options={"seed_turns": 1})


# Multi-Agent Evolve.


def test_a_judge_in_prose_gives_points_to_questions_and_answers(model: str, prompts: str) -> None:
    p = plan("multi_agent_evolve", model, prompts, task={"open": True})
    problem = p.task.problem("train", 0)
    question = Rollout.from_text("q", "proposer", problem, "", p.roles["proposer"].parse("Question: How many pears?"))
    judged, asked = answer("There are 4.", problem), show(p, "verifier", problem, question)
    assert "How many pears?" in asked and problem.text not in asked and "1, 2 or 3 points" in asked
    assert "There are 4." in show(p, "verifier", problem, judged)
    for target in (question, judged):
        value = p.roles["verifier"].parse("It is clear.\nScore: 10", target).value
        assert value.score == 1.0 and value.final is True


def test_rewards_follow_the_points_by_hand(model: str, prompts: str) -> None:
    """Q = 8/9, two answers of 3/9 and 5/9: Dif = 1 - 4/9; F = 1: (8/9 + 5/9 + 1) / 3."""
    p = plan("multi_agent_evolve", model, prompts, task={"open": True})
    asked = Rollout.from_text("q", "proposer", p.task.problem("train", 0), "", p.roles["proposer"].parse("Question: How many?"))
    probes = [replace(answer(f"{n}", pose_question(p.task, "How many?", "posed/q", "q")), id=f"a{n}") for n in range(2)]
    scores = {"q": [8 / 9], "a0": [3 / 9], "a1": [5 / 9]}
    assert isinstance(p.recipe, MultiAgentEvolve)
    (reward,) = p.recipe.compute_proposer_rewards(Rollouts([asked]), Rollouts(probes), scores)
    assert reward == pytest.approx((8 / 9 + 5 / 9 + 1) / 3)
    assert p.recipe.state["questions"] == [["How many?", "q"]], "0.89 passes the gate"
    loose = replace(asked, parsed=p.roles["proposer"].parse("How many are there?"))
    (lower,) = p.recipe.compute_proposer_rewards(Rollouts([loose]), Rollouts(probes), scores)
    assert lower == pytest.approx((8 / 9 + 5 / 9 + 0.5) / 3), "half the form"


def test_the_judge_is_paid_for_half_a_form_too(model: str, prompts: str) -> None:
    p = plan("multi_agent_evolve", model, prompts, task={"open": True})
    assert isinstance(p.recipe, MultiAgentEvolve)
    p.recipe.state["told"] = {}
    target = answer("4", p.task.problem("train", 0))
    for text, reward in (("Score: 4", 1.0), ("Score: 4\nScore: 5", 0.5), ("7/10", 0.5), ("fine", 0.0)):
        check = Rollout.from_text("c", "verifier", target.problem, text, p.roles["verifier"].parse(text, target))
        check.targets = (target,)
        assert p.recipe.compute_judge_reward(check) == reward


# ASL.


def test_a_reward_model_in_prose_ends_with_one_of_two_verdicts(model: str, prompts: str) -> None:
    p = plan("asl", model, prompts, task={"open": True})
    problem = p.task.problem("train", 0)
    judged = answer("There are 4.", problem)
    assert "There are 4." in show(p, "verifier", problem, judged)
    for text, final, form in (
        ("It is 4.\nFinal verdict: CORRECT", True, 1.0),
        ("So the answer is incorrect.", False, 0.5),
        ("Final verdict: CORRECT/INCORRECT", None, 0.0),
    ):
        parsed = p.roles["verifier"].parse(text, judged)
        assert (parsed.value.final, parsed.format) == (final, form)


def test_a_proposed_question_needs_words_an_answer_and_the_mark_that_the_old_one_has(model: str, tmp_path: Path) -> None:
    p = plan("asl", model, write_questions(tmp_path / "answers.jsonl"))
    ctx = Context(RunContext(make_engine(p), p.task, p.roles, p.agents, p.config.sampling, 0, 2), 1, "generator")
    old = make_proposer_request(p.task.problem("train", 0), harder=True)
    for text, taken in (
        ("Question: How many pears are there?\nSolution: So \\boxed{4}.", True),
        ("Question: Count all of the pears.\nSolution: So \\boxed{4}.", False),
        ("Question: How many?\nSolution: So \\boxed{4}.", False),
        ("Question: How many pears are there?", False),
    ):
        posed = proposal_to_problem(ctx, Rollout.from_text("q", "proposer", old, text, p.roles["proposer"].parse(text)))
        assert (posed is not None) == taken
        if posed is not None:
            attempt = restore_solution(ctx, posed, "It is \\boxed{4}.", "attempt")
            assert posed.answer == "4" and attempt.correct == 1.0, "by the claim"


@pytest.mark.parametrize(
    ("recipe", "settings", "words"),
    [
        ("asl", {"options": {"grm_label_source": "pg_answer"}}, "needs to know which answers are right"),
        ("asl", {"options": {"grm_label_source": "gold_mix"}}, "needs worked solutions"),
        ("asl", {"options": {"formats": 3}}, "set options.formats=0"),
        ("multi_agent_evolve", {"options": {"formats": 3}}, "set options.formats=0"),
        ("multi_agent_evolve", {"options": {"judge_label_frac": 0.5}}, "needs worked solutions"),
        ("self_taught_evaluators", {"options": {"checked": True}}, "needs to know which answers are right"),
        ("self_taught_evaluators", {"options": {"answers": "written"}}, "needs worked solutions"),
        ("self_taught_evaluators", {"options": {"negatives": "modified"}}, "changes what problems ask"),
        ("self_rewarding", {"options": {"judge": "oracle"}}, "needs to know which answers are right"),
    ],
)
def test_what_cannot_be_without_answers_is_one_line(
    recipe: str, settings: dict[str, Any], words: str, model: str, prompts: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(recipe, model, prompts, task={"open": True}, **settings)


@pytest.mark.parametrize("recipe", ["multi_agent_evolve", "asl"])
def test_tasks_that_nobody_could_pose_are_refused(recipe: str, model: str) -> None:
    with pytest.raises(ConfigError, match="works only with the tasks chain, gsm8k, jsonl, hub, not with 'code'"):
        resolve([{"recipe": recipe, "task": {"name": "code"}, "policies": {"generator": {"model": model}}}])


# Self-Taught Evaluators.


def test_the_rewriter_is_asked_for_another_question_and_the_judge_for_one_of_two(model: str, prompts: str) -> None:
    p = plan("self_taught_evaluators", model, prompts, task={"open": True})
    problem = p.task.problem("train", 0)
    assert show(p, "rewriter", problem).endswith(problem.text)
    good, bad = answer("Four apples.", problem), answer("Nine pears.", problem)
    for place in ("A", "B"):
        asked = show(p, "judge", problem, make_duel("pair", good, bad, place))  # type: ignore[arg-type]
        assert (asked.index("Four apples.") < asked.index("Nine pears.")) == (place == "A") and "[[A]]" in asked
    for text, verdict in (("[[B]]", "B"), ("A is better.", "A"), ("[[C]]", "tie"), ("Both.", None)):
        assert p.roles["judge"].parse(text, None).value.verdict == verdict


def test_a_rewritten_question_that_asks_the_same_makes_no_pair(model: str, prompts: str, tmp_path: Path) -> None:
    p = plan("self_taught_evaluators", model, prompts, task={"open": True})
    problems = p.task.draw_problems("train", 0, 3)
    texts = [f"Question: {problems[0].text.upper()}", "Question: How many pears?", ""]
    made = [
        replace(Rollout.from_text(f"r{n}", "rewriter", problem, text, p.roles["rewriter"].parse(text)))
        for n, (problem, text) in enumerate(zip(problems, texts, strict=True))
    ]
    ctx: Any = SimpleNamespace(task=p.task, ask=lambda agent, inputs, tag: Rollouts(made))
    found = rewrite_problems(ctx, problems)
    assert {id: one.text for id, one in found.items()} == {problems[1].id: "How many pears?"}


def test_a_construction_is_not_known_to_fail_without_the_truth() -> None:
    def built(good: bool | None, bad: bool | None) -> bool | None:
        return Built(make_rollout(1, 1, correct=good), make_rollout(1, 1, correct=bad)).construction_failed

    assert built(True, False) is False and built(False, False) is True and built(True, True) is True
    assert built(None, None) is None and built(True, None) is None
