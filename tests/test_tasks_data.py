"""Tasks from data: rows are read or refused by name, splits are disjoint, the order is keyed."""

from __future__ import annotations

import csv
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.errors import ConfigError, DataError, MissingExtra
from milonga.resolve import resolve
from milonga.tasks import Task, make_task, normalise_text
from milonga.tasks.base import DEMONSTRATIONS, LEVELS
from milonga.tasks.data import MOST_COMPARED, Jsonl, JsonlOptions, find_canonical_form
from milonga.tasks.forms import MISSING, find_value
from milonga.tasks.grading import Grader
from milonga.tasks.rows import parse_level
from milonga.tasks.splits import choose_held_out_count
from milonga.types import SPLITS, Grade

Section = dict[str, Any]


def shared_data(name: str) -> Path:
    """A public data set beside the repository; users do not have it, and their tests skip."""
    folder = Path(__file__).parents[2] / "shared" / "data" / name
    if not folder.is_dir():
        pytest.skip(f"the data set '{name}' is not beside the repository")
    return folder


def write(path: Path, rows: Iterable[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def sums(numbers: Iterable[int]) -> list[dict[str, Any]]:
    return [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in numbers]


def texts(task: Task, split: Any) -> set[str]:
    size = task.size(split)
    assert size is not None
    return {normalise_text(p.text) for p in task.draw_problems(split, 0, size)}


@pytest.fixture
def section(tmp_path: Path) -> Section:
    return {"name": "jsonl", "path": write(tmp_path / "train.jsonl", sums(range(400)))}


def test_a_file_is_split_by_its_texts(section: Section) -> None:
    section = {**section, "dev": 40, "test": 80}
    task, reordered = make_task(section), make_task({**section, "seed": 5})
    found = {split: texts(task, split) for split in SPLITS}
    assert sum(len(found[split]) for split in SPLITS) == 400
    assert all(not found[a] & found[b] for a, b in itertools.combinations(SPLITS, 2))
    assert {split: len(found[split]) for split in SPLITS} == {"train": 280, "dev": 40, "test": 80}
    assert {split: texts(reordered, split) for split in SPLITS} == found, "the seed orders, it does not split"


def test_repetitions_of_a_question_stay_on_one_side(tmp_path: Path) -> None:
    rows = sums(range(100)) + [{"question": f"  WHAT is {n} +  1? ", "answer": str(n + 1)} for n in range(100)]
    task = make_task({"name": "jsonl", "path": write(tmp_path / "a.jsonl", rows), "dev": 60, "test": 61})
    assert task.describe()["overlaps_removed"] == {"train_dev": 0, "train_test": 0, "dev_test": 0}
    assert task.describe()["sizes"] == {"train": 78, "dev": 60, "test": 62}, "every question is there twice"


def test_overlaps_are_taken_from_train_and_counted(tmp_path: Path) -> None:
    tests = [{"question": "WHAT is  5 + 1? ", "answer": 6}, *sums(range(115, 130))]
    paths = {
        "path": write(tmp_path / "train.jsonl", sums(range(100))),
        "dev_path": write(tmp_path / "dev.jsonl", sums(range(90, 120))),
        "test_path": write(tmp_path / "test.jsonl", tests),
    }
    task = make_task({"name": "jsonl", **paths})
    assert task.describe() == {
        "sizes": {"train": 89, "dev": 25, "test": 16},
        "overlaps_removed": {"train_dev": 10, "train_test": 1, "dev_test": 5},
    }
    assert all(not texts(task, a) & texts(task, b) for a, b in itertools.combinations(SPLITS, 2))


def test_the_order_is_a_permutation_keyed_by_the_seed(section: Section) -> None:
    task, again, other = make_task(section), make_task(section), make_task({**section, "seed": 1})
    size = task.size("train")
    assert size is not None
    order = [p.id for p in task.draw_problems("train", 0, size)]
    assert len(set(order)) == size
    assert order == [p.id for p in again.draw_problems("train", 0, size)]
    assert order != [p.id for p in other.draw_problems("train", 0, size)]
    assert set(order) == {p.id for p in other.draw_problems("train", 0, size)}
    assert task.problem("train", size + 3) == task.problem("train", 3)


def test_fields_markers_and_numbers(tmp_path: Path) -> None:
    rows = [{"q": " a ", "a": "six\n#### no\n#### 6,000 "}, {"q": "b", "a": "#### 7"}]
    path = write(tmp_path / "train.jsonl", rows)
    marked = {"fields": {"question": "q", "answer": "a"}, "answer_after": "####", "dev": 0, "test": 0}
    task = make_task({"name": "jsonl", "path": path, **marked})
    assert {p.text: p.answer for p in task.draw_problems("train", 0, 2)} == {"a": "6,000", "b": "7"}
    rows = [{"question": "a", "answer": 12}, {"question": "b", "answer": 0.5}]
    task = make_task({"name": "jsonl", "path": write(tmp_path / "n.jsonl", rows), "dev": 0, "test": 0})
    assert {p.text: p.answer for p in task.draw_problems("train", 0, 2)} == {"a": "12", "b": "0.5"}


GOOD = b'{"question": "a", "answer": "1"}\n'
BAD_FILES = [
    (b"", "is empty"),
    (b"\n  \n", "is empty"),
    (GOOD + b"{nonsense\n", "line 2: not JSON"),
    (GOOD + b"\n\n[1]\n", "line 4: not a JSON object but list"),
    (GOOD + b'{"question": "a"}\n', "line 2: field 'answer' is missing"),
    (GOOD + b'{"qestion": "a", "answer": "1"}\n', "line 2: field 'question' is missing; did you mean 'qestion'"),
    (GOOD + b'{"question": 3, "answer": "1"}\n', "line 2: field 'question' is not a text"),
    (GOOD + b'{"question": "  ", "answer": "1"}\n', "line 2: field 'question' is not a text"),
    (GOOD + b'{"question": "a", "answer": null}\n', "line 2: field 'answer' is neither a text nor a number"),
    (GOOD + b'{"question": "a", "answer": true}\n', "line 2: field 'answer' is neither a text nor a number"),
    (GOOD + b'{"question": "a", "answer": NaN}\n', "line 2: not JSON .NaN"),
    (GOOD + b'{"question": "a", "answer": " "}\n', "line 2: field 'answer' is empty"),
    (GOOD + b'{"question": "\xff", "answer": "1"}\n', "line 2: not JSON"),
    (GOOD + b"[" * 200_000 + b"\n", "line 2: not JSON"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_bad_row_is_an_error_that_names_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        make_task({"name": "jsonl", "path": str(path)})
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_marker_is_an_error(section: Section) -> None:
    with pytest.raises(DataError, match="line 1: field 'answer' has no '####' before its final answer"):
        make_task({**section, "answer_after": "####"})


def test_wrong_sections_are_errors(section: Section, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'task\.path' is missing"):
        make_task({"name": "jsonl"})
    with pytest.raises(ConfigError, match=r"unknown key 'task\.dev_pth': did you mean 'dev_path'"):
        make_task({**section, "dev_pth": "x"})
    with pytest.raises(ConfigError, match="not both"):
        make_task({**section, "answer_after": "####", "answer_in_box": True})
    with pytest.raises(DataError, match=r"task\.dev=200 and task\.test=200 leave nothing to train on; there are 400 rows"):
        make_task({**section, "dev": 200, "test": 200})
    with pytest.raises(DataError, match=r"nowhere\.jsonl' does not exist"):
        make_task({"name": "jsonl", "path": str(tmp_path / "nowhere.jsonl")})
    with pytest.raises(DataError, match=r"ends in none of \.jsonl, \.json, \.csv, \.parquet"):
        make_task({"name": "jsonl", "path": str(tmp_path)})
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        make_task({"name": "jsonl", "path": str(tmp_path / "folder.csv")})
    with pytest.raises(DataError, match="nothing is left to train on"):
        make_task({**section, "test_path": section["path"], "dev": 0})
    empty = make_task({**section, "dev": 0})
    with pytest.raises(DataError, match="has no dev problems"):
        empty.problem("dev", 0)


# Forms of files.


def write_as(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write rows in the format that the name ends in."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.name.startswith("list"):
        path.write_text(json.dumps(rows, indent=1))
    else:
        write(path, rows)
    return str(path)


@pytest.mark.parametrize("name", ["a.jsonl", "lines.json", "list.json", "a.csv", "a.parquet"])
def test_all_formats_hold_the_same_problems(name: str, tmp_path: Path, section: Section) -> None:
    rows = [{"question": f'Say "a,\nb" {n} times — {n}', "answer": str(n)} for n in range(40)]
    task = make_task({"name": "jsonl", "path": write_as(tmp_path / name, rows), "dev_path": section["path"]})
    expected = make_task({"name": "jsonl", "path": write(tmp_path / "e.jsonl", rows), "dev_path": section["path"]})
    assert [(p.text, p.answer) for p in task.draw_problems("train", 0, 30)] == [
        (p.text, p.answer) for p in expected.draw_problems("train", 0, 30)
    ]
    assert task.describe() == expected.describe()


BAD_FORMS = [
    ("a.csv", b"question,answer\na,1\nb\n", "row 2: has fewer cells"),
    ("a.csv", b"question,answer\na,1,2\n", "row 1: has more cells"),
    ("a.csv", b'question,answer\na,1\nb,"2\n', "row 2: not CSV"),
    ("a.csv", b"question,answer\n\xff,1\n", "row 1: not CSV"),
    ("a.csv", b"question,answer\na,\n", "row 1: field 'answer' is empty"),
    ("a.csv", b"question,answer\n", "is empty"),
    ("a.json", b'[{"question": "a", "answer": "1"}, 3]', "row 2: not a JSON object"),
    ("a.json", b'[{"question": "a"', "not JSON"),
    ("a.json", b"[]", "is empty"),
    ("a.parquet", b"PAR1 or not", "not parquet"),
    ("a.txt", b"a", "ends in none of"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FORMS, ids=range(len(BAD_FORMS)))
def test_a_bad_file_of_any_format_is_an_error_in_one_line(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        make_task({"name": "jsonl", "path": str(tmp_path / name)})
    assert name in str(caught.value) and "\n" not in str(caught.value)


# Fields.

NESTED = {
    "prompt": [{"role": "user", "content": "How many?"}],
    "reward_model": {"style": "rule", "ground_truth": "7"},
    "a.b": "dotted",
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("prompt.0.content", "How many?"),
        ("reward_model.ground_truth", "7"),
        ("a.b", "dotted"),
        ("prompt.1.content", MISSING),
        ("prompt.-1.content", MISSING),
        ("prompt.content", MISSING),
        ("reward_model.style.0", MISSING),
        ("", MISSING),
    ],
)
def test_a_dotted_path_reaches_nested_fields(path: str, value: Any) -> None:
    assert find_value(NESTED, path) is value or find_value(NESTED, path) == value


@PROPERTY
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    st.text("ab.01", max_size=8),
)
def test_every_path_ends_somewhere(record: Any, path: str) -> None:
    found = find_value(record, path)
    assert found is MISSING or not path or found is None or found == found


def test_rows_of_another_library_are_named_by_their_paths(tmp_path: Path) -> None:
    rows = [{**NESTED, "prompt": [{"role": "user", "content": f"Number {n}?"}]} for n in range(20)]
    path = write(tmp_path / "rows.jsonl", rows)
    fields = {"question": "prompt.0.content", "answer": "reward_model.ground_truth"}
    task = make_task({"name": "jsonl", "path": path, "fields": fields})
    problem = task.problem("train", 0)
    assert (problem.text[:7], problem.answer) == ("Number ", "7")
    assert problem.data["columns"]["reward_model"]["style"] == "rule"


PROPOSALS: list[tuple[dict[str, Any], Section, str]] = [
    (
        {"problem": "a", "answer": "1"},
        {},
        "did you mean 'problem'? Name it by --question problem, or --set task.fields.question=",
    ),
    ({"text": "a", "answer": "1"}, {}, "--set task.fields.question=text"),
    (NESTED, {}, "--set task.fields.question=prompt.0.content"),
    (NESTED, {"question": "prompt.0.content"}, "--set task.fields.answer=reward_model.ground_truth"),
    ({"question": "a", "solution": "so \\boxed{1}"}, {}, "--set task.fields.answer=solution --set task.answer_in_box=true"),
    ({"question": "a", "gold": 3}, {}, "--answer gold"),
    ({"question": "a", "x": "1"}, {}, "the row has question, x: name it by --answer NAME"),
    ({"question": "a", "x": "1"}, {}, "--set task.fields.answer= where there are no reference answers"),
    ({"question": "a", "answer": "1"}, {"question": "qestion"}, "--set task.fields.question=question"),
    ({"question": "a", "answer": "1"}, {"solution": "worked"}, "field 'worked' is missing; name that of the worked solution"),
]


@pytest.mark.parametrize(("row", "fields", "said"), PROPOSALS, ids=range(len(PROPOSALS)))
def test_a_missing_field_is_proposed_and_never_guessed(row: dict[str, Any], fields: Section, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        make_task({"name": "jsonl", "path": write(tmp_path / "a.jsonl", [row]), "fields": fields})
    assert said in str(caught.value) and "line 1: field" in str(caught.value)


def test_solutions_apart_and_answers_in_boxes(tmp_path: Path) -> None:
    rows = [
        {"problem": f"{n}+1?", "solution": f"Add.\nSo $\\boxed{{\\text{{{n + 1}}}}}$.", "answer": n + 1, "level": "Level 5"}
        for n in range(20)
    ]
    section = {"name": "jsonl", "path": write(tmp_path / "a.jsonl", rows)}
    apart = make_task({**section, "fields": {"question": "problem", "solution": "solution"}})
    boxed = make_task({**section, "fields": {"question": "problem", "answer": "solution"}, "answer_in_box": True})
    one, other = apart.problem("train", 0), boxed.problem("train", 0)
    assert other.answer == f"\\text{{{one.answer}}}" and one.data["worked"] == other.data["worked"]
    assert one.data["worked"].startswith("Add.\nSo") and DEMONSTRATIONS in apart.offers
    with pytest.raises(DataError, match=r"line 1: field 'answer' has no .boxed"):
        make_task({**section, "fields": {"question": "problem"}, "answer_in_box": True})


def test_without_reference_answers_grades_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)  # nothing is compared: the grader is not needed
    path = write(tmp_path / "a.jsonl", [{"question": f"Write {n} words.", "answer": None} for n in range(20)])
    task = make_task({"name": "jsonl", "path": path, "fields": {"answer": ""}})
    problem = task.problem("train", 0)
    assert problem.answer == "" and task.grade(problem, "words", ()) == Grade(None) == task.grade(problem, None, ())
    assert task.extract("12", problem) is None


def test_unreadable_rows_can_be_left_out_and_are_counted(tmp_path: Path) -> None:
    rows = [*sums(range(20)), {"question": "no answer", "answer": ""}, {"question": "", "answer": "1"}]
    section = {"name": "jsonl", "path": write(tmp_path / "a.jsonl", rows)}
    with pytest.raises(DataError, match=r"line 21: field 'answer' is empty; task\.unreadable=skip leaves such rows out"):
        make_task(section)
    described = make_task({**section, "unreadable": "skip"}).describe()
    assert described["rows_left_out"] == 2 and sum(described["sizes"].values()) == 20
    with pytest.raises(DataError, match="line 1: field 'quest' is missing"):
        make_task({**section, "unreadable": "skip", "fields": {"question": "quest"}})


# Levels.


@pytest.mark.parametrize(
    ("value", "level"),
    [(3, 3), ("Level 5", 5), ("2", 2), ("Level ?", None), (None, None), (True, None), (2.5, None), (MISSING, None)],
)
def test_a_level_is_an_integer_or_the_one_in_a_text(value: Any, level: int | None) -> None:
    assert parse_level(value) == level


def test_levels_restrict_the_problems_and_held_out_ones_stay_held_out(tmp_path: Path) -> None:
    rows = [{**row, "level": f"Level {n % 3}"} for n, row in enumerate(sums(range(120)))]
    section = {"name": "jsonl", "path": write(tmp_path / "a.jsonl", rows)}
    task = make_task(section)
    assert task.levels == (0, 1, 2) and LEVELS in task.offers
    parts = [task.at_level(level) for level in task.levels]
    for split in SPLITS:
        assert set.union(*(texts(part, split) for part in parts)) == texts(task, split)
        assert sum(part.size(split) or 0 for part in parts) == task.size(split)
    assert task.at_level(1) is task.at_level(1) and parts[1].problem("train", 0).data["columns"]["level"] == "Level 1"
    some = make_task({**section, "levels": [0, 2]})
    assert some.levels == (0, 2) and sum(some.describe()["sizes"].values()) == 80
    with pytest.raises(DataError, match=r"no train row has one of the levels task\.levels=\[7\]; there are 0, 1, 2"):
        make_task({**section, "levels": [7]})
    with pytest.raises(DataError, match=r"no row has a level: name its field, task\.fields\.level"):
        make_task({**section, "levels": [1], "fields": {"level": "difficulty"}})
    assert make_task({**section, "fields": {"level": "none"}}).levels == ()


# Sizes.


@pytest.mark.parametrize(
    ("rows", "held_out"),
    [(8, 2), (15, 3), (16, 4), (20, 4), (63, 4), (64, 16), (320, 16), (400, 20), (7473, 374), (10_240, 512), (10**6, 512)],
)
def test_how_many_problems_are_held_out(rows: int, held_out: int) -> None:
    """A twentieth, at least 16 of 64 rows or 4 of fewer, at most 512 and a quarter: by hand, round(0.05 · 7473) = 374."""
    assert choose_held_out_count(rows) == held_out


@pytest.mark.parametrize("seed", range(5))
def test_a_small_file_always_has_dev_and_test_problems(seed: int, tmp_path: Path) -> None:
    path = write(tmp_path / "small.jsonl", sums(range(1000 * seed, 1000 * seed + 20)))
    assert make_task({"name": "jsonl", "path": path}).describe()["sizes"] == {"train": 12, "dev": 4, "test": 4}


def test_a_file_that_is_too_small_is_said_in_one_line(tmp_path: Path) -> None:
    section = {"name": "jsonl", "path": write(tmp_path / "tiny.jsonl", sums(range(7)))}
    with pytest.raises(DataError, match="task 'jsonl' has 7 rows, too few to hold some out: give it 8 or more"):
        make_task(section)
    assert make_task({**section, "dev": 2, "test": 0}).describe()["sizes"] == {"train": 5, "dev": 2, "test": 0}


def test_no_problem_is_measured_twice_and_the_config_says_how_many(tmp_path: Path) -> None:
    path = write(tmp_path / "small.jsonl", sums(range(20)))
    config = {"recipe": "grpo", "policies": {"generator": {"model": "embedded"}}, "eval": {"problems": 64}}
    plan = resolve([config, {"task": {"name": "jsonl", "path": path}}])
    assert plan.config.eval.problems == 4
    with pytest.raises(ConfigError, match="has no dev problems to measure on"):
        resolve([config, {"task": {"name": "jsonl", "path": path, "dev": 0}}])


def test_mathematics_with_levels() -> None:
    folder = shared_data("math")
    paths = {"path": str(folder / "train.jsonl"), "test_path": str(folder / "test.jsonl")}
    task = make_task({"name": "jsonl", **paths, "unreadable": "skip", "levels": [4, 5]})
    assert task.levels == (4, 5) and task.describe()["rows_left_out"] == 2
    problems = task.draw_problems("test", 0, 200)
    assert all(grade.correct for grade in task.grade_all([(p, p.answer, ()) for p in problems]))


# Grades.


def test_grades_are_those_of_mathematics_in_order(section: Section) -> None:
    task = make_task(section)
    problems = task.draw_problems("train", 0, 4)
    value = int(problems[2].answer)
    answers = [problems[0].answer, None, f"\\frac{{{2 * value}}}{{2}}", "no idea"]
    items = [(problem, answer, ("a step",)) for problem, answer in zip(problems, answers, strict=True)]
    assert task.grade_all(items) == [Grade(True), Grade(False), Grade(True), Grade(False)]
    assert task.grade(*items[0]) == Grade(True)
    assert task.max_tokens == 1024
    assert make_task({**section, "max_tokens": 99}).max_tokens == 99


def test_votes_on_numbers_need_no_grader(section: Section) -> None:
    """64 different fractions are 2016 pairs, each of which was mathematics once: eight seconds for one problem."""
    with Grader() as grader:
        task = Jsonl(JsonlOptions(path=section["path"]), grader)
        fractions = [f"\\frac{{{n}}}{{67}}" for n in range(1, 33)] + [f"{n}/67" for n in range(33, 65)]
        assert task.group_equal_answers(fractions) == list(range(64))
        same = ["0.5", None, "1/2", "\\frac12", "$\\dfrac{2}{4}$", "7", ".50", "-1/2"]
        assert task.group_equal_answers(same) == [0, None, 0, 0, 0, 1, 0, 2]
        assert grader.counts["asked"] == 0


def test_votes_ask_the_grader_about_the_rest_within_bounds(section: Section) -> None:
    with Grader() as grader:
        task = Jsonl(JsonlOptions(path=section["path"]), grader)
        assert task.group_equal_answers(["x+1", "2", "1+x", "\\sqrt{4}", "y"]) == [0, 1, 0, 1, 2]
        before = grader.counts["asked"]
        assert task.group_equal_answers([f"x+{n}" for n in range(24)]) == list(range(24))
        assert 24 * 23 / 2 > MOST_COMPARED >= grader.counts["asked"] - before


@PROPERTY
@given(st.lists(st.tuples(st.integers(-30, 30), st.integers(1, 12)), max_size=12), st.data())
def test_numbers_are_grouped_by_their_values(values: list[tuple[int, int]], data: st.DataObject) -> None:
    spelt = []
    for over, under in values:
        forms = [f"{over}/{under}", f"{2 * over}/{2 * under}", f"{'-' if over < 0 else ''}\\frac{{{abs(over)}}}{{{under}}}"]
        spelt.append(data.draw(st.sampled_from(forms)))
    assert [find_canonical_form(text) for text in spelt] == [Fraction(over, under) for over, under in values]


@PROPERTY
@given(st.text())
def test_any_text_has_a_canonical_form(text: str) -> None:
    assert find_canonical_form(text) is not None


def test_gsm8k_from_a_folder() -> None:
    task = make_task({"name": "gsm8k", "path": str(shared_data("gsm8k"))})
    described = task.describe()
    removed = described["overlaps_removed"]
    assert described["sizes"]["test"] == 1319
    assert sum(described["sizes"].values()) + sum(removed.values()) == 7473 + 1319
    assert described["sizes"]["dev"] == 374, "a twentieth of 7473"
    assert all(not texts(task, a) & texts(task, b) for a, b in itertools.combinations(SPLITS, 2))
    problems = task.draw_problems("test", 0, 1319)
    assert all(p.answer and "#" not in p.answer for p in problems)
    assert all(g.correct for g in task.grade_all([(p, f"${p.answer}.00", ()) for p in problems]))
    wrong = task.grade_all([(p, f"1{p.answer}", ()) for p in problems])
    assert [g.correct for g in wrong] == [False] * 1319


def test_gsm8k_needs_both_files(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [{"question": "a", "answer": "#### 1"}])
    with pytest.raises(DataError, match=r"test\.jsonl' does not exist"):
        make_task({"name": "gsm8k", "path": str(tmp_path)})


def test_hub_through_the_datasets_package(tmp_path: Path) -> None:
    """In a process of its own: the package reads its settings, such as being offline, when it is imported."""
    pytest.importorskip("datasets")
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train.jsonl", sums(range(200)))
    write(tmp_path / "data" / "test.jsonl", sums(range(190, 210)))
    sections: list[Section] = [
        {"name": "hub", "dataset": str(tmp_path / "data"), "test_split": "test"},
        {"name": "hub", "dataset": str(tmp_path / "data"), "train_split": "trian"},
        {"name": "hub", "dataset": str(tmp_path / "data"), "fields": {"question": "questions"}},
        {"name": "gsm8k"},
    ]
    script = """
import json, sys
from milonga.errors import DataError
from milonga.tasks import make_task
for section in json.loads(sys.argv[1]):
    try:
        print(json.dumps(make_task(section).describe()))
    except DataError as error:
        print(json.dumps(str(error)))
"""
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", script, json.dumps(sections)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    described, split, field, offline = (json.loads(line) for line in done.stdout.splitlines())
    assert described["sizes"]["test"] == 20
    assert sum(described["sizes"].values()) + sum(described["overlaps_removed"].values()) == 220
    assert "cannot load split 'trian'" in split
    assert "row 1: field 'questions' is missing; did you mean 'question'? Name it by --question question" in field
    assert "cannot load split 'train' of data set 'openai/gsm8k (main)'" in offline
    assert "\n" not in offline


def test_a_missing_grader_is_named_before_anything_is_loaded(section: Section, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(MissingExtra, match=r"\.\[math\]"):
        make_task(section)


@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
def test_a_data_set_in_a_folder_fetches_nothing_from_elsewhere(tmp_path: Path, file: str) -> None:
    pytest.importorskip("huggingface_hub")
    (tmp_path / "train.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    path = "http://127.0.0.1:9/train.jsonl"
    (tmp_path / file).write_text(f"---\nconfigs:\n- config_name: default\n  data_files: '{path}'\n---\n")
    with pytest.raises(DataError, match=f"names its files in {file}") as refused:
        make_task({"name": "hub", "dataset": str(tmp_path)})
    assert "\n" not in str(refused.value)


def test_hub_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"\.\[hub\]"):
        make_task({"name": "gsm8k"})
