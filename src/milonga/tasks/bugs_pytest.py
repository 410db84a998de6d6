"""Runs the tests of a repository by pytest, in the sandbox.

Invariants:
- The runner is ours: its source, pytest and its own settings lie outside the tree. Of a tree only the files are taken; its
  pytest settings are not read, it comes last on the path of imports, and what it prints is never looked at.
- A test counts as passed only if pytest said so under its id in a process that ended in order. A process that ends early, or
  brings no result, has passed nothing; a test that is skipped is missing.
- Before each file of tests is collected, all sources of the tree must be as they were given: code that is imported cannot
  write over the tests that come after it.
- An environment of the user's is mounted read-only and comes after the tree on the path of imports: what is installed there
  never hides the code under test.
- In every run a test that must fail runs along, under a name nobody can know. If it does not fail, the results are forged.

Code under test shares its process with pytest. Code that looks for pytest's own objects and rewrites them with care can deceive
it; that is what the sandbox cannot see.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from milonga.errors import DataError, MissingExtra
from milonga.sandbox import Level, Limits, Outcome, Program, Sandbox, decode
from milonga.sandbox.isolation import Mount
from milonga.tasks.bugs_checks import Files, NoVerdict, Report, Repository, Runner

PARTS, IDS = 16, 60
"""A result is handed over in parts: how many there are, and the tests in each."""
MOST_TESTS = PARTS * IDS - 2
"""One place is the canary's; one more is taken where there were too many."""
PACKAGES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
"""All that is mounted of what is installed here."""
SHELF, ENVIRONMENT = "/packages", "/environment"
SEEDS = (1, 2)
"""Hash seeds: neighbours in a batch run under different ones."""
CANARY = "def test_canary():\n    assert not 1\n"
SOURCE = """
import json, os, sys

JOB = json.load(sys.stdin)
ROOT = os.path.abspath("tree")
FOUND, SKIPPED = {}, set()


def run(part):
    if not part:
        tested()
    found = list(FOUND.items())
    del found[JOB["most"] + 1 : -1]  # the canary is the last
    return dict(found[part * JOB["ids"] : (part + 1) * JOB["ids"]])


def untouched():
    # Code that was imported may have written over tests that are not imported yet, or beside them.
    given = {os.path.join(ROOT, path): text for path, text in JOB["files"].items() if path.endswith(".py")}
    there = [os.path.join(folder, name) for folder, _, names in os.walk(ROOT) for name in names]
    if {path for path in there if path.endswith((".py", ".pyc"))} != given.keys():
        return False
    for path, text in given.items():
        with open(path, encoding="utf-8", newline="") as file:
            if file.read() != text:
                return False
    return True


class Reports:
    def pytest_collectstart(self, collector):
        import pytest

        if not untouched():
            pytest.exit("sources were changed while tests were being collected")

    def pytest_runtest_logreport(self, report):
        # Setup, test and teardown report one after another: what was skipped in one of them passes the next all the same.
        FOUND[report.nodeid] = FOUND.get(report.nodeid, True) and report.outcome == "passed"
        if report.outcome == "skipped":
            SKIPPED.add(report.nodeid)


def tested():
    for path, text in JOB["files"].items():
        os.makedirs(os.path.dirname(os.path.join("tree", path)), exist_ok=True)
        with open(os.path.join("tree", path), "w", encoding="utf-8", newline="") as file:
            file.write(text)
    with open("settings.ini", "w") as file:
        file.write("[pytest]\\n")
    os.mkdir("home")
    os.environ.update(dict.fromkeys(("HOME", "TMPDIR"), os.path.abspath("home")))
    # There are no threads here; libraries that want some must be told.
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    sys.path[:0] = JOB["packages"]
    sys.dont_write_bytecode = True
    import pytest

    os.chdir("tree")
    sys.path += [os.getcwd(), os.path.join(os.getcwd(), "src"), *JOB["environment"]]
    options = ["-c", "../settings.ini", "--rootdir", ".", "--import-mode", "importlib", "-p", "no:cacheprovider", "-q"]
    options.append("--continue-on-collection-errors")  # a file that cannot be imported fails alone
    pytest.main([*options, *JOB["oracle"]], plugins=[Reports()])
    for id in SKIPPED:
        del FOUND[id]
"""


class PytestRunner(Runner):
    """Runs trees of files in the sandbox, several at a time."""

    def __init__(self, limits: Limits, isolation: Level, allow_weak: bool, environment: str | None = None) -> None:
        homes = [_find_package_home(str(spec.origin)) for name in PACKAGES if (spec := find_spec(name)) is not None]
        if find_spec("pytest") is None:
            raise MissingExtra("running the tests of repositories", "repositories")
        mounts = [Mount(str(home), f"{SHELF}/{home.name}") for home in homes]
        installed = [] if environment is None else [str(find_installed_packages(Path(environment)))]
        mounts += [Mount(folder, ENVIRONMENT) for folder in installed]
        self.sandbox = Sandbox(limits, isolation, allow_weak, mounts=tuple(mounts))
        is_mounted = self.sandbox.level == "isolated"
        self.packages = [SHELF] if is_mounted else sorted({str(home.parent) for home in homes})
        self.environment = [ENVIRONMENT for _ in installed] if is_mounted else installed
        self.said: dict[str, str] = {}
        """What pytest printed last about an original, by the repository's name; for messages alone."""
        self._originals: dict[tuple[str, tuple[str, ...]], Report | None] = {}

    def run(self, trees: Sequence[Files], oracle: Sequence[str]) -> list[Report | None]:
        found: list[Report | None] = [None] * len(trees)
        for turn, seed in enumerate(SEEDS):
            for at, (report, _) in zip(range(turn, len(trees), 2), self._run_trees(trees[turn::2], oracle, seed), strict=True):
                found[at] = report
        return found

    def perturb_code(self, code: Files) -> dict[str, str]:
        """Append a comment, which changes no existing line."""
        return {path: f"{text}\n# \n" for path, text in code.items()}

    def run_original(self, repository: Repository, oracle: Sequence[str]) -> Report | None:
        """Run three times; a test that does not pass in all runs counts as failed. Cached for each suite."""
        key = (repository.name, tuple(oracle))
        if key not in self._originals:
            runs = [self._run_trees([repository.tree], oracle, seed)[0] for seed in (*SEEDS, 0)]
            self.said[repository.name] = runs[0][1].stdout[-2000:].strip() or runs[0][1].reason
            reports = [report for report, _ in runs if report is not None]
            ids = dict.fromkeys(id for report in reports for id in report)
            whole = len(reports) == len(runs) and bool(ids)
            self._originals[key] = {id: all(report.get(id, False) for report in reports) for id in ids} if whole else None
        return self._originals[key]

    def _run_trees(self, trees: Sequence[Files], oracle: Sequence[str], seed: int) -> list[tuple[Report | None, Outcome]]:
        name = f"test_{secrets.token_hex(8)}.py"
        programs = [self._make_program({**tree, name: CANARY}, [*oracle, name]) for tree in trees]
        outcomes = self.sandbox.run(programs, seed)
        return [(_parse_report(outcome, f"{name}::test_canary"), outcome) for outcome in outcomes]

    def _make_program(self, files: Files, oracle: Sequence[str]) -> Program:
        known = [path for path in oracle if path in files]
        places = {"packages": self.packages, "environment": self.environment}
        job = {"files": dict(files), "oracle": known, "ids": IDS, "most": MOST_TESTS, **places}
        return Program(SOURCE, "run", tuple((part,) for part in range(PARTS)), stdin=json.dumps(job))


def _find_package_home(origin: str) -> Path:
    """Find the folder of a package, or the file of a single-file module."""
    path = Path(origin)
    return path.parent if path.name == "__init__.py" else path


def find_installed_packages(environment: Path) -> Path:
    """Find the folder of the packages of an environment, which is given as its folder or as its interpreter. It must be of this
    version of Python."""
    root = environment.parent.parent if environment.is_file() else environment
    here = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = root / "lib" / here / "site-packages"
    if found.is_dir():
        return found
    others = sorted(path.parent.name for path in root.glob("lib/python*/site-packages"))
    what = f"is one of {others[0]}" if others else "is no virtual environment, and no interpreter of one"
    raise DataError(f"task.environment: {environment} {what}; tests run by {here} here: make one with {here} -m venv")


def _parse_report(outcome: Outcome, canary: str) -> Report | None:
    """Parse the test report of a process that ended in order and whose canary test failed; else None."""
    if outcome.status == "sandbox_error":
        raise NoVerdict(
            f"the tests of a repository could not be run in the sandbox, which is not their fault: {outcome.reason}"
        )
    if outcome.status != "ok":
        return None
    found: dict[str, bool] = {}
    for result in outcome.results:
        part = decode(str(result))
        if not isinstance(part, Mapping) or not all(type(id) is str and type(passed) is bool for id, passed in part.items()):
            return None
        found |= part
    return found if found.pop(canary, True) is False else None
