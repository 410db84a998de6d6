"""Search self-play: rewards and baselines by hand, the rules and the reader, evidence from the log, the pool, who learns."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import milonga
from cases import QUICK
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.errors import ConfigError
from milonga.resolve import Plan, resolve
from milonga.roles import SearchProposer
from milonga.roles.searcher import make_parsed_problem
from milonga.runfolder.files import JsonLines
from milonga.systems.search_self_play.credit import question_reward, subtract_baseline
from milonga.systems.search_self_play.proposals import (
    Pool,
    Rules,
    add_noise_passages,
    compute_solve_rates,
    compute_turn_metrics,
    list_searches,
    list_seen_passages,
    make_problem,
    verify_by_model,
    verify_exactly,
)
from milonga.systems.search_self_play.recipe import SearchSelfPlay
from milonga.tasks import Search, assign_split, make_task
from milonga.tasks.graph import parse_edges
from milonga.types import SPLITS, Grade, Parsed, Part, Problem, Rollout, Rollouts, Solution
from scripted import QUICK as SCRIPTED
from scripted import make_chat_model, script_model
from short import SHORT, assert_resumes, short_loop

torch.set_num_threads(1)
SMALL = {"task": {"name": "search", "entities": 60, "relations": 5}}


def plan(**options: Any) -> Plan:
    return resolve([QUICK, {"recipe": "search_self_play", "options": options}, SMALL])


@cache
def engine() -> Any:
    return make_engine(plan())


def ctx(p: Plan, turn: int = 1) -> Context:
    return Context(RunContext(engine(), p.task, p.roles, p.agents, p.config.sampling, 0, 4), turn, "generator")


def recipe_of(p: Plan) -> SearchSelfPlay:
    assert isinstance(p.recipe, SearchSelfPlay)
    return p.recipe


def task_of(p: Plan) -> Search:
    assert isinstance(p.task, Search)
    return p.task


def talk(here: Context, target: str, *texts: str) -> Rollout:
    """A conversation of the proposer in which it says these texts; the tool answers its searches."""
    role, tool = here.run.roles["proposer"], here.run.task.tool
    assert tool is not None
    found = here.write("proposer", [Problem(f"target/{target}", target, "")], texts[:1])
    for before, text in pairwise(texts):
        call = role.parse_tool_call(before)
        said = role.render_tool_result(tool.answer(call)) if call is not None else (Part("-\n"),)
        found = here.write_reply("proposer", found, [said], [text])
    return found[0]


def walk(task: Search, relation: str, at: str) -> str:
    """Somebody's only partner."""
    (found,) = task.find_answers(f"{at} {relation}")
    return found


def good_way(task: Search, hops: int) -> tuple[str, list[str]]:
    """An answer, and what a proposer would say to come to a question of the train split with one answer."""
    for number in range(200):
        problem = task.at_level(hops).problem("train", number)
        start, *path = problem.text.split()
        at, way = start, []
        for relation in path:
            at = walk(task, relation, at) if len(task.find_answers(f"{at} {relation}")) == 1 else ""
            way.append(f"?{at} {relation}")
        if at == problem.answer:
            return at, [*reversed(way), f"!{problem.text}"]
    raise AssertionError("no such way")


# Rewards.


def test_rewards_by_hand() -> None:
    assert [question_reward(s, "one_minus") for s in (0.0, 0.4, 1.0)] == [1.0, 0.6, 0.0]
    assert [question_reward(s, "window") for s in (0.0, 0.5, 1.0)] == [0.0, 1.0, 0.0]
    assert question_reward(0.25, "window", low=0.1, high=0.9) == pytest.approx(4 * 0.35 * 0.65)
    assert question_reward(0.3, "constant") == 1.0


def test_the_best_question_is_an_unsolvable_one_unless_both_ends_earn_nothing() -> None:
    """The paper's trap: only the gate stands between the proposer and this optimum."""
    shares = np.linspace(0, 1, 11)
    assert np.argmax([question_reward(s, "one_minus") for s in shares]) == 0
    assert np.argmax([question_reward(s, "window") for s in shares]) == 5


def test_baselines_by_hand() -> None:
    rewards, groups = np.array([1.0, 0.0, 0.5, 0.5]), ["a", "a", "b", "b"]
    assert subtract_baseline(rewards, groups, "batch_mean").tolist() == [0.5, -0.5, 0.0, 0.0]
    assert subtract_baseline(np.array([1.0, 0.0, 1.5, 0.5]), groups, "group").tolist() == [0.5, -0.5, 0.5, -0.5]
    assert subtract_baseline(rewards, groups, "ema", 0.25).tolist() == [0.75, -0.25, 0.25, 0.25]
    # The trap: without one, nothing that earns at all is ever pushed down.
    assert subtract_baseline(rewards, groups, "none").min() == 0.0
    unknown = np.array([1.0, np.nan, 0.0])
    assert subtract_baseline(unknown, ["a"] * 3, "batch_mean").tolist() == [0.5, 0.0, -0.5]
    assert subtract_baseline(unknown, ["a"] * 3, "none").tolist() == [1.0, 0.0, 0.0]


def test_solve_rates_leave_out_what_nobody_could_grade() -> None:
    def solution(correct: bool | None, source: str | None) -> Rollout:
        made = Rollout.from_text(
            "s", "generator", Problem("p", "q", "a", source=source), "#a", Parsed(Solution((), (), "a"), 1.0)
        )
        return replace(made, grade=Grade(correct))

    tries = [(True, "x"), (False, "x"), (None, "x"), (False, "y"), (True, None)]
    assert compute_solve_rates(Rollouts(solution(*one) for one in tries)) == {"x": 0.5, "y": 0.0, None: 1.0}


# The gate.


def proposal(text: str, answer: str = "ann") -> Rollout:
    return Rollout.from_text("one", "proposer", Problem("target", answer, ""), text, SearchProposer("terse").parse(text))


@pytest.mark.parametrize(
    ("text", "searches", "seen", "why"),
    [
        ("tom ally", ["ann ally"], ["x"], "no question"),
        ("?ann ally", ["ann foe"], ["x"], "still searching"),
        ("!tom", ["ann ally"], ["x"], "too short or too long"),
        ("!" + "tom ally " * 120, ["ann ally"], ["x"], "too short or too long"),
        ("!Ann ally", ["ann ally"], ["x"], "the answer stands in it"),
        ("!tom ally", ["ann ally"], [], "nothing was found"),
        ("!tom ally", [], ["x"], "too few searches"),
        ("!tom ally", ["ann ally", "Ann  ALLY"], ["x"], "a search was repeated"),
        ("!tom ally", ["ann ally"], ["x"], "the answer was searched for"),
        ("!tom ally", ["bob ally"], ["x"], None),
        ("!joann ally", ["bob ally"], ["x"], None),  # whole words: a short answer is in many a word
    ],
)
def test_rules_in_order(text: str, searches: list[str], seen: list[str], why: str | None) -> None:
    assert Rules(2, 1, True).find_broken_rule(proposal(text), searches, seen) == why


def test_held_out_questions_are_never_posed_and_the_first_search_may_name_the_answer() -> None:
    p = plan(reader="none", unique=False)
    here, task = ctx(p), task_of(p)
    person = task.tool.passages[0].split()[0]
    verdicts = set()
    for n in range(40):
        passed, reasons = recipe_of(p).gate.filter_proposals(
            here, Rollouts([talk(here, person, f"?{person} ally", f"!to{n} ally")])
        )
        assert bool(passed) == (assign_split(f"to{n} ally") == "train")
        verdicts |= {*reasons.values()}
    assert verdicts == {"held-out question"}


def own_corpus(folder: Path) -> dict[str, str]:
    """A folder of texts and a file of questions about them."""
    (folder / "texts").mkdir()
    text = "Marrow Bridge was built by Clara Venn.\n\nClara Venn was born in Oakhaven.\n\nOakhaven lies at the sea.\n"
    (folder / "texts" / "bridge.txt").write_text(text, encoding="utf-8")
    answers = ("Oakhaven", "Clara Venn", "Marrow Bridge")
    rows = [json.dumps({"question": f"What is meant by number {n}?", "answer": answers[n % 3]}) for n in range(40)]
    (folder / "questions.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return {"name": "search", "path": str(folder / "texts"), "questions": str(folder / "questions.jsonl")}


def test_of_a_corpus_of_ones_own_only_questions_of_the_held_out_rows_are_held_out(tmp_path: Path) -> None:
    """They are split by another rule than those of the graph, whose hash would refuse a fifth of all questions."""
    task = make_task(own_corpus(tmp_path))
    assert isinstance(task, Search)
    assert {task.find_split(f"Who was born in town number {n}?") for n in range(60)} == {"train"}
    for split in SPLITS:
        assert task.find_split(f"  {task.problem(split, 0).text.upper()} ") == split


def test_evidence_comes_from_the_log_and_what_a_proposer_writes_is_none() -> None:
    p = plan()
    here, task = ctx(p), task_of(p)
    answer, way = good_way(task, 2)
    honest = talk(here, answer, *way)
    assert list_searches(here, honest) == [text[1:] for text in way[:-1]]
    assert list_seen_passages(here, honest) == list(dict.fromkeys(f for text in way[:-1] for f in task.tool.answer(text[1:])))
    # A fact of its own making: the turn cannot be read, and the fact is nowhere in the evidence.
    forged = talk(here, answer, f"{answer} ally zed\n!zed ally")
    assert not forged.parsed.is_valid and list_seen_passages(here, forged) == []
    passed, reasons = recipe_of(p).gate.filter_proposals(here, Rollouts([honest, forged]))
    assert [problem.text for problem in passed] == [way[-1][1:]] and reasons == {forged.id: "no question"}


def test_the_reader_wants_the_whole_way_and_noise_does_not_disturb_an_exact_one() -> None:
    p = plan()
    here, task = ctx(p), task_of(p)
    answer, way = good_way(task, 3)
    whole, skipped = talk(here, answer, *way), talk(here, answer, way[0], way[-1])
    assert [len(recipe_of(p).gate.filter_proposals(here, Rollouts([one]))[0]) for one in (whole, skipped)] == [1, 0]
    others = Rollouts([whole, *(talk(here, *good_talk) for good_talk in [(a, *w) for a, w in [good_way(task, 1)]])])
    shown = add_noise_passages(here, others, 4)
    own = list_seen_passages(here, whole)
    assert len(shown[0]) == len({*shown[0]}) == len(own) + min(4, len({*list_seen_passages(here, others[1])} - {*own}))
    assert {*own} < {*shown[0]} and shown == add_noise_passages(here, others, 4)
    assert verify_exactly(task, [make_problem(whole)], [shown[0]]) == [True]


def test_a_question_with_a_second_answer_passes_only_without_the_test_of_uniqueness() -> None:
    p = resolve([QUICK, {"recipe": "search_self_play"}, SMALL, {"task": {"extra": 0.6}}])
    task, here = task_of(p), ctx(p)
    graph = task.graph
    assert graph is not None
    edges = parse_edges(graph.facts)
    twofold = next(
        (start, relation, sorted(ends)[0])
        for (start, relation), ends in edges.items()
        if len(ends) > 1 and assign_split(f"{start} {relation}") == "train"
        and f"{start} {relation} {min(ends)}" in task.tool.answer(f"{min(ends)} {relation}")
    )  # fmt: skip
    start, relation, end = twofold
    one = talk(here, end, f"?{end} {relation}", f"!{start} {relation}")
    strict, lax = recipe_of(p), recipe_of(plan(unique=False))
    assert strict.gate.filter_proposals(here, Rollouts([one]))[1] == {one.id: "it has another answer"}
    assert [problem.answer for problem in lax.gate.filter_proposals(here, Rollouts([one]))[0]] == [end]


def test_without_a_reader_wrong_questions_pass() -> None:
    p = plan(reader="none", unique=False)
    here, task = ctx(p), task_of(p)
    answer, way = good_way(task, 1)
    wrong = next(
        question
        for relation in task.graph.relations  # type: ignore[union-attr]
        if answer not in task.find_answers(question := f"{way[-1].split()[0][1:]} {relation}")
        and assign_split(question) == "train"
    )
    lie = talk(here, answer, way[0], f"!{wrong}")
    assert recipe_of(plan()).gate.filter_proposals(here, Rollouts([lie]))[1] == {lie.id: "the reader does not find the answer"}
    assert [problem.text for problem in recipe_of(p).gate.filter_proposals(here, Rollouts([lie]))[0]] == [wrong]


def test_a_model_may_be_the_reader_and_what_it_answers_decides() -> None:
    """The embedded one cannot find answers among passages: what it does answer is taken for the proposer's own here."""
    p = plan(reader="model")
    problems = [replace(task_of(p).at_level(1).problem("train", n), id=f"r/{n}") for n in range(12)]
    shown = [[*task_of(p).tool.answer(problem.text), *task_of(p).tool.passages[:4]] for problem in problems]
    asked = [make_parsed_problem(problem.id, problem.text, "", some) for problem, some in zip(problems, shown, strict=True)]
    read = ctx(p).ask("reader", asked, tag="ref", temperature=0.5)
    said = [rollout.parsed.value.answer for rollout in read]
    assert {rollout.temperature for rollout in read} == {0.5} and not any(rollout.mask.any() for rollout in read)
    assert sum(answer is not None for answer in said) > 6
    claimed = [replace(problem, answer=answer or "?") for problem, answer in zip(problems, said, strict=True)]
    assert verify_by_model(ctx(p), claimed, shown, 0.5) == [answer is not None for answer in said]
    others = [replace(problem, answer="nobody") for problem in problems]
    assert not any(verify_by_model(ctx(p), others, shown, 0.5)) and verify_by_model(ctx(p), [], [], 0.5) == []


def test_an_exact_reader_knows_the_graph_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Paris is in France.", encoding="utf-8")
    rows = "\n".join(f'{{"question": "Where is {n}?", "answer": "France"}}' for n in range(40))
    (tmp_path / "q.jsonl").write_text(rows, encoding="utf-8")
    own = {"name": "search", "path": str(tmp_path), "questions": str(tmp_path / "q.jsonl")}
    p = resolve([QUICK, {"recipe": "search_self_play", "options": {"measured": 2}}, {"task": own}])
    here = ctx(p)
    assert recipe_of(p).measure(here)["proposer/wrong"] is None
    with pytest.raises(ConfigError, match="use 'model'"):
        resolve([QUICK, {"recipe": "search_self_play", "options": {"reader": "exact"}}, {"task": own}])


# The pool.


def test_the_pool_keeps_each_question_once_and_forgets_gradually() -> None:
    pool = Pool({}, age=3)
    for turn, text, solved in ((1, "a x", 0.2), (2, "b x", 1.0), (2, "a x", 0.6), (4, "c x", 0.0)):
        pool.admit(turn, Problem("p", text, "z"), solved)
    assert [row[1] for row in pool.state["pool"]] == ["b x", "a x", "c x"]
    here = ctx(plan())
    assert {p.text for p in pool.draw(here, 9, below=0.5)} == {"c x"}
    assert len({p.text for p in pool.draw(here, 2, below=1.0)}) == 2
    pool.admit(5, Problem("p", "d x", "z"), 0.0)
    assert [row[1] for row in pool.state["pool"]] == ["c x", "d x"]


@pytest.mark.parametrize("fill", ["drop", "reuse", "resample"])
def test_what_takes_the_place_of_a_question_that_does_not_pass(fill: str) -> None:
    p = plan(fill=fill)
    here, recipe = ctx(p), recipe_of(p)
    recipe.state["pool"] = [[0, f"old{n} ally", "ann", 0.5] for n in range(9)]
    rollouts = recipe.rollout(here)
    proposals = rollouts.of("proposer")
    failed = sum(recipe.state["rejected"].values())
    reused = {t.problem.text for t in rollouts if t.problem.id.startswith("reused/")}
    assert failed and len(reused) == (failed if fill == "reuse" else 0)
    assert len(proposals) == 4 + (failed if fill == "resample" else 0)
    solutions = rollouts.of("generator")
    found = compute_turn_metrics(proposals, solutions, compute_solve_rates(solutions))
    assert found["valid"] == len({t.problem.source for t in solutions} - {None}) / len(proposals)
    assert (found["reused"] > 0) == (fill == "reuse")


# Who learns.


def test_the_proposer_learns_first_and_from_what_the_solver_fails_at(tmp_path: Path) -> None:
    with short_loop("search_self_play", tmp_path, {"binding": "own"}) as loop:
        here = Context(loop.run_context, 1, "generator")
        rollouts = loop.recipe.rollout(here)
        proposals, train_batch = loop.recipe.credit(here, rollouts)
    assert (proposals.policy, train_batch.policy) == ("proposer", "generator")
    assert proposals.sources == {"generator": 1.0} and train_batch.sources == {"answers": 1.0}
    rates = compute_solve_rates(train_batch.rollouts)
    paid = np.array([1 - rates[t.id] if t.id in rates else 0.0 for t in proposals.rollouts])
    for rollout, advantage, reward in zip(proposals.rollouts, proposals.advantages or [], paid, strict=True):
        assert np.allclose(advantage, (reward - paid.mean()) * rollout.mask)
    assert {t.problem.source for t in train_batch.rollouts} <= {t.id for t in proposals.rollouts}
    answers = {t.id: t.problem.text for t in proposals.rollouts}
    assert all(t.problem.answer == answers[t.problem.source or ""] for t in train_batch.rollouts)


@pytest.mark.parametrize(("train", "learner"), [("solver", "generator"), ("proposer", "proposer")])
def test_who_does_not_learn_plays_as_it_was_at_the_start(train: str, learner: str, tmp_path: Path) -> None:
    settings = {"binding": "own", "options": SHORT["search_self_play"].options | {"train": train}}
    with short_loop("search_self_play", tmp_path, settings) as loop:
        here = Context(loop.run_context, 1, "generator")
        rollouts = loop.recipe.rollout(here)
        train_batches = list(loop.recipe.credit(here, rollouts))
    assert [train_batch.policy for train_batch in train_batches] == [learner]
    assert {t.agent for t in rollouts if t.length} == {learner}


def test_it_resumes_to_the_same_bits(tmp_path: Path) -> None:
    assert_resumes("search_self_play", tmp_path, after=1)


def test_a_baseline_within_a_group_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="proposals=2 or more"):
        plan(baseline="group")
    assert plan(baseline="group", proposals=2)


# In prose.


def test_thresholds_of_the_miniature_are_the_embedded_models_alone(tmp_path: Path) -> None:
    model, own = make_chat_model(tmp_path / "model"), own_corpus(tmp_path)
    real = {"recipe": "search_self_play", "task": own, "policies": {"generator": {"model": model}}}
    found = [resolve([layers]).config.options for layers in ({"recipe": "search_self_play"}, real, real | {"published": True})]
    assert [(o["min_words"], o["min_searches"], o["reader_temperature"]) for o in found] == [
        (2, 1, 0.1),
        (6, 1, 0.1),
        (10, 2, 0.1),
    ]


def test_two_turns_on_a_folder_of_texts_move_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proposer searches and asks; the reader, at its own temperature, finds the answer; of two solvers one does."""

    def says(so_far: str, number: int) -> str:
        if "look for a question" in so_far:
            asked = f"QUESTION: Where was the engineer of the bridge that number {number} stands on born?"
            return asked if "RESULTS:" in so_far else "Let me look.\n**SEARCH:** Clara Venn Oakhaven"
        if "documents below alone" in so_far:
            return "They say that Clara Venn was born there.\nANSWER: Oakhaven"
        found = "ANSWER: Oakhaven" if number % 2 else "ANSWER: Paris"
        return found if "RESULTS:" in so_far else "SEARCH: engineer of the bridge born"

    seen = script_model(monkeypatch, says)
    settings = SCRIPTED | {"task": own_corpus(tmp_path), "options": {"measured": 2}, "policies": {"generator": {"lr": 1e-2}}}
    model, out = make_chat_model(tmp_path / "model"), tmp_path / "run"
    milonga.run("search_self_play", model=model, problems=3, rollouts=2, turns=2, out=out, settings=settings, quiet=True)
    rows = JsonLines(out / "metrics.jsonl").rows()[1:]
    assert len(rows) == 2 and all(row["learn/generator/grad_norm"] > 0 for row in rows)
    assert all(0 < row["credit/generator/valid"] < 1 for row in rows), "one answer of three is the reader's"
    assert any("RESULTS:\n[1] Clara Venn was born in Oakhaven." in text for text in seen)
    assert not any("no more" in text for text in seen), "one search of four"
    after, before = (load_file(next(Path(folder).rglob("model.safetensors"))) for folder in (out / "models", model))
    assert any(not torch.equal(after[name], before[name]) for name in before)
