"""Repairing repositories: what counts as a bug, who may look at what, and that nobody grades himself."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import milonga
from helpers import PROPERTY, check_growth
from milonga.errors import ConfigError, DataError, UserError
from milonga.randomness import keyed_rng
from milonga.runfolder.files import JsonLines
from milonga.sandbox import IsolationError, Outcome
from milonga.systems.self_play_swe.roles import KINDS, Injector, Repairer, make_injector_request
from milonga.tasks import git_objects, make_task, normalise_text
from milonga.tasks.bugs import Bugs, BugsOptions
from milonga.tasks.bugs_checks import (
    CHECKS,
    Artifact,
    Bug,
    Injection,
    Repository,
    Requirements,
    Verdict,
    apply_edits,
    check_bug,
    edit_size,
)
from milonga.tasks.bugs_git import GitRepositories, export_repository, load_parts
from milonga.tasks.bugs_parts import split_repository
from milonga.tasks.bugs_patches import (
    empty_tests,
    find_bare_files,
    find_blocks,
    find_fences,
    find_removed_names,
    parse_blocks,
    parse_changes,
    render_blocks,
)
from milonga.tasks.bugs_pytest import find_installed_packages
from milonga.tasks.bugs_tiny import TinyRepositories, TinyRunner, parse_edits, parse_removed_tests, render_test_ids, run_tests
from milonga.types import SPLITS, Problem, Solution
from repository_helpers import BOXES, SUMS, TESTS, git, make_repository
from scripted import QUICK as SCRIPTED
from scripted import make_chat_model, script_model

CODE = {"a": "x+3", "b": "a*2", "c": "x-1"}
SUITE = {"test_a": "0=3\n2=5", "test_b": "1=8\n4=14", "test_c": "3=2\n5=4"}
REPOSITORY = Repository("one", CODE, SUITE, {"a": ("x+5", "x*2"), "b": ("a*3", "a-1"), "c": ("x+1", "x")})
EVERY = tuple(SUITE)
RUNNER, LEAST = TinyRunner(), Requirements()


def verdict(oracle: tuple[str, ...], bug: dict[str, str], removed: str, repository: Repository = REPOSITORY) -> str | None:
    weaken = parse_removed_tests(removed, repository.tests)
    assert weaken is not None
    return check_bug(repository, Artifact(oracle, bug, weaken), RUNNER, LEAST).failed


# What counts as a bug.


def test_a_file_sees_those_before_it_and_a_test_passes_by_its_value_alone() -> None:
    assert run_tests({**CODE, **SUITE}, EVERY) == dict.fromkeys(("a0", "a2", "b1", "b4", "c3", "c5"), True)
    broken = run_tests({**CODE, **SUITE, "a": "x+2"}, EVERY)
    assert broken == {"a0": False, "a2": False, "b1": False, "b4": False, "c3": True, "c5": True}
    assert run_tests({**SUITE, "b": "a*2"}, ("test_b",)) == {"b1": False, "b4": False}, (
        "a file that is missing fails nobody else"
    )


def test_a_bug_that_satisfies_all_checks_counts() -> None:
    found = check_bug(REPOSITORY, Artifact(EVERY, {"b": "a*3"}, {"test_b": "4=14"}), RUNNER, LEAST)
    assert found == Verdict(None, frozenset({"b1", "b4"}), frozenset(run_tests(REPOSITORY.tree, EVERY) or {}))
    assert verdict(EVERY, {"a": "x+4", "c": "x+1"}, "a0 c3") is None


CONSTANT = Repository("constant", {"a": "x+3", "b": "a*2", "c": "x-1"}, {**SUITE, "test_c": "what is this"})
VIOLATIONS = {
    # check that fails: oracle, bug, tests that are removed, repository
    "oracle": (("test_a", "test_b"), {"b": "a*3"}, "b1 c3", REPOSITORY),
    "parser": (EVERY, {"b": "a*3"}, "b1", CONSTANT),
    "passing": (("test_b", "test_c"), {"b": "a*3"}, "b1", REPOSITORY),
    "changed": (EVERY, {"b": "a*2"}, "b1", REPOSITORY),
    "failing": (EVERY, {"b": "a+a"}, "b1", REPOSITORY),
    "weakened": (EVERY, {"b": "a*3"}, "c3", REPOSITORY),
    # The second change hides behind the first: taking it back alone mends nothing.
    "inverse": (EVERY, {"b": "a*3", "c": "1*x-1"}, "b1", REPOSITORY),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_each_check_violated_alone_is_named(name: str) -> None:
    oracle, bug, removed, repository = VIOLATIONS[name]
    assert verdict(oracle, bug, removed, repository) == name


def test_a_bug_that_looks_at_how_the_code_is_written_is_not_stable() -> None:
    class Looking(TinyRunner):
        def perturb_code(self, code):  # type: ignore[no-untyped-def]
            return {**super().perturb_code(code), "b": CODE["b"]}

    artifact = Artifact(EVERY, {"b": "a*3"}, {"test_b": "4=14"})
    assert check_bug(REPOSITORY, artifact, Looking(), LEAST).failed == "stable"
    assert set(VIOLATIONS) | {"stable"} == set(CHECKS)


def test_a_test_that_the_bug_took_away_was_not_taken_away_by_the_weakening() -> None:
    class Derived(TinyRunner):
        """Tests of b whose ids follow from its code, as those of cases that the code lists do."""

        def run(self, trees, oracle):  # type: ignore[no-untyped-def]
            reports = zip(trees, super().run(trees, oracle), strict=True)
            return [
                {id: ok for id, ok in (report or {}).items() if id[0] != "b" or "3" not in tree["b"]}
                for tree, report in reports
            ]

    for weaken in ({}, {"test_b": SUITE["test_b"]}, {"test_a": "2=5"}):
        assert check_bug(REPOSITORY, Artifact(EVERY, {"b": "a*3"}, weaken), Derived(), LEAST).failed == "weakened"


def test_bugs_touch_code_alone_and_weakenings_tests_alone() -> None:
    assert check_bug(REPOSITORY, Artifact(EVERY, {"test_a": ""}, {"test_a": "2=5"}), RUNNER, LEAST).failed == "changed"
    assert check_bug(REPOSITORY, Artifact(EVERY, {"b": "a*3"}, {"c": "x"}), RUNNER, LEAST).failed == "oracle"
    assert verdict(EVERY, {"b": "a*3"}, "b7") == "oracle", "a test that nobody has"
    assert edit_size("one\ntwo\n", "one\nthree\n") == 8 and edit_size("one\n", "one\n") == 0
    huge = Requirements(size=7)
    assert check_bug(REPOSITORY, Artifact(EVERY, {"b": "a*3+1"}, {"test_b": "4=14"}), RUNNER, huge).failed == "changed"


def test_inverse_mutation_wants_every_changed_file_to_mend_something() -> None:
    """b is wrong twice over: putting back `a` alone, or `b` alone, mends no test of b; only tests of a tell."""
    assert verdict(EVERY, {"a": "x+4", "b": "a*3"}, "a0") == "inverse"
    assert verdict(EVERY, {"a": "x+4", "c": "x"}, "a0 c3") is None


# The task.


def test_problems_are_functions_of_split_and_index_and_splits_are_apart() -> None:
    task, again = Bugs(), Bugs()
    texts = {split: {normalise_text(task.problem(split, n).text) for n in range(40)} for split in SPLITS}
    assert all(task.problem(split, 3).text == again.problem(split, 3).text for split in SPLITS)
    assert not texts["train"] & texts["dev"] and not texts["train"] & texts["test"] and not texts["dev"] & texts["test"]
    names = {split: {task.problem(split, n).data["bug"].repository.name for n in range(40)} for split in SPLITS}
    assert not names["train"] & (names["dev"] | names["test"]), "a repository is of one split"


@pytest.mark.parametrize("options", [{}, {"functions": 5, "ops": 2, "tests": 4, "changed": 3}, {"min_changed": 2}])
def test_made_up_bugs_pass_the_checks_and_are_repaired_by_their_answers(options: dict[str, int]) -> None:
    task = Bugs(BugsOptions(**options))
    for index in range(12):
        problem = task.problem("train", index)
        bug: Bug = problem.data["bug"]
        assert task.check_artifact(bug.repository, bug.artifact, LEAST).failed is None
        assert options.get("min_changed", 1) <= len(bug.artifact.bug) <= task.options.changed
        assert task.grade(problem, problem.answer, ()).correct and task.matches_on_all_inputs(problem, problem.answer)
        nothing = lines_of(problem)
        assert task.grade(problem, nothing, ()).correct is False, "what was there before is no repair"
        assert not any(version in problem.text.split("|")[1] for olds in bug.repository.history.values() for version in olds)


def lines_of(problem: Problem) -> str:
    return problem.text.split("|")[0]


def test_demonstrations_are_wrong_exactly_where_they_should_be() -> None:
    task = Bugs()
    for index in range(20):
        problem = task.problem("train", index)
        assert task.demonstrate(problem, keyed_rng(index)).correct
        shown = task.demonstrate(problem, keyed_rng(index), {0})
        assert shown.truth[0] is False and all(shown.truth[1:]) and shown.steps[1:] == shown.checks[1:]
        role = Repairer("terse")
        assert role.parse(role.write(shown.steps, shown.answer)).value.answer == shown.answer


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "b",
        "b=",
        "b=a*",
        "b=a**2",
        "b=a*2;b=a*2",
        "z=x",
        "b=__import__('os')",
        None,
        "b=True",
        "b=a*\uff12",
        "b=x==x",
        "b=a*2;test_b=1=8",
        "test_b=1=8",
        "b=a*2|b1=8",
        "b=a*2\x00",
        "b=b*2",
        "b='8'",
        "b=8.0",
    ],
)
def test_what_is_no_patch_is_wrong(answer: str | None) -> None:
    problem = posed({"b": "a*3"}, "b1 b4")
    assert Bugs().grade(problem, answer, ()).correct is False


def posed(bug: dict[str, str], removed: str) -> Problem:
    artifact = Artifact(EVERY, bug, parse_removed_tests(removed, SUITE) or {})
    return Bugs().make_problem("one", Bug(REPOSITORY, artifact, check_bug(REPOSITORY, artifact, RUNNER, LEAST)))


def test_a_solver_sees_the_broken_files_and_the_removed_tests_and_nothing_else() -> None:
    problem = posed({"b": "a*3"}, "b1 c3")
    assert problem.text == "a=x+3;b=a*3;c=x-1|b1=8 c3=2" and problem.answer == "b=a*2"
    task = Bugs()
    assert task.grade(problem, "b=a+a", ()).correct, "any repair will do"
    assert not task.grade(problem, "b=x+7", ()).correct, "right for the removed test alone"
    assert task.repositories.render_for_injector(REPOSITORY) == "a=x+3|x+5|x*2@02;b=a*2|a*3|a-1@14;c=x-1|x+1|x@35"


def test_a_repair_of_the_tests_alone_can_be_told_from_one_that_holds() -> None:
    artifact = Artifact(("test_a", "test_b"), {"b": "a*3"}, {"test_b": ""})
    narrow = replace(REPOSITORY, tests={**SUITE, "test_b": "1=8"})
    problem = Bugs().make_problem("two", Bug(narrow, artifact, check_bug(narrow, artifact, RUNNER, Requirements(passing=1))))
    assert Bugs().grade(problem, "b=x+7", ()).correct and not Bugs().matches_on_all_inputs(problem, "b=x+7")


def test_a_failed_patch_is_the_start_of_a_bug_of_the_second_order_with_the_same_specification() -> None:
    task, problem = Bugs(), posed({"b": "a*3"}, "b1")
    second = task.make_problem("two", problem.data["bug"], "source", {"c": "x"})
    assert second.text == "a=x+3;b=a*3;c=x|b1=8" and second.source == "source"
    assert not task.grade(second, problem.answer, ()).correct and task.grade(second, "b=a*2;c=x-1", ()).correct


def test_removed_tests_are_written_and_read() -> None:
    assert render_test_ids(["c3", "b4", "b1"]) == "b14 c3" and parse_removed_tests("b14 c3", SUITE) == {
        "test_b": "",
        "test_c": "5=4",
    }
    assert parse_removed_tests("b1,b4", SUITE) is None and parse_removed_tests("", SUITE) == {}


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="abcx123+*-=;| \n<>FILE", max_size=40))
def test_no_text_breaks_the_readers(text: str) -> None:
    for found in (parse_edits(text), parse_removed_tests(text, SUITE), parse_blocks(text, SUITE)):
        assert found is None or all(isinstance(name, str) for name in found)
    for role in (Repairer, Injector):
        for parsed in (role("terse").parse(text), role("tagged").parse(text), role("plain").parse(text)):
            assert 0 <= parsed.format <= 1 and (parsed.format == 1) >= parsed.is_valid


@pytest.mark.parametrize("dialect", ["terse", "tagged"])
def test_what_an_injector_writes_reads_back(dialect: str) -> None:
    role = Injector(dialect)  # type: ignore[arg-type]
    for injection in (Injection("b=a*3", "b14 c3"), Injection("b=a*3;c=x", "b1")):
        assert role.parse(role.write(injection)).value == injection
    assert not role.parse("b=a*3").is_valid
    for kind in KINDS:
        asked = make_injector_request(
            posed({"b": "a*3"}, "b1"), kind, TinyRepositories.render_for_injector(Bugs().repositories, REPOSITORY)
        )  # type: ignore[arg-type]
        assert "@14" in "".join(part.text for part in role.prompt(asked))


def test_wrong_options_are_one_line() -> None:
    with pytest.raises(ConfigError, match="of 2 functions"):
        make_task({"name": "bugs", "functions": 2, "changed": 3})
    with pytest.raises(ConfigError, match="too few tests"):  # or the first bug would be looked for without end
        make_task({"name": "bugs", "functions": 2, "tests": 2})


# Real repositories.


MANY = "@pytest.mark.parametrize('a', range(1200))"
SPOILT = {
    "tests/test_bad.py": "def test_bad():\n    assert 1 == 2\n\n\ndef test_good():\n    assert True\n",
    "tests/test_lost.py": "import no_such_package\n\n\ndef test_lost():\n    pass\n",
    "tests/test_syntax.py": "def test_syntax(:\n",
}
"""Tests as real repositories have them: one fails, one wants what is not installed, one is no Python."""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Bugs:
    folder = make_repository(tmp_path_factory.mktemp("git") / "boxes", SPOILT)
    task = make_git_task(folder, bugs=3)
    task.make_ready()
    return task


def broken(task: Bugs) -> Problem:
    """The area is a sum again, and the tests are weakened."""
    assert isinstance(task.repositories, GitRepositories)
    repository = task.repositories.repositories[0]
    injection = Injection(
        "FILE boxes.py\n<<<<<<< SEARCH\n    return a * b\n=======\n    return a + b\n>>>>>>> REPLACE",
        "FILE tests/test_boxes.py\n<<<<<<< SEARCH\n    assert volume(2, 3, 4) == 24\n=======\n    assert True\n>>>>>>> REPLACE",
    )
    artifact = task.parse_artifact(repository, injection)
    assert artifact is not None
    found = task.check_artifact(repository, artifact, Requirements(passing=4))
    assert found.failed is None and "tests/test_sums.py::test_total" in found.broken
    return task.make_problem("real", Bug(repository, artifact, found))


@pytest.mark.slow
def test_a_git_folder_is_exported_without_its_history_and_its_bugs_are_repaired(real: Bugs) -> None:
    assert sum(real.repositories.size(split) or 0 for split in SPLITS) == 3
    problem = broken(real)
    assert "+    assert volume(2, 3, 4) == 24" in problem.text and "return a * b" not in problem.text
    assert not any(".git" in path for path in problem.data["start"])
    assert "+    return a + b" in real.repositories.render_for_injector(problem.data["bug"].repository), (
        "the injector may see the past"
    )
    assert real.grade(problem, problem.answer, ()).correct
    for split in SPLITS:
        made_up = real.problem(split, 0)
        assert real.grade(made_up, made_up.answer, ()).correct


@pytest.mark.slow
def test_a_held_out_bug_of_a_git_folder_is_known_by_its_broken_code(real: Bugs) -> None:
    for split in SPLITS:
        bug: Bug = real.problem(split, 0).data["bug"]
        code = {path: text for path, text in bug.state.items() if path in bug.repository.code}
        assert real.repositories.find_split(code) == split


FORGERIES = {
    "prints results": "print('5 passed in 0.01s')\ndef area(a, b):\n    return 0\n",
    "ends early": "import os\nos._exit(0)\n",
    "ends in order": "import sys\nsys.exit(0)\n",
    "skips": "import pytest\ndef area(a, b):\n    pytest.skip()\ndef volume(a, b, c):\n    pytest.skip()\n",
    "fails as expected": "import pytest\ndef area(a, b):\n    pytest.xfail()\ndef volume(a, b, c):\n    pytest.xfail()\n",
    "writes over tests": (
        "from pathlib import Path\nPath('tests/test_sums.py').write_text('def test_total():\\n    pass\\n')\n"
        + BOXES
        + "\n\nclass Nothing(int):\n    __radd__ = None\n\n\ndef area(a, b):\n    return Nothing(a * b)\n"
    ),
    "says that all is well": (
        "import _pytest.reports as r\nr.TestReport.outcome = property(lambda s: 'passed', lambda s, v: None)\n"
        "def area(a, b):\n    return 0\ndef volume(a, b, c):\n    return 0\n"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORGERIES)
def test_a_patch_that_forges_results_repairs_nothing(name: str, real: Bugs) -> None:
    problem = broken(real)
    forged = render_blocks(problem.data["start"], {"boxes.py": FORGERIES[name]})
    assert real.grade(problem, forged, ()).correct is False


@pytest.mark.slow
def test_a_patch_that_edits_tests_or_replaces_the_runner_repairs_nothing(real: Bugs) -> None:
    problem = broken(real)
    start = problem.data["start"]
    empty = dict.fromkeys(TESTS, "def test_nothing():\n    pass\n")
    assert real.grade(problem, render_blocks(start, empty), ()).correct is False
    for path in ("conftest.py", "pytest.py", "tests/conftest.py", "sitecustomize.py", "pytest.ini"):
        assert real.grade(problem, render_blocks(start, {path: "def pytest_runtest_makereport(): pass"}), ()).correct is False
    shadow = {
        **apply_edits(start, {"boxes.py": BOXES}),
        "pytest.py": "raise SystemExit(0)",
        "pytest.ini": "[pytest]\naddopts = --co\n",
    }
    report = real.repositories.runner.run([shadow], sorted(TESTS))[0]
    assert report is not None and len(report) == 5, "and such files of a repository's own do not reach the runner"


@pytest.mark.slow
def test_tests_that_fail_or_cannot_be_imported_are_dropped_and_counted(real: Bugs) -> None:
    said = real.describe()
    assert said["tests"] == "6 pass every time, 1 do not and are dropped" and said["repositories"] == said["parts"] == 1
    silent = next(value for key, value in said.items() if "without results" in key)
    assert silent == "tests/test_lost.py, tests/test_syntax.py"
    problem = broken(real)
    specified = problem.data["bug"].verdict.specified
    assert "tests/test_bad.py::test_good" in specified and "tests/test_bad.py::test_bad" not in specified
    assert real.grade(problem, problem.answer, ()).correct, "a repair need not mend what never passed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "said"),
    [
        (
            {"tests/test_all.py": "def test_bad():\n    assert 1 == 2\n"},
            "of 1 tests of repository boxes none passes every time",
        ),
        (
            {"tests/test_all.py": "import no_such_package\n"},
            "sandbox: ModuleNotFoundError: No module named 'no_such",
        ),
        (
            {"tests/test_all.py": f"import pytest\n{MANY}\ndef test_many(a):\n    pass\n"},
            "more than 958 tests",
        ),
    ],
)
def test_a_repository_without_a_test_that_can_tell_is_an_error_before_training(
    tests: dict[str, str], said: str, tmp_path: Path
) -> None:
    folder = make_repository(tmp_path / "boxes", tests)
    git(folder, "rm", "-q", *TESTS)
    git(folder, "commit", "-qm", "third")
    with pytest.raises(DataError, match=re.compile(said, re.DOTALL)):
        make_git_task(folder, bugs=3).make_ready()


def make_git_task(folder: Path, **options: Any) -> Bugs:
    try:
        task = make_task({"name": "bugs", "path": str(folder), **options})
    except IsolationError as error:
        pytest.skip(str(error))
    assert isinstance(task, Bugs)
    return task


@pytest.mark.slow
def test_packages_of_an_environment_are_there_and_hide_nothing_of_the_tree(tmp_path: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    installed = tmp_path / "venv" / "lib" / version / "site-packages"
    installed.mkdir(parents=True)
    (installed / "lengths.py").write_text("METRE = 100\n")
    (installed / "boxes.py").write_text("raise ImportError('an older copy of the project itself')\n")
    (tmp_path / "venv" / "bin").mkdir()
    (tmp_path / "venv" / "bin" / "python").write_text("")
    more = {
        "tests/test_units.py": (
            "from pathlib import Path\n\nimport lengths\nfrom boxes import area\n\n\ndef test_units(tmp_path):\n"
            "    assert area(lengths.METRE, 2) == 200 and tmp_path.is_dir()\n"
            "    try:\n        Path(lengths.__file__).write_text('')\n    except OSError:\n        return\n"
            "    raise AssertionError('it can be written to')\n"
        )
    }
    folder = make_repository(tmp_path / "boxes", more)
    for environment in (tmp_path / "venv", tmp_path / "venv" / "bin" / "python"):
        task = make_git_task(folder, environment=str(environment))
        assert isinstance(task.repositories, GitRepositories)
        (repository,) = task.repositories.repositories
        assert task.repositories.runner.run([repository.tree], ["tests/test_units.py"]) == [
            {"tests/test_units.py::test_units": True}
        ]


def test_an_environment_of_another_python_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no virtual environment, and no interpreter of one"):
        find_installed_packages(tmp_path)
    (tmp_path / "lib" / "python2.7" / "site-packages").mkdir(parents=True)
    with pytest.raises(DataError, match=r"task\.environment: .* is one of python2\.7; tests run by python3"):
        find_installed_packages(tmp_path)


# Parts of large repositories.

LARGE = Repository(
    "large",
    {
        "src/shop/__init__.py": "from shop.prices import price\n",
        "src/shop/prices.py": "from .rates import RATE\n\n\ndef price(n):\n    return n * RATE\n",
        "src/shop/rates.py": "RATE = 3\n",
        "src/shop/stock.py": "def count():\n    return 7\n" + "# a long file\n" * 40,
        "unused.py": "x = 1\n",
    },
    {
        "tests/test_prices.py": "from shop import price\n\n\ndef test_price():\n    assert price(2) == 6\n",
        "tests/test_rates.py": "import shop.rates\n\n\ndef test_rate():\n    assert shop.rates.RATE == 3\n",
        "tests/test_stock.py": "from shop.stock import count\n\n\ndef test_count():\n    assert count() == 7\n",
        "tests/test_nothing.py": "def test_nothing():\n    pass\n",
    },
    rest={"README.md": "A shop."},
)


def test_a_repository_that_fits_is_one_part() -> None:
    assert split_repository(LARGE, 10_000) == [LARGE]


def test_a_part_is_a_file_of_tests_what_it_imports_and_tests_that_need_no_more() -> None:
    parts = {part.name: part for part in split_repository(LARGE, 400)}
    assert set(parts) == {"large:tests/test_rates.py", "large:tests/test_prices.py"}, "one imports nothing, one is too large"
    prices, rates = parts["large:tests/test_prices.py"], parts["large:tests/test_rates.py"]
    assert set(prices.code) == {"src/shop/__init__.py", "src/shop/prices.py", "src/shop/rates.py"}
    assert set(prices.tests) == {"tests/test_prices.py", "tests/test_rates.py"}
    assert set(rates.code) == {"src/shop/rates.py"} and set(rates.tests) == {"tests/test_rates.py"}
    for part in parts.values():
        assert part.tree == LARGE.tree, "the rest of the tree is there, and nobody may change it"
        assert sum(map(len, {**part.code, **part.tests}.values())) <= 400
    tight = split_repository(LARGE, 150)
    assert ["src/shop/prices.py" in part.code for part in tight if "tests/test_prices.py" in part.tests] == [False], (
        "what is imported directly comes first, and what no longer fits is left out"
    )


def test_of_a_large_git_folder_parts_are_loaded_with_their_history_and_it_is_said_what_is_left_out(tmp_path: Path) -> None:
    folder = make_repository(tmp_path / "boxes", {"long.py": "# nothing\n" * 100})
    parts, said = load_parts(folder, 500, seed=0)
    assert [sorted(part.code) for part in parts] == [["boxes.py", "sums.py"], ["boxes.py"]]
    assert said == "1 of 3 files of code of boxes" and len(parts[1].history["boxes.py"]) == 1
    with pytest.raises(DataError, match=r"fits into 90 characters with code that it imports; raise task\.shown"):
        load_parts(folder, 90, seed=0)


# Edits as models write them.

FILES = {"boxes.py": BOXES, "pack/sums.py": SUMS, **TESTS}
FIXED = "def area(a, b):\n    return abs(a * b)\n"
WHOLE = BOXES.replace("return a * b", "return abs(a * b)")


@pytest.mark.parametrize(
    "text",
    [
        f"The sign is lost.\n\nboxes.py\n```python\n{FIXED}```\nThat is all.",
        f"**`boxes.py`**:\n\n```python\n{FIXED}```",
        f"```python boxes.py\n{FIXED}```",
        f"```python\n# boxes.py\n{FIXED}```",
        f"```\nFILE boxes.py\n{FIXED}```",
        f"Here is the fixed function:\n```python\n{FIXED}```",
        f"Both boxes.py and pack/sums.py matter:\n```py\n{FIXED}```",
        f"src/square.py\n```python\n{FIXED}```",
        f"boxes.py\n```python\n{WHOLE}```",
        "```diff\n--- a/boxes.py\n+++ b/boxes.py\n@@ -7,2 +9 @@\n-    return a * b\n+    return abs(a * b)\n```",
        "boxes.py\n```\n<<<<<<< SEARCH\n    return a * b\n=======\n    return abs(a * b)\n>>>>>>> REPLACE\n```",
        "FILE boxes.py\n<<<<<<< SEARCH\n    return a * b\n=======\n    return abs(a * b)\n>>>>>>> REPLACE",
    ],
)
def test_edits_are_read_as_models_write_them(text: str) -> None:
    assert parse_changes(text, FILES) == {"boxes.py": WHOLE}


def test_a_function_alone_keeps_the_imports_of_its_file_and_brings_its_own() -> None:
    new = "import math\n\n\ndef total(pairs):\n    return math.fsum(area(a, b) for a, b in pairs)\n\n\ndef more():\n    pass\n"
    found = parse_changes(f"pack/sums.py\n```python\n{new}```", {**FILES, "pack/sums.py": SUMS + "\n\ndef one():\n    pass\n"})
    assert found is not None and found["pack/sums.py"] == (
        "from boxes import area\nimport math\n\n\ndef total(pairs):\n    return math.fsum(area(a, b) for a, b in pairs)\n\n\n"
        "def one():\n    pass\n\n\ndef more():\n    pass\n"
    )
    bare = "def total(pairs):\n    return 0\n"
    assert parse_changes(f"```python\n{bare}```", FILES) == {"pack/sums.py": f"from boxes import area\n\n\n{bare}"}


def test_what_a_file_says_beside_its_definitions_is_never_lost() -> None:
    tax, wrong = "def tax(x):\n    return x * RATE\n", "def tax(x):\n    return x + RATE\n"
    files = {"tax.py": f"RATE = 0.2\n\n\n{wrong}", "rates.py": "LOW = 0.1\nHIGH = 0.3\n"}
    for new in (tax, f"import math\n\n\n{tax}"):
        found = parse_changes(f"tax.py\n```python\n{new}```", files)
        assert found is not None and "RATE = 0.2" in found["tax.py"] and found["tax.py"].endswith(tax)
    assert parse_changes("rates.py\n```python\ndef new():\n    pass\n```", files) is None
    assert parse_changes("rates.py\n```python\nprint(LOW)\n```", files) is None
    anew = "LOW = 0.2\nHIGH = 0.4\n"
    assert parse_changes(f"rates.py\n```python\n{anew}```", files) == {"rates.py": anew}


def test_a_method_alone_is_put_into_its_class() -> None:
    content = "class Box:\n    @property\n    def side(self):\n        return 1\n\n    def area(self):\n        return 2\n"
    text = "box.py\n```python\n    @property\n    def side(self):\n        return 3\n```"
    assert parse_changes(text, {"box.py": content}) == {"box.py": content.replace("return 1", "return 3")}


BARE = BOXES.replace("a * b", "a + b")
BARE_FILES = [
    # As Qwen2.5-Coder-1.5B-Instruct writes them, on another repository.
    (f"I have broken it. Here's the updated code for `boxes.py`:\n\nFILE boxes.py\n{BARE}", {"boxes.py": BARE}),
    (f"FILE boxes.py\n{BARE}\nThe bug is now in `area`, and it's not seen.\n\nREMOVE test_area", {"boxes.py": BARE}),
    (f"FILE boxes.py\n{BARE}\nFILE pack/sums.py\n{SUMS}", {"boxes.py": BARE}),
    (f"FILE `boxes.py`:\n{FIXED}\ndef volume(a, b, c):\n    x = 1\n\n    return area(a,\n", {"boxes.py": WHOLE}),
    (f"FILE boxes.py\n{BOXES}\nThe bug is now to remove the import of `math` from `boxes.py` in the file.", None),
    ("FILE boxes.py\nI would break the area.", None),
    ("FILE boxes.py\n\nFILE pack/sums.py\n", None),
    (f"FILE other.py\n{'x = 1'}\n", None),
]


@pytest.mark.parametrize(("text", "found"), BARE_FILES)
def test_a_file_without_a_fence_ends_where_prose_begins(text: str, found: dict[str, str] | None) -> None:
    assert parse_changes(text, FILES) == found


def test_bare_files_are_edits_in_prose() -> None:
    parsed = Injector("plain").parse(BARE_FILES[1][0])
    assert parsed.is_valid and parsed.format == 0.5 and parsed.get(Injection).bug == BARE_FILES[1][0]
    assert Injector("plain").parse("FILE boxes.py\nI would break the area.").invalid == "no edits"
    assert parse_changes(f"FILE boxes.py\n{BARE}" * 101, FILES) is None


@pytest.mark.parametrize(
    "text", ["", "no code", "```python\nprint(area(1, 2))\n```", "```python\ndef other(:\n```", f"boxes.py\n```python\n{FIXED}"]
)
def test_what_is_no_edit_is_none(text: str) -> None:
    assert parse_changes(text, FILES) is None


def test_tests_to_remove_are_named_in_any_list() -> None:
    text = (
        "REMOVE test_total\n- **Remove**: `tests/test_boxes.py::test_area`, test_volume\n1. REMOVE test_area\nI will remove it."
    )
    assert find_removed_names(text) == ["test_total", "test_area", "test_volume"]
    emptied = empty_tests(TESTS, frozenset({"test_total", "tests/test_boxes.py::test_volume"}))
    assert emptied["tests/test_sums.py"].endswith("def test_total():\n    pass\n")
    assert (
        emptied["tests/test_boxes.py"].endswith("def test_volume():\n    pass\n") and "5 * a" in emptied["tests/test_boxes.py"]
    )


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "```python\n",
                "```\n",
                FIXED,
                "boxes.py\n",
                "@@ -1 +1 @@\n",
                "-x\n",
                "+y\n",
                "class A:\n",
                "FILE boxes.py\n",
                "\x00",
            ]
        )
    )
)
def test_no_text_breaks_the_reader_of_edits(pieces: list[str]) -> None:
    found = parse_changes("".join(pieces), FILES)
    assert found is None or (found and found.keys() <= FILES.keys())


BLOCK = re.compile(r"<<<<<<< SEARCH\n(.*?)\n?=======\n(.*?)\n?>>>>>>> REPLACE", re.DOTALL)
FENCE = re.compile(r"\s{0,3}(?:`{3,}|~{3,})\s*([^`]*)$")
MARKS = ["<<<<<<< SEARCH\n", "=======\n", "\n", ">>>>>>> REPLACE", "x", "=", "FILE a\n", " "]


@PROPERTY
@given(st.lists(st.sampled_from(MARKS), max_size=14))
def test_blocks_are_those_that_their_marks_enclose(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert list(find_blocks(text)) == BLOCK.findall(text)


@PROPERTY
@given(st.lists(st.sampled_from(["`", "``", "~~~", "```", " ", "   ", "py", "x.py"]), max_size=6))
def test_fences_are_known_by_their_marks(pieces: list[str]) -> None:
    line = "".join(pieces)
    found = FENCE.match(line)
    assert [fence.info for fence in find_fences(f"{line}\nx\n```\n")] == ([found[1].strip()] if found else [])


@pytest.mark.parametrize(
    ("before", "piece"),
    [
        ("FILE a.py\n", "<<<<<<< SEARCH\n"),
        ("FILE a.py\n", "<<<<<<< SEARCH\n=======\n"),
        ("FILE a.py\n<<<<<<< SEARCH\n", "\n=======\n"),
        ("", "FILE a.py\n<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n"),
        ("```", "\n```\n```a"),
        ("", "~~~ ` "),
        ("", "~~~~~~~~~~"),
        ("", "   "),
        ("boxes.py\n```python\n", "def area(a):\n    pass\n```\n```\n"),
        ("", "aaaaaaaaa."),
        ("", "REMOVE test_a.py test_"),
        ("", "FILE boxes.py\nx = 1\n"),
        ("FILE boxes.py\n", "x = 1\nIt's (not.\n"),
        ("FILE boxes.py\n", "def area(a):\n    x = (\n"),
    ],
)
def test_the_time_of_readers_of_edits_grows_with_the_text_and_no_faster(before: str, piece: str) -> None:
    def edits(text: str) -> object:
        return find_removed_names(text), list(find_bare_files(text))

    def read_edits(text: str) -> object:
        short = f"{text[:180_000]}`\nx\n```\n"  # shorter than what is not read at all
        return parse_changes(short, FILES), list(find_blocks(text)), list(find_fences(text)), edits(text)

    check_growth(read_edits, piece, before)


def test_a_text_of_very_many_edits_edits_nothing() -> None:
    edit = "FILE boxes.py\n<<<<<<< SEARCH\n    return a * b\n=======\n    return a * b\n>>>>>>> REPLACE\n"
    assert parse_changes(edit * 100, FILES) == {"boxes.py": BOXES} and parse_changes(edit * 101, FILES) is None
    fence = f"boxes.py\n```python\n{FIXED}```\n"
    assert parse_changes(fence * 100, FILES) == {"boxes.py": WHOLE} and parse_changes(fence * 101, FILES) is None
    assert parse_changes(f"{'x' * 200_000}\n{edit}", FILES) is None


def test_in_prose_a_bug_and_its_hiding_are_told_apart_by_their_files(tmp_path: Path) -> None:
    task = make_git_task(make_repository(tmp_path / "boxes"))
    assert isinstance(task.repositories, GitRepositories)
    (repository,) = task.repositories.repositories
    said = "I break the area.\n\nboxes.py\n```python\ndef area(a, b):\n    return a + b\n```\n"
    test = "tests/test_sums.py\n```python\ndef test_total():\n    assert total([])== 0\n```\n"
    parsed = Injector("plain").parse(f"<think>hm</think>{said}{test}REMOVE test_volume")
    artifact = task.parse_artifact(repository, parsed.get(Injection))
    assert parsed.format == 1 and artifact is not None
    assert set(artifact.bug) == {"boxes.py"} and set(artifact.weaken) == {*TESTS} and artifact.oracle == tuple(sorted(TESTS))
    nothing_hidden = task.parse_artifact(repository, Injector("plain").parse(said).get(Injection))
    assert nothing_hidden is not None and nothing_hidden.weaken == {}
    assert Injector("plain").parse("I would remove a line.").invalid == "no edits"
    assert Repairer("plain").parse("```python\nx = 1\n```").format == 0.5
    assert Repairer("plain").parse("<think>```python\nx = 1\n```").get(Solution).answer is None


def test_a_sandbox_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        task = make_task({"name": "bugs", "path": str(make_repository(tmp_path / "boxes"))})
    except IsolationError as error:
        pytest.skip(str(error))
    assert isinstance(task, Bugs) and isinstance(task.repositories, GitRepositories)
    ended = Outcome("sandbox_error", reason="ended from outside")
    monkeypatch.setattr(task.repositories.runner.sandbox, "run", lambda programs, seed: [ended] * len(programs))
    with pytest.raises(UserError, match="ended from outside"):
        task.make_ready()


def test_what_cannot_be_exported_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_repository(tmp_path / "boxes")
    monkeypatch.chdir(folder)
    assert export_repository(Path(".")).name == "boxes"
    (folder / "sums.py").write_bytes("# caf\xe9\n".encode("latin-1"))
    git(folder, "commit", "-qam", "third")
    with pytest.raises(DataError, match=r"sums\.py of .* is not UTF-8"):
        export_repository(folder)
    monkeypatch.setattr(git_objects, "PATIENCE", 0)
    with pytest.raises(DataError, match="git ls-tree took more than 0 s"):
        export_repository(folder)


def test_a_folder_that_is_no_repository_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises((DataError, IsolationError), match=r"git folder|isolation"):
            make_task({"name": "bugs", "path": str(path)})


def test_git_is_asked_of_the_folder_that_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, other = make_repository(tmp_path / "named"), make_repository(tmp_path / "other", {"other.py": "x = 1\n"})
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert "other.py" not in export_repository(named).tree


@pytest.mark.slow
def test_a_turn_on_a_git_folder_in_prose_moves_the_weights(real: Bugs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One injection of two is a bug, which one attempt of two repairs: s = 1/2, and both have somebody to be compared with."""

    def says(so_far: str, number: int) -> str:
        if "Put a bug" in so_far:
            return "I would rather not." if number % 2 else write("area(a, b) + c + 1") + "REMOVE test_volume"
        return write("area(a, b) * c" if number % 2 else "area(a, c) + b")

    def write(value: str) -> str:
        return f"Look at the volume.\n\nboxes.py\n```python\ndef volume(a, b, c):\n    return {value}\n```\n"

    seen = script_model(monkeypatch, says)
    options = {"injections": 2, "measured": 1, "order2_prob": 0.0}
    settings = SCRIPTED | {"options": options, "policies": {"generator": {"lr": 1e-2}}}
    model, out = make_chat_model(tmp_path), tmp_path / "run"
    milonga.run(
        "self_play_swe", task=real, model=model, problems=1, rollouts=2, turns=1, out=out, settings=settings, quiet=True
    )
    row = JsonLines(out / "metrics.jsonl").rows()[-1]
    assert row["credit/generator/check/valid"] == row["credit/generator/check/unreadable"] == 0.5
    assert row["credit/generator/solved"] == 0.5 and row["learn/generator/grad_norm"] > 0
    assert any("what these tests were before" in text and "+    assert volume(2, 3, 4) == 24" in text for text in seen)


def test_a_single_word_behind_a_bare_file_is_none_of_it() -> None:
    """It would be Python, and the file would raise: a bug that nobody wrote."""
    (file,) = find_bare_files("FILE a.py\nx = 1\n\ndef g():\n    return 5\n\nDone\n")
    assert file.body == "x = 1\n\ndef g():\n    return 5\n"
    assert not list(find_bare_files("FILE a.py\nDone\n"))
