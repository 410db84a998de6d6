"""Repairing repositories: what counts as a bug, who may look at what, and that nobody grades himself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milonga.errors import ConfigError, DataError, UserError
from milonga.randomness import keyed_rng
from milonga.sandbox import IsolationError, Outcome
from milonga.systems.self_play_swe.roles import KINDS, Injector, Repairer, make_injector_request
from milonga.tasks import Task, bugs_git, make_task, normalise_text
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
from milonga.tasks.bugs_git import GitRepositories, export_repository, parse_blocks, render_blocks
from milonga.tasks.bugs_tiny import TinyRepositories, TinyRunner, parse_edits, parse_removed_tests, render_test_ids, run_tests
from milonga.types import SPLITS, Problem
from repository_helpers import BOXES, TESTS, git, make_repository

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


@pytest.mark.parametrize("answer", ["", "b", "b=", "b=a*", "b=a**2", "b=a*2;b=a*2", "z=x", "b=__import__('os')", None])
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
        for parsed in (role("terse").parse(text), role("tagged").parse(text)):
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


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Bugs:
    folder = make_repository(tmp_path_factory.mktemp("git") / "boxes")
    try:
        task = make_task({"name": "bugs", "path": str(folder), "bugs": 3})
    except IsolationError as error:
        pytest.skip(str(error))
    assert isinstance(task, Bugs)
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
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"tests/test_bad.py": "def test_bad():\n    assert 1 == 2\n"},
            "fail before any bug, at least sometimes: tests/test_bad.py",
        ),
        ({"tests/test_bad.py": "def test_bad(:\n"}, "do not run in the sandbox"),
        (
            {
                "tests/test_many.py": "import pytest\n\n\n@pytest.mark.parametrize('a', range(1200))\n"
                "def test_many(a):\n    pass\n"
            },
            "more than 958 tests",
        ),
    ],
)
def test_tests_that_fail_before_any_bug_are_an_error_before_training(more: dict[str, str], said: str, tmp_path: Path) -> None:
    folder = make_repository(tmp_path / "boxes", more)
    try:
        task: Task = make_task({"name": "bugs", "path": str(folder), "bugs": 3})
    except IsolationError as error:
        pytest.skip(str(error))
    with pytest.raises(DataError, match=said):
        task.make_ready()


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
    monkeypatch.setattr(bugs_git, "LARGEST", 100)
    monkeypatch.setattr(bugs_git, "load_history", None)  # what is too large has no history read, file by file
    with pytest.raises(DataError, match="characters of code and tests, more than 100"):
        export_repository(folder)
    (folder / "sums.py").write_bytes("# caf\xe9\n".encode("latin-1"))
    git(folder, "commit", "-qam", "third")
    with pytest.raises(DataError, match=r"sums\.py of .* is not UTF-8"):
        export_repository(folder)
    monkeypatch.setattr(bugs_git, "PATIENCE", 0)
    with pytest.raises(DataError, match="git archive took more than 0 s"):
        export_repository(folder)


def test_a_folder_that_is_no_repository_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises((DataError, IsolationError), match=r"git folder|isolation"):
            make_task({"name": "bugs", "path": str(path)})


def test_git_is_asked_of_the_folder_that_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, other = make_repository(tmp_path / "named"), make_repository(tmp_path / "other", {"other.py": "x = 1\n"})
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert b"other.py" not in bugs_git.run_git(named, "ls-tree", "-r", "--name-only", "HEAD")
