"""Tasks of the user's own: a file or a module, a class or a function, and one clear line for every mistake."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path
from typing import Any

import pytest

from milonga.errors import ConfigError
from milonga.tasks import make_task, normalise_text
from milonga.types import SPLITS

FUNCTION = """
def doubling(rng):
    n = rng.randrange(10**6)
    return f"Double {n}", str(2 * n)
"""
CLASS = """
from __future__ import annotations

from pydantic import Field

from milonga import Grade, Problem, Task, TaskOptions


class Options(TaskOptions):
    most: int = Field(9, ge=1)


class Counting(Task):
    Options = Options
    options: Options

    def problem(self, split, index):
        return Problem(f"{split}/{index}", f"{split} {index % self.options.most}", str(index % self.options.most))

    def grade(self, problem, answer, steps):
        return Grade(answer == problem.answer)
"""


def write(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def test_a_function_becomes_a_procedural_task(tmp_path: Path) -> None:
    task = make_task({"name": f"{write(tmp_path, FUNCTION)}:doubling", "seed": 3})
    assert task.name == "doubling"
    problems = {split: task.draw_problems(split, 0, 100) for split in SPLITS}
    texts = {split: {normalise_text(p.text) for p in problems[split]} for split in SPLITS}
    assert all(not texts[a] & texts[b] for a, b in itertools.combinations(SPLITS, 2))
    assert task.size("train") is None
    problem = problems["dev"][0]
    assert task.grade(problem, f" {problem.answer}\n", ()).correct is True
    assert task.grade(problem, f"{problem.answer}1", ()).correct is False
    assert task.grade(problem, None, ()).correct is False


def test_a_function_is_drawn_by_key(tmp_path: Path) -> None:
    here = make_task({"name": f"{write(tmp_path, FUNCTION)}:doubling"})
    there = make_task({"name": f"{write(tmp_path / 'elsewhere', FUNCTION)}:doubling"})
    other = make_task({"name": f"{write(tmp_path, FUNCTION)}:doubling", "seed": 1})
    assert here.problem("train", 7) == there.problem("train", 7), "where the file lies does not matter"
    assert here.problem("train", 7).text != other.problem("train", 7).text


def test_a_class_brings_its_own_options(tmp_path: Path) -> None:
    name = f"{write(tmp_path, CLASS)}:Counting"
    task = make_task({"name": name, "most": 3})
    assert task.name == "Counting"
    assert task.problem("dev", 4).answer == "1"
    assert task.grade(task.problem("dev", 4), "1", ()).correct
    assert type(task) is type(make_task({"name": name})), "the same file is the same module"
    with pytest.raises(ConfigError, match=r"unknown key 'task\.mots': did you mean 'most'"):
        make_task({"name": name, "mots": 3})


def test_a_module_on_the_path_or_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "", "milonga_mine/__init__.py")
    write(tmp_path, FUNCTION, "milonga_mine/tasks.py")
    monkeypatch.chdir(tmp_path)
    assert make_task({"name": "milonga_mine.tasks:doubling"}).problem("train", 0).text.startswith("Double")


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, FUNCTION, "milonga_neighbour.py")
    path = write(tmp_path, "from milonga_neighbour import doubling\n", "front.py")
    assert make_task({"name": f"{path}:doubling"}).problem("train", 0).text.startswith("Double")


@pytest.mark.parametrize(
    "where",
    ["def grade(question, answer, given):", "def own(question, answer, given):"],
    ids=["module", "attribute"],
)
def test_a_grader_of_its_own(tmp_path: Path, where: str) -> None:
    body = '    return {"yes": True, "no": False, "unsure": None}[given]\n'
    attached = "doubling.grade = own\n" if "own" in where else ""
    path = write(tmp_path, f"{FUNCTION}\n{where}\n{body}{attached}")
    task = make_task({"name": f"{path}:doubling"})
    problem = task.problem("train", 0)
    assert [task.grade(problem, a, ()).correct for a in ("yes", "no", "unsure")] == [True, False, None]
    with pytest.raises(ConfigError, match=r"on the question 'Double \d+' failed in mine\.py, line 7: KeyError"):
        task.grade(problem, "an exception", ())


MISTAKES = [
    ("x = 1\n", "doubling", "there is no 'doubling' in"),
    (FUNCTION, "dubling", "there is no 'dubling' in '.*'; did you mean 'doubling'"),
    ("doubling = 3\n", "doubling", "neither a Task subclass nor a function f.rng., but a value of type int"),
    ("class Doubling: pass\n", "Doubling", "but another class"),
    ("x = 1\n\ny = 1 / 0\n", "doubling", r"mine\.py, line 3: ZeroDivisionError"),
    ("x = 1\ndef f(:\n", "f", r"mine\.py, line 2: SyntaxError"),
    ("import no_such_package\n", "f", r"mine\.py, line 1: ModuleNotFoundError: No module named 'no_such_package'"),
    ("import json\njson.loads('{')\n", "f", r"mine\.py, line 2: JSONDecodeError"),
    ("raise SystemExit(3)\n", "f", r"mine\.py, line 1: SystemExit: 3"),
    ("raise ValueError('two\\nlines')\n", "f", r"mine\.py, line 1: ValueError: two$"),
    ("from milonga import Task\nclass Half(Task): pass\n", "Half", "class 'Half' does not define grade and problem"),
]


@pytest.mark.parametrize(("content", "attr", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_one_clear_line(tmp_path: Path, content: str, attr: str, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ConfigError, match=message) as caught:
        make_task({"name": f"{path}:{attr}"})
    assert "\n" not in str(caught.value)


def test_a_mended_file_can_be_loaded_again(tmp_path: Path) -> None:
    path = write(tmp_path, "raise ValueError('not yet')\n")
    with pytest.raises(ConfigError):
        make_task({"name": f"{path}:doubling"})
    path.write_text(FUNCTION + "# mended\n")
    assert make_task({"name": f"{path}:doubling"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere/at/all.py:f", r"task file 'nowhere/at/all\.py' does not exist"),
        ("no_such_package.tasks:f", "cannot be found: there is no 'no_such_package'"),
        ("milonga.no_such_module:f", r"cannot be found: there is no 'milonga\.no_such_module'"),
        ("some words:f", "neither a file that ends in .py nor the name of a module"),
        (":f", "is named 'path/to/file.py:attr'"),
        ("mine.py:", "is named 'path/to/file.py:attr'"),
    ],
)
def test_a_wrong_name_is_one_clear_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_task({"name": name})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    return 'only a question'", "must return two texts"),
        ("    return 'a question', 3", "must return two texts"),
        ("    return rng.no_such_thing()", r"mine\.py, line 2: AttributeError"),
        ("    return 'always the same', '1'", "too few different ones"),
    ],
)
def test_a_function_that_does_not_do_its_work(tmp_path: Path, body: str, message: str) -> None:
    path = write(tmp_path, f"def f(rng):\n{body}\n")
    task = make_task({"name": f"{path}:f"})
    with pytest.raises(ConfigError, match=message):
        [task.problem(split, 0) for split in SPLITS]


def test_options_of_a_function_are_checked(tmp_path: Path) -> None:
    name = f"{write(tmp_path, FUNCTION)}:doubling"
    assert make_task({"name": name, "max_tokens": 77}).max_tokens == 77
    sections: list[dict[str, Any]] = [{"sed": 1}, {"max_tokens": 0}]
    for section in sections:
        with pytest.raises(ConfigError, match=r"'task\."):
            make_task({"name": name, **section})
