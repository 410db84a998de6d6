"""Problems and solutions from files: answers with scores, verdicts with probabilities, and mistakes as one line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY, Command
from milonga.errors import ConfigError, DataError
from milonga.evals.evaluate import ranking_metrics, score_vote
from milonga.pair import Pair, Verdict
from milonga.tasks.foreign import make_foreign_problem
from milonga.types import Grade, Parsed, Rollout, Rollouts, Solution, Verification
from milonga.using.answers import RANKS, Candidate, Cuts, Rank, answer_to_json, choose_answer, verdict_to_json
from milonga.using.items import ProblemItem, SolutionItem, find_problem_fields, read_items, validate_item

PROBLEM = make_foreign_problem("p", "3+4*5%100", "35")


def candidate(number: int, answer: str | None, *verdicts: bool) -> Candidate:
    """A solution with an answer; judged, if verdicts are given, once for each."""
    parsed = Parsed(Solution(("s",), (1,), answer), 1.0)
    solution = Rollout.from_text(f"s{number}", "generator", PROBLEM, "", parsed, Grade(answer == "35"))
    checks = [
        replace(
            Rollout.from_text(f"c{number}{i}", "verifier", PROBLEM, "", Parsed(Verification((v,), v), 1.0)), targets=(solution,)
        )
        for i, v in enumerate(verdicts)
    ]
    return Candidate(solution, Verdict(solution, tuple(checks)) if verdicts else None)


def candidates(*told: tuple[str | None, tuple[bool, ...]]) -> list[Candidate]:
    return [candidate(i, answer, *verdicts) for i, (answer, verdicts) in enumerate(told)]


def test_the_three_ways_choose_differently() -> None:
    told = candidates(
        ("1", (False, False)), ("1", (True, False)), ("1", (False, False)), ("2", (True, True)), (None, (True, True))
    )
    chosen = {rank: choose_answer(PROBLEM, rank, told) for rank in RANKS}
    answers = {rank: (found.best.answer, found.score) for rank, found in chosen.items() if found.best}
    assert answers["verifier"] == ("2", 1.0)
    # Ranks are 1.5 for a check that finds all right and 0 for one that finds all wrong.
    assert answers["both"] == ("2", pytest.approx(1.5 / 3.75))
    unjudged = [Candidate(c.solution) for c in told]
    voted = choose_answer(PROBLEM, "vote", unjudged)
    assert voted.best is not None and (voted.best.answer, voted.score) == ("1", 3 / 5)


def unsure() -> Verdict:
    """Two checks that say "right" of everything, and were just as likely not to."""
    said = Verification((True, True), True, soft=0.24, soft_steps=(0.6, 0.4))
    (one,) = candidates(("35", (True, True)))
    assert one.verdict is not None
    return Verdict(
        one.solution, tuple(replace(check, parsed=replace(check.parsed, value=said)) for check in one.verdict.checks)
    )


def test_verdicts_are_what_was_said_and_probabilities_how_likely_it_was() -> None:
    assert verdict_to_json(unsure()) == {
        "verdict": True,
        "probability": pytest.approx(0.24),
        "step_verdicts": [True, True],
        "step_probabilities": pytest.approx([0.6, 0.4]),
        "prediction": -1,
        "checks": 2,
        "readable": 2,
    }


def test_chat_marks_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from milonga.cli.chat import show_verdict

    show_verdict(unsure(), Console())
    assert capsys.readouterr().out == "  verifier: 1. ✓ 0.60  2. ✓ 0.40\n  the whole: right (0.24)\n"


def test_a_weighted_vote_can_overrule_the_best_single_solution() -> None:
    told = candidates(("1", (True, False)), ("1", (True, False)), ("1", (True, False)), ("2", (True, True)))
    best = {rank: choose_answer(PROBLEM, rank, told).best for rank in RANKS}
    assert best["verifier"] is told[3] and best["both"] is told[0]


def test_nothing_to_choose_from_is_said() -> None:
    empty = choose_answer(PROBLEM, "both", [])
    assert empty.best is None and answer_to_json(empty)["error"] == "longer than the model's context"
    wordless = choose_answer(PROBLEM, "vote", candidates((None, ()), (None, ())))
    assert wordless.best is not None and (answer_to_json(wordless)["answer"], wordless.score) == (None, 0.0)


TOLD = st.lists(
    st.tuples(st.sampled_from(["35", "1", "2", None]), st.tuples(st.booleans(), st.booleans())), min_size=1, max_size=8
)


@PROPERTY
@given(TOLD, st.sampled_from(RANKS))
def test_what_is_chosen_is_there_and_its_score_is_a_share(told: list[tuple[str | None, tuple[bool, ...]]], rank: Rank) -> None:
    made = candidates(*told)
    found = choose_answer(PROBLEM, rank, made)
    assert found.best in made and found.score is not None and 0 <= found.score <= 1 + 1e-12
    assert (found.best.answer is None) == all(answer is None for answer, _ in told)


@PROPERTY
@given(TOLD)
def test_choosing_agrees_with_the_metrics_of_evaluations(told: list[tuple[str | None, tuple[bool, ...]]]) -> None:
    """With one check of each, `both` is the metric weighted_vote and `vote` the metric majority."""
    made = candidates(*((answer, verdicts[:1]) for answer, verdicts in told))
    weighted = choose_answer(PROBLEM, "both", made).best
    checks = Rollouts(c.verdict.checks[0] for c in made if c.verdict)
    assert weighted is not None
    assert weighted.solution.correct == ranking_metrics(Rollouts(c.solution for c in made), checks)["weighted_vote"]
    plain = choose_answer(PROBLEM, "vote", [Candidate(c.solution) for c in made]).best
    assert plain is not None and plain.solution.correct == score_vote([(1.0, c.solution) for c in made])


# Items.

RIGHT_PROBLEM = {"question": "1+1%100"}
RIGHT_SOLUTION = {"problem": "1+1%100", "steps": ["1+1=2"]}


GSM8K = {"name": "gsm8k", "path": "gsm8k"}
VERL = {
    "name": "jsonl",
    "path": "x.jsonl",
    "fields": {"question": "prompt.0.content", "answer": "reward.truth"},
    "pass_rate": [0, 1],
}
VERL_ROW = {"prompt": [{"role": "user", "content": "1+1?"}], "reward": {"truth": 2}, "id": "a"}


@pytest.mark.parametrize(
    ("task", "named", "row", "expected"),
    [
        ({}, (None, None), {"problem": "1+1?", "answer": 2}, ("1+1?", 2)),
        ({"name": "chain"}, (None, None), {"question": "1+1?"}, ("1+1?", None)),
        (GSM8K, (None, None), {"question": "1+1?", "answer": "One and one.\n#### 2"}, ("1+1?", "2")),
        (GSM8K, (None, None), {"question": "1+1?", "answer": "2"}, ("1+1?", "2")),
        (GSM8K, (None, None), {"problem": "1+1?"}, ("1+1?", None)),
        (VERL, (None, None), VERL_ROW, ("1+1?", 2)),
        (VERL, (None, None), {"question": "1+1?", "answer": "2"}, ("1+1?", "2")),
        (VERL, ("text", "gold"), {"text": "1+1?", "gold": "2", "question": "no"}, ("1+1?", "2")),
        ({}, (None, "gold"), {"question": "1+1?", "gold": None, "answer": "3"}, ("1+1?", None)),
        ({}, (None, None), {"question": "1+1?", "answer": " "}, ("1+1?", None)),
        (
            {"name": "jsonl", "path": "x.jsonl", "answer_in_box": True},
            (None, "s"),
            {"problem": "?", "s": r"so \boxed{2}"},
            ("?", "2"),
        ),
    ],
)
def test_problems_are_read_by_the_fields_of_the_runs_own_data(
    tmp_path: Path, task: dict[str, Any], named: tuple[str | None, str | None], row: dict[str, Any], expected: tuple[str, Any]
) -> None:
    (tmp_path / "some.jsonl").write_text(json.dumps(row))
    fields = find_problem_fields(task, *named)
    one = fields.read(tmp_path / "some.jsonl")[0]
    assert (one.item.question, one.item.answer, one.record) == (*expected, row)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "1+1?", "gold": "2"}, "line 1: 'question' is missing; did you mean 'prompt'? Name it by --question prompt"),
        ({"questions": "1+1?"}, "line 1: 'question' is missing; did you mean 'questions'? Name it by --question questions"),
        ({"ask": "1+1?", "b": 1}, "line 1: 'question' is missing; the row has ask, b: name it by --question NAME"),
    ],
)
def test_a_question_elsewhere_is_proposed(tmp_path: Path, row: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError) as error:
        find_problem_fields({}, None, None).read(lines(tmp_path / "some.jsonl", [row]))
    assert str(error.value).endswith(says)


def test_a_named_answer_stands_in_its_field_or_nowhere(tmp_path: Path) -> None:
    some = lines(
        tmp_path / "some.jsonl", [{"question": "1+1?", "answer": "2"}, {"question": "1+2?", "gold": "3", "answer": "4"}]
    )
    assert [one.item.answer for one in find_problem_fields({}, None, "gold").read(some)] == [None, "3"]
    with pytest.raises(DataError, match=r"no record has the field 'glod'; the first has answer, question$"):
        find_problem_fields({}, None, "glod").read(some)


def test_an_empty_cell_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "some.csv").write_text("question,answer\n1+1?,2\n1+2?,\n")
    assert [one.item.answer for one in find_problem_fields({}, None, None).read(tmp_path / "some.csv")] == ["2", None]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"name": "jsonl", "path": "x.jsonl", "anser_after": "#"}, "unknown key 'task.anser_after': did you mean"),
        ({"name": "jsonl"}, "'task.path' is missing"),
    ],
)
def test_a_runs_task_that_cannot_be_read_is_explained_as_elsewhere(task: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        find_problem_fields(task, None, None)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_problems_in_a_table_and_a_field_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "some.csv").write_text("ask,gold\n1+1?,2\n")
    found = read_items(tmp_path / "some.csv", ProblemItem, find_problem_fields({}, "ask", "gold").rename)
    assert [(one.item.question, one.item.answer) for one in found] == [("1+1?", "2")]
    with pytest.raises(DataError, match=r"some.csv, row 1: field 'no' is missing; the row has ask, gold"):
        read_items(tmp_path / "some.csv", ProblemItem, find_problem_fields({}, "no", None).rename)


@pytest.mark.parametrize(
    ("kind", "line", "says"),
    [
        (ProblemItem, "{", "line 2: not JSON"),
        (ProblemItem, "[]", "line 2: not a JSON object but list"),
        (ProblemItem, "7", "line 2: not a JSON object but int"),
        (ProblemItem, "{}", "line 2: 'question' is missing"),
        (ProblemItem, '{"question": 7}', "line 2: 'question'"),
        (ProblemItem, '{"problem": "  "}', "line 2: 'problem': String should have at least 1 character"),
        (ProblemItem, '{"question": "x", "answer": [1]}', "line 2: 'answer"),
        (ProblemItem, '{"question": "x", "answer": NaN}', "NaN is not a value of JSON"),
        (ProblemItem, '{"question": "x", "id": {}}', "line 2: 'id"),
        (ProblemItem, '{"question": "\\ud800"}', "line 2: not JSON"),
        (SolutionItem, '{"problem": "x"}', "line 2: 'steps' is missing"),
        (SolutionItem, '{"problem": "x", "steps": []}', "line 2: 'steps': List should have at least 1 item"),
        (SolutionItem, '{"problem": "x", "steps": ["a", 3]}', "line 2: 'steps.1'"),
        (SolutionItem, '{"problem": "x", "steps": "a"}', "line 2: 'steps': Input should be a valid list"),
        (SolutionItem, '{"problem": "x", "steps": ["a"], "label": 1}', "line 2: label 1 is not a step of 1"),
        (SolutionItem, '{"problem": "x", "steps": ["a"], "label": -2}', "line 2: 'label'"),
        (SolutionItem, '{"problem": "x", "steps": ["a"], "label": true}', "line 2: 'label'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, kind: type[Any], line: str, says: str) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps(RIGHT_PROBLEM | RIGHT_SOLUTION) + f"\n{line}\n")
    with pytest.raises(DataError) as error:
        read_items(path, kind)
    assert str(error.value).startswith(str(path)) and says in str(error.value) and "\n" not in str(error.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n \n")
    for name, says in (("nothing", "does not exist"), ("empty", "is empty"), (".", "cannot be read")):
        with pytest.raises(DataError, match=says):
            read_items(tmp_path / name, ProblemItem)


def test_a_processbench_file_is_one_list(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(
        json.dumps([RIGHT_SOLUTION | {"id": "a-0", "generator": "x", "label": -1}, RIGHT_SOLUTION | {"label": 0}], indent=1)
    )
    found = read_items(path, SolutionItem)
    assert [g.item.label for g in found] == [-1, 0] and found[0].item.question == "1+1%100"
    assert found[1].where == f"{path}, item 2" and found[0].record["generator"] == "x"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(st.sampled_from(["id", "question", "problem", "steps", "answer", "label", "other"]), JSON, max_size=7)


@PROPERTY
@given(FIELDS | JSON, st.sampled_from([ProblemItem, SolutionItem]))
def test_any_record_is_an_item_or_one_line(record: Any, kind: type[Any]) -> None:
    try:
        item = validate_item(kind, record, "here, line 1")
    except DataError as error:
        complaint = str(error)
    else:
        complaint = "here, line 1: none"
        item.question.encode()  # no half characters, which no tokenizer takes
        assert item.question == item.question.strip() != ""
        assert kind is ProblemItem or (item.steps and all(step.strip() for step in item.steps))
    assert complaint.startswith("here, line 1: ") and len(complaint) < 400


@PROPERTY
@given(st.binary(max_size=60))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"any\.jsonl"):
        read_items(path, SolutionItem)


# The commands.


def lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_solve_writes_answers_with_scores_and_reports_accuracy(milonga: Command, trained: Path, tmp_path: Path) -> None:
    rows = [{"question": "3+4%100", "answer": 7}, {"problem": "5*5%100", "id": "five"}, {"question": "1+1%100", "answer": "no"}]
    file = lines(tmp_path / "problems.jsonl", rows)
    done = milonga("solve", trained, file, "--best-of", "4", "--rank", "both", "--json")
    assert done.code == 0, done.err
    answers = done.json["rows"]
    assert [row["id"] for row in answers] == [1, "five", 3] and all(len(row["candidates"]) == 4 for row in answers)
    assert answers[0]["correct"] == (answers[0]["answer"] == "7") and answers[2]["correct"] is False
    assert "correct" not in answers[1] and 0 <= answers[1]["score"] <= 1
    assert done.json["graded"] == 2 and done.json["accuracy"] == answers[0]["correct"] / 2
    assert f"accuracy {done.json['accuracy']:.3f} on 2 with a known answer" in done.err
    again = milonga("solve", trained, file, "--best-of", "4", "--rank", "both", "--out", tmp_path / "deep" / "out.jsonl")
    assert again.code == 0 and again.out == ""
    assert [json.loads(line) for line in (tmp_path / "deep" / "out.jsonl").read_text().splitlines()] == answers


def test_what_was_cut_is_told_and_the_limit_can_be_raised(milonga: Command, trained: Path, tmp_path: Path) -> None:
    file = lines(tmp_path / "problems.jsonl", [{"question": "3+4*5%100"}, {"question": "20-3+6%100"}])
    solve = ("solve", trained, file, "--best-of", "1", "--rank", "vote", "--json")
    cut = milonga(*solve, "--max-tokens", "2")
    assert cut.code == 0 and "; 2 of 2 solutions were cut at 2 tokens: --max-tokens 4\n" in cut.err
    assert [row["truncated"] for row in cut.json["rows"]] == [True, True]
    assert [cut.json[key] for key in ("max_tokens", "solutions", "truncated", "cut_at")] == [2, 2, 2, 2]
    whole = milonga(*solve, "--max-tokens", "64")
    assert whole.code == 0 and "were cut" not in whole.err and whole.json["truncated"] == 0
    assert not any("truncated" in row for row in whole.json["rows"])
    refused = milonga(*solve, "--max-tokens", "0")
    assert refused.code == 2 and "--max-tokens" in refused.err


@pytest.mark.parametrize("command", [("serve",), ("chat",), ("verify", "file.jsonl"), ("solve", "file.jsonl")])
def test_the_limit_reaches_the_pair(
    milonga: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def refuse(*_: Any, max_tokens: int | None, **__: Any) -> Pair:
        raise ConfigError(f"opened with {max_tokens}")

    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "file.jsonl", [RIGHT_SOLUTION])
    monkeypatch.setattr(Pair, "open", refuse)
    name, *more = command
    port = ("--port", "0") if name == "serve" else ()
    assert "opened with 7" in milonga(name, "run", *more, *port, "--max-tokens", "7").err


@pytest.mark.parametrize(
    ("cuts", "says"),
    [
        (Cuts(4, 0, 0), ""),
        (Cuts(4, 3, 64), "cut at 64 tokens: --max-tokens 128"),
        (Cuts(4, 3, 40), "cut at the end of the model's context, after 40 tokens at most"),
        (Cuts(4, 3, 0), "cut at 64 tokens: --max-tokens 128"),
    ],
)
def test_more_tokens_are_advised_where_they_help(cuts: Cuts, says: str) -> None:
    assert cuts.describe(64) == says


def test_what_was_solved_can_be_verified(milonga: Command, trained: Path, tmp_path: Path) -> None:
    file = lines(tmp_path / "problems.jsonl", [{"question": "3+4*5%100"}, {"question": "20-3+6%100"}])
    assert milonga("solve", trained, file, "--rank", "vote", "--out", tmp_path / "solved.jsonl").code == 0
    solved = [json.loads(line) for line in (tmp_path / "solved.jsonl").read_text().splitlines()]
    done = milonga("verify", trained, tmp_path / "solved.jsonl", "--checks", "3")
    assert done.code == 0, done.err
    judged = [json.loads(line) for line in done.out.splitlines()]
    assert [row["answer"] for row in judged] == [row["answer"] for row in solved]
    assert all(row["checks"] == 3 and row["readable"] <= 3 for row in judged)


def test_verify_keeps_processbenchs_fields_and_adds_its_own(milonga: Command, trained: Path, tmp_path: Path) -> None:
    items = [
        {
            "id": "a-0",
            "generator": "x",
            "problem": "3+4*5%100",
            "steps": ["3+4=7", "7*5=36"],
            "final_answer_correct": False,
            "label": 1,
        },
        {
            "id": "a-1",
            "generator": "x",
            "problem": "3+4*5%100",
            "steps": ["3+4=7", "7*5=35"],
            "final_answer_correct": True,
            "label": -1,
        },
    ]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(items))
    done = milonga("verify", trained, path, "--checks", "5", "--json")
    assert done.code == 0, done.err
    rows = done.json["rows"]
    for item, row in zip(items, rows, strict=True):
        assert {key: row[key] for key in item} == item
        assert row["prediction"] in (-1, 0, 1, None) and row["match"] == (row["prediction"] == item["label"])
        assert len(row["step_verdicts"]) == 2 and isinstance(row["verdict"], bool)
        assert 0 < row["probability"] < 1, "how sure five sampled checks were, not how many of them"
    assert done.json["labelled"] == 2 and "on 2 with a label" in done.err
    expected = {"error_accuracy": float(rows[0]["match"]), "right_accuracy": float(rows[1]["match"])}
    assert {key: done.json[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["solve", "{run}", "{file}", "--rank", "nobody"], "unknown --rank 'nobody': use verifier, vote, both"),
        (["solve", "{run}", "nothing.jsonl"], "'nothing.jsonl' does not exist"),
        (["solve", "nowhere", "{file}"], "run folder 'nowhere' does not exist"),
        (["verify", "{run}", "{file}"], "line 1: 'steps' is missing"),
        (["solve", "{run}", "{file}", "--out", "{file}/x"], "cannot be written: "),
        (["solve", "{run}", "{file}", "--out", "/proc/nowhere/x"], "cannot be written: "),
        (["export", "{run}", "generator", "/proc/nowhere/x"], "cannot be written: "),
        (["report", "{run}", "--out", "/proc/nowhere/x.html"], "cannot be written: "),
        (["new", "task", "sums", "--dir", "/proc/nowhere"], "cannot be written: "),
        (["export", "{run}", "generatr", "x"], "did you mean 'generator'?"),
        (["serve", "{run}", "--host", "0.0.0.0"], "--host 0.0.0.0 can be reached by others: set a token"),
    ],
)
def test_mistakes_are_one_line(
    milonga: Command, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.delenv("MILONGA_TOKEN", raising=False)
    file = lines(tmp_path / "problems.jsonl", [RIGHT_PROBLEM])
    done = milonga(*(a.format(run=trained, file=file) for a in arguments))
    # A model that is loaded before the mistake shows may draw its bar here, where transformers was imported before.
    said = [line for line in done.err.splitlines() if line and not line.startswith("Loading weights")]
    assert done.code == 2 and len(said) == 1 and says in said[0], done.err


def test_a_pair_without_a_verifier_says_what_it_can(milonga: Command, tmp_path: Path) -> None:
    from cases import TINY
    from milonga.api import run

    run("grpo", turns=1, out=tmp_path / "run", settings=TINY, quiet=True)
    file = lines(tmp_path / "problems.jsonl", [RIGHT_PROBLEM])
    done = milonga("solve", tmp_path / "run", file, "--rank", "verifier")
    assert done.code == 2 and "has no verifier" in done.err and "--rank vote needs none" in done.err
    assert milonga("solve", tmp_path / "run", file, "--rank", "vote").code == 0
    plain = milonga("solve", tmp_path / "run", file)
    assert plain.code == 0 and "by vote" in plain.err, "nobody has to know what was not trained"
    solutions = lines(tmp_path / "solutions.jsonl", [RIGHT_SOLUTION])
    for some in (solutions, file, tmp_path / "nothing.jsonl"):
        said = milonga("verify", tmp_path / "run", some).err
        assert said.startswith("milonga: recipe 'grpo' has no verifier"), "whatever is wrong with the file"


# Chat.


@pytest.fixture
def talk(milonga: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    def call(text: bytes, *arguments: str | Path) -> Any:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
        return milonga("chat", *arguments)

    return call


def test_chat_shows_the_answer_and_then_each_verdict(talk: Command, trained: Path) -> None:
    done = talk(b"3+4*5%100\n\n7*7%100", trained, "--checks", "4")
    assert done.code == 0
    said = done.out.splitlines()
    assert said[0].startswith("  1. ") and sum(line.startswith("  verifier: 1. ") for line in said) == 2
    assert "the whole: " in done.out


def test_chat_says_what_was_cut(talk: Command, trained: Path) -> None:
    assert "cut at 2 tokens: --max-tokens 4" in talk(b"3+4%100\n", trained, "--max-tokens", "2").out


def test_chat_neutralises_what_models_write_and_outlives_hostile_questions(talk: Command, trained: Path) -> None:
    done = talk(b"\x1b[31m\xff[red]\n" + b"9" * 3000 + b"\n1+1%100\n", trained, "--best-of", "2")
    assert done.code == 0 and "\x1b" not in done.out
    assert "the question is longer than the model's context" in done.out and done.out.count("verifier: ") == 2


def test_text_of_models_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from milonga.cli.chat import show_solution

    parsed = Parsed(Solution(("\x1b[2J[red]evil[/red]",), (1,), "\x07[bold]7"), 1.0)
    show_solution(
        Rollout.from_text("s", "generator", PROBLEM, "", parsed), Console(force_terminal=True, color_system="standard")
    )
    out = capsys.readouterr().out
    assert "\x1b[2J" not in out and "\x07" not in out and "[red]evil[/red]" in out and "\\x1b" in out


def test_chat_ends_at_an_interrupt(milonga: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(prompt: str = "") -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupted)
    done = milonga("chat", trained)
    assert done.code == 0 and "stopped" not in done.err and "Traceback" not in done.err
