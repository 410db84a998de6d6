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

Code under test shares its process with pytest there, and could rewrite it. So trees whose tests pass are looked at again
(`find_flaws`): with other expectations, with which tests must fail; and with the tests in a process of their own, into which
no code under test comes (`bugs_judge`).
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from milonga.errors import DataError, MissingExtra
from milonga.sandbox import Level, Limits, Outcome, Program, Sandbox, decode
from milonga.sandbox.executor import MakePair
from milonga.sandbox.isolation import Mount
from milonga.tasks.bugs_checks import Files, NoVerdict, Report, Repository, Runner
from milonga.tasks.bugs_expectations import change_tests
from milonga.tasks.bugs_parts import choose_category, name_modules
from milonga.tasks.bugs_screen import find_forbidden

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
LABELS, PLACES = 4, 1000
"""The places of objects are handed over in parts as well."""
HARNESS = ("bugs_wire", "bugs_subject", "bugs_judge")
LOAD = """
import json, os, sys, types

JOB = json.load(sys.stdin)
sys.modules.pop("program")
for name, text in JOB.pop("harness").items():
    sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), sys.modules[name].__dict__)
"""
SUBJECT = (
    LOAD
    + """
def run():
    sys.modules["milonga.tasks.bugs_subject"].serve(JOB)
"""
)
SOURCE = (
    LOAD
    + """
ROOT = os.path.abspath("tree")
FOUND, SKIPPED, LINKS = {}, set(), []


def run(part):
    if not part:
        tested()
    if part >= JOB["parts"]:
        places = [place for link in LINKS for place in link.places]
        return places[(part - JOB["parts"]) * JOB["places_each"] :][: JOB["places_each"]]
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
    if JOB["wires"]:
        LINKS.append(sys.modules["milonga.tasks.bugs_judge"].connect(JOB))
    options = ["-c", "../settings.ini", "--rootdir", ".", "--import-mode", "importlib", "-p", "no:cacheprovider", "-q"]
    options.append("--continue-on-collection-errors")  # a file that cannot be imported fails alone
    pytest.main([*options, *JOB["oracle"]], plugins=[Reports()])
    for id in SKIPPED:
        del FOUND[id]
"""
)


@dataclass(frozen=True)
class Learned:
    """What the original taught about its tests."""

    telling: frozenset[str]
    """Those that fail where other values are expected."""
    apart: frozenset[str]
    """Those that pass in a process apart from the code under test."""
    places: tuple[str, ...]
    """Where there may be objects: anywhere else values are plain."""


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
        self._learned: dict[tuple[str, tuple[str, ...]], Learned] = {}

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

    def can_tell(self, repository: Repository, oracle: Sequence[str], broken: frozenset[str]) -> bool:
        """Where tests run apart from the code, one of them must be broken: that one cannot be made to seem mended."""
        apart = self.learn(repository, oracle).apart
        return not apart or bool(broken & apart)

    def find_forbidden(self, repository: Repository, start: Files, tree: Files) -> str:
        return find_forbidden(start, repository.code, {path: text for path, text in tree.items() if path in repository.code})

    def find_flaws(
        self, repository: Repository, trees: Sequence[Files], oracle: Sequence[str], specified: frozenset[str]
    ) -> list[str]:
        """Find trees that only seem to pass: tests must fail where other values are expected, and pass apart from the code."""
        learned = self.learn(repository, oracle)
        flaws = [""] * len(trees)
        for at, (report, _) in enumerate(self._run_trees([change_tests(tree) for tree in trees], oracle, SEEDS[0])):
            if any((report or {}).get(id, False) for id in specified & learned.telling):
                flaws[at] = "tests pass where other values are expected"
        held = [at for at, flaw in enumerate(flaws) if not flaw]
        for at, (report, _) in zip(
            held, self._run_apart([trees[at] for at in held], oracle, learned.places, SEEDS[1]), strict=True
        ):
            if not all((report or {}).get(id, False) for id in specified & learned.apart):
                flaws[at] = "tests fail in a process apart from the code"
        return flaws

    def learn(self, repository: Repository, oracle: Sequence[str]) -> Learned:
        """Learn from the original what its tests can tell. Cached for each suite."""
        key = (repository.name, tuple(oracle))
        if key not in self._learned:
            changed = [self._run_trees([change_tests(repository.tree)], oracle, seed)[0][0] for seed in SEEDS]
            apart = [self._run_apart([repository.tree], oracle, None, seed)[0] for seed in SEEDS]
            places = dict.fromkeys(place for _, found in apart for place in found)
            whole = len(places) < LABELS * PLACES
            ids = {id for id, passed in (self.run_original(repository, oracle) or {}).items() if passed}
            self._learned[key] = Learned(
                frozenset(id for id in ids if not any((report or {}).get(id, True) for report in changed)),
                frozenset(id for id in ids if whole and all((report or {}).get(id, False) for report, _ in apart)),
                tuple(places),
            )
        return self._learned[key]

    def _run_apart(
        self, trees: Sequence[Files], oracle: Sequence[str], places: Sequence[str] | None, seed: int
    ) -> list[tuple[Report | None, list[str]]]:
        """Run tests in one process on code in another; return reports, and the places of objects."""
        name = f"test_{secrets.token_hex(8)}.py"

        def make_pair(tree: Files) -> MakePair:
            code = {path: text for path, text in tree.items() if choose_category(path) == "code"}
            tests = {path: text for path, text in tree.items() if path not in code}
            own = {path: text for path, text in tree.items() if choose_category(path) != "tests"}
            return lambda judge, subject: (
                self._make_program({**tests, name: CANARY}, [*oracle, name], judge, places, list_modules(code)),
                Program(SUBJECT, "run", ((),), stdin=json.dumps(self._make_job(own, subject))),
            )

        found = []
        for pair in self.sandbox.run_pairs([make_pair(tree) for tree in trees], seed):
            for outcome in pair:
                _require_verdict(outcome)
            report = _parse_report(pair[0], f"{name}::test_canary")
            labels = [decode(str(part)) for part in pair[0].results[PARTS:]] if report is not None else []
            found.append((report, [label for part in labels for label in part]))
        return found

    def _run_trees(self, trees: Sequence[Files], oracle: Sequence[str], seed: int) -> list[tuple[Report | None, Outcome]]:
        name = f"test_{secrets.token_hex(8)}.py"
        programs = [self._make_program({**tree, name: CANARY}, [*oracle, name]) for tree in trees]
        outcomes = self.sandbox.run(programs, seed)
        return [(_parse_report(outcome, f"{name}::test_canary"), outcome) for outcome in outcomes]

    def _make_program(
        self,
        files: Files,
        oracle: Sequence[str],
        wires: Sequence[int] = (),
        places: Sequence[str] | None = None,
        modules: Sequence[str] = (),
    ) -> Program:
        known = [path for path in oracle if path in files]
        sizes = {"ids": IDS, "most": MOST_TESTS, "parts": PARTS, "places_each": PLACES}
        shown = {"packages": self.packages, "oracle": known, "places": places, "modules": modules}
        calls = tuple((part,) for part in range(PARTS + LABELS if wires else PARTS))
        return Program(SOURCE, "run", calls, stdin=json.dumps({**self._make_job(files, wires), **sizes, **shown}))

    def _make_job(self, files: Files, wires: Sequence[int]) -> dict[str, object]:
        """Make what a process is told; one that is connected with another also has what they talk by."""
        harness = {f"milonga.tasks.{name}": Path(__file__).with_name(f"{name}.py").read_text() for name in HARNESS if wires}
        return {"files": dict(files), "environment": self.environment, "wires": wires, "harness": harness}


def list_modules(code: Files) -> list[str]:
    """List the names under which code can be imported, with those of its folders; not where Python or pytest has the name."""
    names = {name for path in name_modules(code) for name in _list_prefixes(path)}
    return sorted(name for name in names if name.partition(".")[0] not in {*sys.stdlib_module_names, *PACKAGES, ""})


def _list_prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


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
    _require_verdict(outcome)
    if outcome.status != "ok":
        return None
    found: dict[str, bool] = {}
    for result in outcome.results[:PARTS]:
        part = decode(str(result))
        if not isinstance(part, Mapping) or not all(type(id) is str and type(passed) is bool for id, passed in part.items()):
            return None
        found |= part
    return found if found.pop(canary, True) is False else None


def _require_verdict(outcome: Outcome) -> None:
    """`NoVerdict` if a program could not be run."""
    if outcome.status == "sandbox_error":
        raise NoVerdict(
            f"the tests of a repository could not be run in the sandbox, which is not their fault: {outcome.reason}"
        )
