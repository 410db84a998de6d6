"""Forms of data beside questions with answers: files of replies, preferences, labelled steps and plain text, as they come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.errors import DataError
from milonga.roles import StepSolver
from milonga.tasks import Task, make_task
from milonga.tasks.base import ANSWERS, DEMONSTRATIONS, LABELS, PREFERENCES
from milonga.tasks.forms import Fields, cut_passages, parse_content, render_talk
from milonga.types import SPLITS, Problem

PLACE = (Fields(question="prompt"), "file, line 1")
PRM = (Fields(question="question.problem"), "file, line 1")
USER = {"role": "user", "content": "What is 2+2?"}
GOOD, BAD = {"role": "assistant", "content": "4."}, {"role": "assistant", "content": "5."}


def write_rows(path: Path, rows: list[Any]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def make(path: str, form: str, **options: Any) -> Task:
    return make_task({"name": "jsonl", "path": path, "form": form, **options})


# Replies.


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "What is 2+2?", "completion": "4."},
        {"prompt": [USER], "completion": [GOOD]},
        {"messages": [USER, GOOD]},
    ],
)
def test_replies_in_any_form_are_a_prompt_and_its_reply(record: Any) -> None:
    found = parse_content("sft", record, *PLACE)
    assert (found.question, found.reply, found.rejected) == ("What is 2+2?", "4.", None)


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "What is 2+2?", "chosen": "4.", "rejected": "5."},
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"chosen": "\n\nHuman: What is 2+2?\n\nAssistant: 4.", "rejected": "\n\nHuman: What is 2+2?\n\nAssistant: 5."},
    ],
)
def test_preferences_in_any_form_are_a_prompt_and_two_replies(record: Any) -> None:
    found = parse_content("preferences", record, *PLACE)
    assert (found.question, found.reply, found.rejected) == ("What is 2+2?", "4.", "5.")


def test_a_conversation_of_several_turns_keeps_its_speakers_and_a_system_message_comes_first() -> None:
    turns = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Bye\n\nAssistant:"
    found = parse_content("preferences", {"chosen": f"{turns} Bye.", "rejected": f"{turns} No."}, *PLACE)
    assert found.question == "Human: Hi\n\nAssistant: Hello.\n\nHuman: Bye" and (found.reply, found.rejected) == ("Bye.", "No.")
    assert render_talk([("system", "Be brief."), ("user", "Hi")]) == "Be brief.\n\nHi"
    assert render_talk([("user", "Hi"), ("assistant", "Yes?"), ("user", "Bye")]) == "User: Hi\n\nAssistant: Yes?\n\nUser: Bye"


@pytest.mark.parametrize(
    ("form", "record", "message"),
    [
        ("sft", {"prompt": "a"}, "field 'completion' is missing; the row has prompt: name it in task.fields"),
        ("sft", {"prompt": "a", "completion": "  "}, "field 'completion' is not a text with something in it"),
        ("sft", {"messages": [USER]}, "does not end in a reply of the assistant"),
        ("sft", {"prompt": 3, "completion": "b"}, "field 'prompt' is neither a text nor a list of messages"),
        ("sft", {"prompt": [USER, 3], "completion": "b"}, "field 'prompt' is neither a text nor a list of messages"),
        ("preferences", {"prompt": "a", "chosen": "b"}, "field 'rejected' is missing"),
        ("preferences", {"chosen": [USER, GOOD], "rejected": [GOOD, BAD]}, "do not begin with the same prompt"),
        ("preferences", {"chosen": "a b", "rejected": "a c"}, "do not begin with the same prompt; name its field"),
        ("steps", {"prompt": "a", "steps": [], "label": -1}, "field 'steps' is not a list of steps"),
        ("steps", {"prompt": "a", "steps": ["b"], "label": 1}, "neither -1 or the index of one of 1 steps"),
        ("steps", {"prompt": "a", "steps": ["b"], "label": [True, False]}, "nor a list with true or false for each"),
        ("steps", {"prompt": "a", "steps": ["b"], "label": None}, "field 'label' is null"),
        ("text", {"title": "a"}, "field 'prompt' is missing"),
    ],
)
def test_a_record_without_its_form_is_an_error_that_names_the_field(form: Any, record: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        parse_content(form, record, *PLACE)
    assert str(caught.value).startswith("file, line 1: ") and "\n" not in str(caught.value)


values = st.recursive(
    st.none() | st.integers(-2, 3) | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3), max_leaves=6
)
names = st.sampled_from(["prompt", "completion", "chosen", "rejected", "steps", "label", "messages", "role", "content"])


@PROPERTY
@given(st.sampled_from(["sft", "preferences", "steps", "prm800k", "text"]), st.dictionaries(names, values))
def test_any_record_is_parsed_or_one_error(form: Any, record: dict[str, Any]) -> None:
    try:
        found = parse_content(form, record, *PLACE)
    except DataError:
        return
    assert found.question.strip() and (form not in ("sft", "preferences") or found.reply)


def test_a_reply_is_shown_word_for_word_and_nothing_is_added_to_its_prompt(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"prompt": f"Say {n}.", "completion": f" {n}!\n\nDone. "} for n in range(40)])
    task, solver = make(path, "sft"), StepSolver("plain")
    assert {DEMONSTRATIONS} == task.offers & {DEMONSTRATIONS, ANSWERS, PREFERENCES, LABELS} and not task.has_answers
    problem = task.problem("train", 0)
    assert [(part.text, part.foreign) for part in solver.prompt(problem)] == [(problem.text, True)]
    number = problem.text.removeprefix("Say ").removesuffix(".")
    assert solver.demonstrate(task, problem, None)[1] == f" {number}!\n\nDone. "  # type: ignore[arg-type]
    assert task.extract("It is so.\n", problem) == "It is so." and task.extract(" ", problem) is None
    assert task.grade(problem, "It is so.", ()).correct is None


def test_the_answer_of_a_reply_is_known_where_its_field_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": f"What is {n}+1?", "chosen": "a", "rejected": "b", "gold": n + 1} for n in range(40)]
    path = write_rows(tmp_path / "a.jsonl", rows)
    assert PREFERENCES in make(path, "preferences").offers
    task = make(path, "preferences", fields={"answer": "gold"})
    problem = task.problem("train", 3)
    assert problem.answer == str(int(problem.text.split()[2].split("+")[0]) + 1) and problem.rejected == "b"
    assert task.extract("I get 7, or 8.", problem) == "8"


# Labelled steps.


@pytest.mark.parametrize(
    ("label", "truth"),
    [
        (-1, (True, True, True)),
        (0, (False, False, False)),
        (1, (True, False, False)),
        ([True, False, True], (True, False, False)),
    ],
)
def test_steps_are_right_before_the_first_error(label: Any, truth: tuple[bool, ...]) -> None:
    found = parse_content("steps", {"prompt": "p", "steps": ["a", "b", "c"], "label": label}, *PLACE)
    assert found.labelled_steps == tuple(zip("abc", truth, strict=True))


def prm(*steps: Any) -> dict[str, Any]:
    return {"question": {"problem": "p", "ground_truth_answer": "4"}, "label": {"steps": list(steps), "finish_reason": "x"}}


def step(*rated: tuple[str, int | None], chosen: int | None = None, human: str | None = None) -> dict[str, Any]:
    completions = [{"text": text, "rating": rating, "flagged": False} for text, rating in rated]
    written = None if human is None else {"text": human, "rating": None}
    return {"completions": completions, "human_completion": written, "chosen_completion": chosen}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([step(("a", 1), chosen=0), step(("b", 0), ("B", 1), chosen=0)], (("a", True), ("b", True))),  # neutral is not wrong
        ([step(("a", 1), chosen=0), step(("b", 1), ("c", -1))], (("a", True), ("c", False))),  # nothing chosen: the wrong one
        ([step(("a", -1), human="h"), step(("b", 1), chosen=0)], (("h", True), ("b", True))),  # a step that people wrote
        ([step(("a", 1), chosen=0), step(("b", None)), step(("c", 1), chosen=0)], (("a", True),)),  # unrated: it ends there
        ([step(("a", -1), chosen=0), step(("b", 1), chosen=0)], (("a", False), ("b", False))),
    ],
)
def test_prm800k_is_read_along_the_path_that_was_chosen(steps: Any, expected: Any) -> None:
    assert parse_content("prm800k", prm(*steps), *PRM).labelled_steps == expected


def test_a_row_of_prm800k_without_a_rating_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'label\.steps' holds no step with a rating"):
        parse_content("prm800k", prm(step(("a", None))), *PRM)
    with pytest.raises(DataError, match="whose 'completions' are no list"):
        parse_content("prm800k", prm({"completions": 5}), *PRM)
    for ended in ("give_up", "bad_problem"):
        with pytest.raises(DataError, match=f"'{ended}': the labels do not tell"):
            parse_content("prm800k", prm(step(("a", 1), chosen=0)) | {"label": {"steps": [], "finish_reason": ended}}, *PRM)
    rows = [prm(step((f"{n}", 1), chosen=0)) | {"question": {"problem": f"p{n}"}} for n in range(40)]
    task = make(write_rows(tmp_path / "a.jsonl", [*rows, prm()]), "prm800k", unreadable="skip")
    assert task.describe()["rows_left_out"] == 1 and LABELS in task.offers
    assert task.problem("dev", 0).labelled_steps[0][1] is True


# Plain text.


def test_a_folder_of_texts_is_cut_into_passages(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for number in range(20):
        (tmp_path / "deep" / f"{number}.md").write_text(f"# Title {number}\n\n" + f"word{number} " * 30)
    (tmp_path / "no.csv").write_text("not, read")
    task = make(str(tmp_path), "text", passage=120)
    texts = [task.problem(split, i).text for split in SPLITS for i in range(task.size(split) or 0)]
    assert all(len(text) <= 120 for text in texts) and not task.has_answers
    assert sum(text.count("word7 ") + text.endswith("word7") for text in texts) == 30
    (tmp_path / "deep" / "x.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"x\.txt' is not UTF-8 \(byte 0\)"):
        make(str(tmp_path), "text")


def test_texts_of_json_lines_and_of_one_file(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"text": f"One.\n\nTwo {n}."} for n in range(20)])
    assert make(path, "text").size("train") == 12 and "\n\n" in make(path, "text").problem("train", 0).text
    (tmp_path / "b.txt").write_text("\n\n".join(f"Paragraph {n}." for n in range(20)))
    assert make(str(tmp_path / "b.txt"), "text", passage=15).size("train") == 12
    with pytest.raises(DataError, match=r"nowhere\.txt' does not exist"):
        make(str(tmp_path / "nowhere.txt"), "text")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no \.txt or \.md file"):
        make(str(tmp_path / "empty"), "text")


@PROPERTY
@given(st.text(alphabet="ab \n", max_size=80), st.integers(1, 20))
def test_passages_lose_nothing_but_white_space(text: str, longest: int) -> None:
    passages = cut_passages(text, longest)
    assert "".join("".join(passages).split()) == "".join(text.split())
    assert all(0 < len(passage) <= longest for passage in passages)


def test_problems_of_other_tasks_have_no_replies() -> None:
    problem = Problem("p", "2+2", "4")
    assert (problem.reply, problem.rejected, problem.labelled_steps) == (None, None, ())
