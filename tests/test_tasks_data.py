"""Tasks from data: rows are read or refused by name, splits are disjoint, the order is keyed."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from milonga.errors import ConfigError, DataError, MissingExtra
from milonga.tasks import Task, make_task, normalise_text
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
    section = {**section, "dev_share": 0.1, "test_share": 0.2}
    task, reordered = make_task(section), make_task({**section, "seed": 5})
    found = {split: texts(task, split) for split in SPLITS}
    assert sum(len(found[split]) for split in SPLITS) == 400
    assert all(not found[a] & found[b] for a, b in itertools.combinations(SPLITS, 2))
    assert 20 < len(found["dev"]) < 65
    assert 50 < len(found["test"]) < 120
    assert {split: texts(reordered, split) for split in SPLITS} == found, "the seed orders, it does not split"


def test_repetitions_of_a_question_stay_on_one_side(tmp_path: Path) -> None:
    rows = sums(range(100)) + [{"question": f"  WHAT is {n} +  1? ", "answer": str(n + 1)} for n in range(100)]
    task = make_task({"name": "jsonl", "path": write(tmp_path / "a.jsonl", rows), "dev_share": 0.3, "test_share": 0.3})
    assert task.describe()["overlaps_removed"] == {"train_dev": 0, "train_test": 0, "dev_test": 0}
    assert sum(task.describe()["sizes"].values()) == 200


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
    marked = {"question": "q", "answer": "a", "answer_after": "####", "dev_share": 0, "test_share": 0}
    task = make_task({"name": "jsonl", "path": path, **marked})
    assert {p.text: p.answer for p in task.draw_problems("train", 0, 2)} == {"a": "6,000", "b": "7"}
    rows = [{"question": "a", "answer": 12}, {"question": "b", "answer": 0.5}]
    task = make_task({"name": "jsonl", "path": write(tmp_path / "n.jsonl", rows), "dev_share": 0, "test_share": 0})
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
    with pytest.raises(ConfigError, match="leave nothing to train on"):
        make_task({**section, "dev_share": 0.5, "test_share": 0.5})
    with pytest.raises(DataError, match=r"nowhere\.jsonl' does not exist"):
        make_task({"name": "jsonl", "path": str(tmp_path / "nowhere.jsonl")})
    with pytest.raises(DataError, match="cannot be read"):
        make_task({"name": "jsonl", "path": str(tmp_path)})
    with pytest.raises(DataError, match="nothing is left to train on"):
        make_task({**section, "test_path": section["path"], "dev_share": 0})
    empty = make_task({**section, "dev_share": 0})
    with pytest.raises(DataError, match="has no dev problems"):
        empty.problem("dev", 0)


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


def test_gsm8k_from_a_folder() -> None:
    task = make_task({"name": "gsm8k", "path": str(shared_data("gsm8k"))})
    described = task.describe()
    removed = described["overlaps_removed"]
    assert described["sizes"]["test"] == 1319
    assert sum(described["sizes"].values()) + sum(removed.values()) == 7473 + 1319
    assert 300 < described["sizes"]["dev"] < 450
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
        {"name": "hub", "dataset": str(tmp_path / "data"), "question": "questions"},
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
    assert "row 1: field 'questions' is missing; did you mean 'question'?" in field
    assert "cannot load split 'train' of data set 'openai/gsm8k (main)'" in offline
    assert "\n" not in offline


def test_a_missing_grader_is_named_before_anything_is_loaded(section: Section, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(MissingExtra, match=r"\.\[math\]"):
        make_task(section)


def test_hub_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"\.\[hub\]"):
        make_task({"name": "gsm8k"})
