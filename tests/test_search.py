"""The task `search`: its made-up graph, retrieval, folders of text, the roles that search, and a tool within a conversation."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import milonga
from cases import QUICK
from helpers import GRAMMARS, PROPERTY, Command, check_growth
from milonga.api import make_engine
from milonga.context import TOOL, Context, RunContext
from milonga.errors import ConfigError, DataError
from milonga.randomness import keyed_rng
from milonga.resolve import Plan, resolve
from milonga.roles import Dialect, Searcher, SearchProposer, SearchReader, StepSolver, adapt_roles_to_tool
from milonga.roles.proposer import Proposal
from milonga.roles.searcher import (
    ANSWER,
    QUESTION,
    SEARCH,
    Condenser,
    SearchPlanner,
    make_parsed_problem,
    parse_prose_end,
    parse_turn,
    write_turn,
)
from milonga.roles.solver import LOOSE_FORMAT
from milonga.roles.templates import PromptTemplate
from milonga.runfolder.files import JsonLines
from milonga.systems.search_self_play.demonstrations import demonstrate_proposal, demonstrate_search, make_reader_example
from milonga.tasks import Search, make_task
from milonga.tasks.graph import Graph, follow_path, parse_edges
from milonga.tasks.retrieval import LONGEST, Retrieval, read_folder, split_paragraph
from milonga.tasks.search import SearchOptions, mentions_answer, normalise_answer
from milonga.types import SPLITS, Problem, Rollout, Rollouts, Solution

torch.set_num_threads(1)
FACTS = ("tom ally ann", "ann ally tom", "ann foe bob", "bob foe ann", "ann foe eve", "eve foe ann")


@cache
def task(**options: Any) -> Search:
    return Search(SearchOptions(entities=60, relations=5, **options))


# The graph and its questions.


def test_in_every_relation_everybody_has_one_partner_and_it_is_said_both_ways() -> None:
    graph = Graph(40, 4, 0.0, seed=3)
    assert len(graph.facts) == len(set(graph.facts)) == 4 * 40
    for entity in graph.entities:
        for relation in graph.relations:
            (partner,) = graph.edges[entity, relation]
            assert partner != entity and graph.edges[partner, relation] == {entity}
    assert Graph(40, 4, 0.0, seed=3).facts == graph.facts != Graph(40, 4, 0.0, seed=4).facts
    assert any(len(ends) > 1 for ends in Graph(40, 4, 0.5, seed=3).edges.values())


def test_answers_by_hand() -> None:
    edges = parse_edges([*FACTS, "no fact at all", "two words"])
    assert follow_path(edges, "tom ally") == {"ann"} and follow_path(edges, "tom ally foe") == {"bob", "eve"}
    for nothing in ("tom", "", "tom foe", "tom ally ally ally foe mate", "zed ally", "tom  ally"):
        assert follow_path(edges, nothing) == frozenset()


def test_problems_have_one_answer_that_is_not_said_and_splits_are_disjoint() -> None:
    texts: dict[str, set[str]] = {}
    for split in SPLITS:
        problems = task().draw_problems(split, 0, 60)
        assert problems == task().draw_problems(split, 0, 60)
        assert all(task().find_answers(p.text) == {p.answer} and p.answer not in p.text.split() for p in problems)
        assert {task().count_hops(p.text) for p in problems} == {1, 2, 3}
        texts[split] = {p.text for p in problems}
    assert not texts["train"] & texts["dev"] and not texts["train"] & texts["test"] and not texts["dev"] & texts["test"]


def test_levels_are_hops_over_the_same_corpus() -> None:
    assert task().levels == (1, 2, 3)
    two, more = task().at_level(2), task().make_harder()
    assert isinstance(two, Search) and isinstance(more, Search) and two.tool is task().tool
    assert {task().count_hops(p.text) for p in two.draw_problems("train", 0, 20)} == {2}
    assert {task().count_hops(p.text) for p in more.draw_problems("dev", 0, 20)} == {4}  # no more than there are searches


def test_a_graph_without_a_single_answer_and_wrong_options_are_refused() -> None:
    with pytest.raises(DataError, match="lower task"):
        Search(SearchOptions(entities=10, relations=2, extra=1.0, hops=8, min_hops=8)).problem("train", 0)
    for wrong, why in (({"min_hops": 4}, "larger than hops"), ({"entities": 11}, "in pairs"), ({"path": "."}, "needs both")):
        with pytest.raises(ConfigError, match=why):
            make_task({"name": "search", **wrong})


# Answers.


def test_answers_are_compared_as_usual_and_leaks_are_found_by_words() -> None:
    assert normalise_answer(" The  Eiffel-Tower!") == normalise_answer("eiffeltower") != normalise_answer("eiffel")
    problem = Problem("p", "q", "The Hague")
    assert task().grade(problem, "hague", ()).correct and not task().grade(problem, None, ()).correct
    assert task().group_equal_answers(["The Hague", None, "hague", "Delft"]) == [0, None, 0, 1]
    assert mentions_answer("who met Ann-Marie there", "ann marie") and not mentions_answer("the party", "art")
    assert not mentions_answer("marie ann", "ann marie") and not mentions_answer("anything", "")


# Retrieval.


def test_what_shares_most_and_rarest_words_comes_first_and_what_shares_none_never_comes() -> None:
    tool = Retrieval(["the red fox", "the old fox", "a blue whale", "the the the"], top=3, calls=1)
    assert tool.answer("red FOX") == ("the red fox", "the old fox")
    assert tool.answer("whale, blue?") == ("a blue whale",)
    assert tool.answer("zebra") == tool.answer("") == tool.answer("?!") == ()
    # Alike in everything: the order of the passages decides.
    assert Retrieval(["x b", "x a", "x c"], top=2, calls=1).answer("x") == ("x b", "x a")


def test_every_hop_of_a_question_can_be_found() -> None:
    plainest = task(extra=0.0)
    for problem in plainest.draw_problems("dev", 0, 40):
        at, *path = problem.text.split()
        for relation in path:
            assert f"{at} {relation} " in "|".join(plainest.tool.answer(f"{at} {relation}"))
            (at,) = plainest.derive_answers(f"{at} {relation}", plainest.tool.answer(f"{at} {relation}"))
        assert at == problem.answer


# Folders.


def corpus(folder: Path) -> dict[str, Any]:
    (folder / "texts" / "deep").mkdir(parents=True)
    (folder / "texts" / "one.txt").write_text("Paris is the capital\nof France.\n\n\nRome lies in Italy.\n", encoding="utf-8")
    (folder / "texts" / "deep" / "two.md").write_text("Oslo lies in Norway.", encoding="utf-8")
    (folder / "texts" / "three.pdf").write_bytes(b"\xff")
    rows = [f'{{"question": "What number {n}?", "answer": "number {n}"}}' for n in range(60)]
    (folder / "questions.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return {"name": "search", "path": str(folder / "texts"), "questions": str(folder / "questions.jsonl")}


def test_any_folder_of_text_is_a_corpus(tmp_path: Path) -> None:
    made = make_task(corpus(tmp_path))
    assert isinstance(made, Search) and not made.exact and made.levels == () and made.make_harder() is None
    assert set(made.tool.passages) == {"Paris is the capital of France.", "Rome lies in Italy.", "Oslo lies in Norway."}
    assert made.tool.answer("capital of france")[0] == "Paris is the capital of France."
    sizes = made.describe()["sizes"]
    assert sum(sizes.values()) == 60 and all(sizes[split] == made.size(split) > 0 for split in SPLITS)
    assert made.problem("train", 0) == made.problem("train", sizes["train"])
    assert made.problem("dev", 0).answer == made.problem("dev", 0).text[5:-1]


def test_long_paragraphs_are_cut_between_words_and_nothing_is_lost() -> None:
    text = " ".join(["word"] * 500)
    assert all(len(piece) <= LONGEST for piece in split_paragraph(text)) and " ".join(split_paragraph(text)) == text
    assert "".join(split_paragraph("x" * 2500)) == "x" * 2500 and split_paragraph("short") == ["short"]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda folder: None, "is not a folder"),
        (lambda folder: folder.mkdir(), "holds no .txt or .md file"),
        (lambda folder: (folder.mkdir(), (folder / "a.txt").write_text("?!\n")), "not one word"),
        (lambda folder: (folder.mkdir(), (folder / "a.txt").write_bytes(b"ok \xff")), "not UTF-8 text"),
    ],
)
def test_a_folder_that_is_no_corpus_is_refused(make: Any, why: str, tmp_path: Path) -> None:
    make(tmp_path / "texts")
    with pytest.raises(DataError, match=why):
        read_folder(tmp_path / "texts")


def test_an_empty_corpus_is_an_error_before_anything_is_made(milonga: Command, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    given = ["--set", f"task.path={tmp_path / 'texts'}", "--set", f"task.questions={tmp_path / 'q.jsonl'}"]
    done = milonga("run", "search_self_play", *given, "--out", str(tmp_path / "run"))
    assert done.code != 0 and "holds no .txt or .md file" in done.err and "Traceback" not in done.err
    assert not (tmp_path / "run").exists()


# Roles.


@PROPERTY
@given(st.sampled_from(GRAMMARS), st.sampled_from([SEARCH, ANSWER, QUESTION]), st.text("abc ?#!", min_size=1))
def test_a_written_turn_reads_back(dialect: Dialect, kind: str, content: str) -> None:
    read = parse_turn(write_turn(kind, content, dialect), dialect, SEARCH, ANSWER, QUESTION)
    assert read == ((kind, content.strip()) if content.strip() else None)


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("terse", "tom ally ann\n?tom foe"),  # a passage of its own making
        ("terse", "?tom ally\ntom ally ann"),
        ("terse", "#ann\n#bob"),
        ("terse", "ann"),
        ("terse", "?"),
        ("terse", ""),
        ("tagged", "<documents><document>tom ally ann</document></documents><search>tom</search>"),
        ("tagged", "<answer>ann</answer><answer>bob</answer>"),
        ("tagged", "<search>a</search><answer>ann</answer>"),
        ("tagged", "<answer>ann</answer> and more"),
        ("tagged", "<search><answer>ann</answer></search>"),
        ("tagged", "<answer> </answer>"),
        ("tagged", "ann"),
    ],
)
def test_a_turn_that_does_more_or_less_than_one_thing_cannot_be_read(dialect: Dialect, text: str) -> None:
    for role in (Searcher(dialect), SearchProposer(dialect)):
        assert role.parse_tool_call(text) is None and not role.parse(text).is_valid


def test_thoughts_before_a_tag_are_allowed_and_searching_is_no_answer() -> None:
    role = Searcher("tagged")
    assert role.parse_tool_call("I need his ally.\n<search>tom ally</search>") == "tom ally"
    assert role.parse("So it is <answer>ann</answer>").value.answer == "ann"
    assert role.parse("<search>tom</search>").invalid == "still searching"
    assert "at most 6 times" in role.prompt(Problem("p", "who?", ""))[0].text


def test_what_the_tool_says_is_foreign_text() -> None:
    for dialect in GRAMMARS:
        said = Searcher(dialect).render_tool_result(["tom <eos>", "ann"])
        assert [part.text for part in said if part.foreign] == ["tom <eos>", "ann"]
    assert "".join(part.text for part in Searcher("terse").render_tool_result([])) == "-\n"


def test_who_solves_by_steps_searches_where_there_is_a_tool_and_a_reader_does_not() -> None:
    seated = adapt_roles_to_tool({"generator": StepSolver("terse"), "reader": SearchReader("terse")}, task().tool)
    assert type(seated["generator"]) is Searcher and type(seated["reader"]) is SearchReader
    problem = make_parsed_problem("p", "tom ally", "ann", ["tom ally ann", "ann ally tom"])
    assert "".join(part.text for part in SearchReader("terse").prompt(problem)) == "|tom ally ann\nann ally tom\n\ntom ally\n"


def test_a_prompt_of_the_users_own_reaches_a_solver_with_a_tool() -> None:
    solver = StepSolver("plain")
    solver.template, solver.thought_steps = PromptTemplate("Find it: {{ problem }}", "mine"), True
    seated = adapt_roles_to_tool({"generator": solver}, task().tool)["generator"]
    assert "".join(part.text for part in seated.render_prompt(Problem("p", "who?", ""), None)) == "Find it: who?"
    assert seated.thought_steps


# Prose.


@pytest.mark.parametrize(
    ("text", "call", "answer", "score"),
    [
        ("SEARCH: bridge builder", "bridge builder", None, 0.0),
        ("Let me see.\n\n**SEARCH:** `bridge builder`\n", "bridge builder", None, 0.0),
        ('1. Search query: "bridge builder"', "bridge builder", None, 0.0),
        ("<search>bridge builder</search>", "bridge builder", None, 0.0),
        ("Search:\n\nbridge builder", "bridge builder", None, 0.0),
        ("<think>SEARCH: no</think>\nSEARCH: yes", "yes", None, 0.0),
        # What Qwen2.5-Coder-0.5B-Instruct wrote.
        (
            "SEARCH: height of the Eiffel Tower\nTHE documents that fit best are then shown to you.",
            "height of the Eiffel Tower",
            None,
            0.0,
        ),
        ("SEARCH:_HEIGHT of Brieg's lighthouse\nQUESTION: How tall is it?", "HEIGHT of Brieg's lighthouse", None, 0.0),
        ("SEARCH: bridge\nRESULTS:\n[1] It says Venn.\nANSWER: Venn", "bridge", "Venn", 0.5),
        ("ANSWER: Clara Venn", None, "Clara Venn", 1.0),
        ("She built it.\n\n**Final answer:** Clara Venn\n", None, "Clara Venn", 1.0),
        ("ANSWER: \\boxed{Clara Venn}", None, "Clara Venn", 1.0),
        ("<answer>Clara Venn</answer>", None, "Clara Venn", 1.0),
        ("ANSWER: Venn\nSEARCH: more", None, "Venn", 0.5),
        ("So it must be \\boxed{Clara Venn}.", None, "Clara Venn", 0.5),
        ("The answer to the question is Clara Venn", None, "Clara Venn", 0.5),
        ("ANSWER:", None, None, 0.0),
        ("I have no idea.", None, None, 0.0),
        ("", None, None, 0.0),
    ],
)
def test_searches_and_answers_are_read_in_prose(text: str, call: str | None, answer: str | None, score: float) -> None:
    role = Searcher("plain")
    parsed = role.parse(text)
    assert (role.parse_tool_call(text), parsed.get(Solution).answer, parsed.format) == (call, answer, score)
    assert parsed.is_valid == (answer is not None)


def test_questions_are_read_in_prose_and_an_echo_of_the_answer_is_none() -> None:
    role = SearchProposer("plain")
    said = "Answer: Clara Venn\n\n**QUESTION:** Who built the bridge over the Ilse?"
    assert role.parse(said).get(Proposal).question == "Who built the bridge over the Ilse?" and role.parse(said).format == 1
    assert role.parse("SEARCH: Clara Venn").invalid == "still searching"
    real = "Search: How high is the Eiffel Tower\n\nQUESTION: How high is the Eiffel Tower?"  # of a model of 0.5B
    assert role.parse_tool_call(real) == "How high is the Eiffel Tower" and role.parse(real).format == 0.5
    assert role.parse("I could ask who built it.").invalid == "no question"
    shown = "".join(part.text for part in role.render_tool_result(["one", "two"]))
    assert shown.startswith("RESULTS:\n[1] one\n[2] two\n") and shown.endswith(
        "or it begins with QUESTION: and asks a question whose answer is the given one."
    )
    last = "".join(part.text for part in role.render_tool_result([], is_last=True))
    over = "RESULTS:\nNothing was found.\n\nSearching is over. Now write the one line that begins with QUESTION: and asks"
    assert last.startswith(over) and "SEARCH:" not in last
    end = "".join(part.text for part in Searcher("plain").render_tool_result([], is_last=True))
    assert end.endswith("Searching is over. Now write the one line that begins with ANSWER: and gives the answer.")
    asked = "".join(part.text for part in role.prompt(Problem("p", "Clara Venn", "")))
    assert asked.endswith("The given answer: Clara Venn\n\nBegin with one SEARCH: line.") and "stop after it" in asked


def test_a_reader_of_prose_sees_numbered_passages_and_says_an_answer() -> None:
    role = SearchReader("plain")
    asked = "".join(part.text for part in role.prompt(make_parsed_problem("p", "Who?", "Ann", ["one", "two"])))
    assert asked.endswith("Documents:\n[1] one\n[2] two\n\nQuestion: Who?\n")
    assert role.parse("Ann did it.\nANSWER: Ann").get(Solution).answer == "Ann" and not role.parse("Ann did it.").is_valid


@PROPERTY
@given(st.text("SEARCHanswer:<>*\n `\\{}x", max_size=60))
def test_no_text_breaks_the_readers_of_prose(text: str) -> None:
    for role in (Searcher("plain"), SearchProposer("plain"), SearchReader("plain"), SearchPlanner("plain"), Condenser("plain")):
        parsed = role.parse(text)
        assert 0 <= parsed.format <= 1 and (role.parse_tool_call(text) or "x").strip()


def test_a_teacher_without_slips_is_right() -> None:
    made, rng = task(extra=0.0), keyed_rng("teacher")
    for problem in made.draw_problems("train", 0, 20):
        talk = demonstrate_search(made, problem, Searcher("terse"), rng, 0.0)
        assert talk.turns[-1][0] == f"#{problem.answer}" and len(talk.turns) == made.count_hops(problem.text) + 1
        question = demonstrate_proposal(made, Problem("t", problem.answer, ""), SearchProposer("terse"), rng, 0.0).turns[-1][0]
        assert question[0] == QUESTION and made.find_answers(question[1:]) == {problem.answer}
        read = make_reader_example(made, problem, SearchReader("terse"), rng, 0.0, 4)
        assert SearchReader("terse").parse(read.completion).value.answer == problem.answer


# A tool within a conversation.


def plan(**settings: Any) -> Plan:
    small = {"task": {"name": "search", "entities": 60, "relations": 5}, "batch": {"problems": 4, "rollouts": 4}}
    return resolve([QUICK, {"recipe": "grpo"}, small, settings])


@cache
def engine() -> Any:
    return make_engine(plan())


def ctx(**settings: Any) -> Context:
    p = plan(**settings)
    return Context(RunContext(engine(), p.task, p.roles, p.agents, p.config.sampling, 0, 4), 1, "generator")


def spelt(rollout: Rollout) -> list[tuple[str, str]]:
    codec = engine().policy("generator").codec
    return [(s.producer, codec.decode_ids(rollout.ids[s.start : s.end].tolist())) for s in rollout.segments]


def test_calls_are_answered_in_the_conversation_and_only_own_turns_are_trained() -> None:
    here = ctx()
    solutions = here.ask("generator", here.problems(), 4)
    tool, role = here.run.task.tool, here.run.roles["generator"]
    assert tool is not None and len(solutions) == 16
    assert [t.problem.id for t in solutions] == [p.id for p in here.run.task.draw_problems("train", 0, 4) for _ in range(4)]
    searched = [t for t in solutions if len(t.turn_spans) > 1]
    assert searched, "the embedded model searches"
    for rollout in searched:
        said = spelt(rollout)
        assert said[0] == ("prompt", f">{rollout.problem.text}\n")
        assert [who for who, _ in said[1:]] == ["generator", *[TOOL, "generator"] * (len(rollout.turn_spans) - 1)]
        for (_, call), (_, answer) in zip(said[1:-1:2], said[2:-1:2], strict=True):
            query = role.parse_tool_call(call.removesuffix("<eos>"))
            assert query is not None
            assert answer == "".join(part.text for part in role.render_tool_result(tool.answer(query)))
        assert all(s.trained == (s.producer == "generator") for s in rollout.segments)
        assert rollout.grade is not None and rollout.grade.correct == (rollout.parsed.value.answer == rollout.problem.answer)
    # Law 6: what was sampled, turn by turn, has the same log-probabilities in one fresh pass.
    fresh = engine().score("generator", solutions, "live")
    assert all(np.allclose(a.logprobs, b, atol=1e-5) for a, b in zip(solutions, fresh, strict=True))


def test_the_same_keys_give_the_same_conversations() -> None:
    one, other = (here.ask("generator", here.problems(), 2) for here in (ctx(), ctx()))
    assert [t.ids.tolist() for t in one] == [t.ids.tolist() for t in other]


def test_nobody_calls_more_often_than_allowed() -> None:
    here = ctx(task={"name": "search", "entities": 60, "relations": 5, "calls": 1, "min_hops": 3})
    solutions = here.ask("generator", here.problems(), 4)
    assert max(len(t.turn_spans) for t in solutions) == 2
    assert any(t.parsed.invalid == "still searching" for t in solutions)


def test_a_conversation_without_room_stays_where_it_is_and_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ctx()
    monkeypatch.setattr(type(engine()), "context_limit", lambda self, policy: 45)
    solutions = here.ask("generator", here.problems(), 4)
    stuck = [t for t in solutions if t.parsed.invalid == "still searching"]
    assert len(solutions) == 16 and stuck and sum(here.dropped.values()) == len(stuck)
    assert Rollouts(stuck).correct.sum() == 0


def test_grpo_searches_and_recipes_that_cannot_follow_a_tool_refuse(tmp_path: Path) -> None:
    small = {"task": {"name": "search", "entities": 60, "relations": 5}, "batch": {"problems": 4, "rollouts": 4}}
    settings = QUICK | small | {"eval": QUICK["eval"] | {"problems": 4, "samples": 2}}
    milonga.run("grpo", turns=1, out=tmp_path / "run", settings=settings, quiet=True)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()
    assert rows[1]["learn/generator/grad_norm"] > 0 and rows[1]["learn/generator/mismatch"] < 1e-5
    with pytest.raises(ConfigError, match=r"cannot follow a solver that calls a tool.*grpo, mars, search_self_play"):
        resolve([{"recipe": "tango", "task": "search"}])


def test_an_answer_in_a_sentence_is_read_in_time_that_grows_with_the_text() -> None:
    assert parse_prose_end("The answer to it  is:  Rome", ANSWER) == ("Rome", LOOSE_FORMAT)
    for before, piece in (("answer is", " "), ("answer to", " "), ("answer", "\n")):
        check_growth(lambda text: parse_prose_end(text, ANSWER), piece, before)
