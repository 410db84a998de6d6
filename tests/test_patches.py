"""Patches cannot grade themselves: what is sent between processes, what is refused, and attacks."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.sandbox import IsolationError, Program, Sandbox, to_canonical
from milonga.tasks.bugs_checks import Bug, Verdict
from milonga.tasks.bugs_expectations import change_expectations
from milonga.tasks.bugs_judge import Changed, Link
from milonga.tasks.bugs_pytest import list_modules
from milonga.tasks.bugs_screen import find_forbidden
from milonga.tasks.bugs_subject import Subject
from milonga.tasks.bugs_wire import Closed, Stays, Wire, pack, unpack
from patch_attacks import ARTIFACT, ATTACKS, BROKEN, PATH, PRICES, REPOSITORY, RIGHT, WRONG, Attack, Unscreened, grade_texts
from soak_patches import LIMITS, draw_cases

# The wire.

NUMBERS = st.integers() | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=5) | st.binary(max_size=5)
TIMES = st.dates() | st.timedeltas() | st.datetimes().map(lambda time: time.replace(fold=0))
PLAIN = st.recursive(
    SCALARS | st.decimals(allow_nan=False) | st.fractions() | TIMES,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(SCALARS, inner, max_size=3),
    max_leaves=5,
)


def refuse(*what: Any) -> Any:
    raise Stays(str(what))


@PROPERTY
@given(PLAIN)
def test_plain_values_are_copied_with_their_types(value: Any) -> None:
    copy = unpack(pack(value, refuse), refuse)
    assert copy == value and type(copy) is type(value) and repr(copy) == repr(value)


@pytest.mark.parametrize("value", [True, Decimal("1.50"), Fraction(1, 3), date(2020, 1, 2), timedelta(1), range(3), {1: {2}}])
def test_a_value_that_is_no_exact_copy_of_a_plain_one_is_referred_to(value: Any) -> None:
    class Number(int):
        pass

    assert unpack(pack(value, refuse), refuse) == value
    for other in (Number(3), [Number(3)], object(), datetime.now().astimezone()):
        with pytest.raises(Stays):
            pack(other, refuse)


WORDS = st.sampled_from(["dict", "set", "bytes", "range", "object", "class", "named", "callback", "builtins", "Exception"])
JSON = st.recursive(st.none() | st.booleans() | st.integers() | WORDS, lambda inner: st.lists(inner, max_size=5), max_leaves=12)


@PROPERTY
@given(JSON)
def test_no_message_does_more_than_fail_a_test(data: Any) -> None:
    """Whatever is sent, it is a value, or an ordinary exception."""
    link = Link(Wire(-1, -1), None)
    for read in (lambda: link.take("", data), lambda: link.make_error("", data, data, data)):
        with contextlib.suppress(Exception):
            read()


def test_a_message_that_is_cut_short_or_too_long_is_the_end() -> None:
    for sent in (b"", b"\0\0", b"\xff\xff\xff\xff", b"\0\0\0\2[", b"\0\0\0\2[]", b"\0\0\0\3{1}", b"\0\0\0\4null"):
        source, sink = os.pipe()
        os.write(sink, sent)
        os.close(sink)
        with pytest.raises(Closed):
            Wire(source, -1).receive()
        os.close(source)


# Stand-ins.

MODULE = """
class Odd(Exception): pass
class Same:
    def __eq__(self, other): return True
    def __lt__(self, other): return True
    def __contains__(self, item): return True
    def __iter__(self): return iter([1, 2])
    def __len__(self): return 2
class Box:
    side = 3
    def __add__(self, other): return self.side + other
    def __enter__(self): return self
    def __exit__(self, kind, error, trace): return kind is ValueError
class Case(Box): pass
def fail(): raise Odd("why", 3)
def leave(): raise SystemExit(0)
def grow(items): items.append(len(items))
def use(function): return function(2) + 1
def number(): return Same() if SAME else 4
SAME = False
"""


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """A module of another end: both ends are in this process, which no code of theirs can tell."""
    (tmp_path / "stood_in_for.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    one, other = os.pipe(), os.pipe()
    served = threading.Thread(target=Subject(Wire(one[0], other[1])).serve)
    served.start()
    links = []

    def connect(allowed: list[str] | None = None) -> Any:
        links.append(Link(Wire(other[0], one[1]), allowed))
        return links[-1].ask("import", "import", "stood_in_for")

    yield connect
    os.close(one[1])
    served.join()
    for end in (one[0], *other):
        os.close(end)


def test_a_stand_in_does_what_is_asked_of_it_and_equals_no_plain_value(link: Callable[..., Any]) -> None:
    module = link()
    same, box = module.Same(), module.Case()
    assert same == module.Same() and same != 4 and same not in [1, 2, 3] and 3 not in same and 2 in same and len(same) == 2
    with pytest.raises(TypeError):
        _ = same < 4
    assert isinstance(box, module.Box) and type(box) is module.Case and not isinstance(same, module.Box)
    assert box + 2 == 5 and box.side == 3 and module.Case is module.Case
    box.side = 4
    assert box.side == 4
    with box as inner:
        assert inner is box
        raise ValueError
    items = [5]
    module.grow(items)
    assert items == [5, 1] and module.use(lambda x: x * 10) == 21 and module.use(abs) == 3
    with pytest.raises(Stays):
        type("Own", (module.Box,), {})


def test_exceptions_are_those_of_the_code_and_none_leaves_a_test_early(link: Callable[..., Any]) -> None:
    module = link()
    with pytest.raises(module.Odd) as caught:
        module.fail()
    assert caught.value.args == ("why", 3) and isinstance(caught.value, Exception)
    with pytest.raises(RuntimeError):
        module.leave()
    with pytest.raises(AttributeError):
        _ = module.missing
    with pytest.raises(pytest.fail.Exception):
        module.use(lambda x: pytest.fail("from within"))
    assert module.number() == 4, "and it goes on"


def test_what_was_plain_with_the_original_must_be_plain(link: Callable[..., Any]) -> None:
    module = link()
    assert module.number() == 4
    places = list(module._milonga_link.places)
    module.SAME = True
    patched = link(places)
    with pytest.raises(Changed, match="where the original had a plain value"):
        patched.number()


def test_modules_of_the_code_are_known_by_all_their_names() -> None:
    code = dict.fromkeys(("src/shop/__init__.py", "src/shop/core/rates.py", "types.py", "tool.py"), "")
    known = list_modules(code)
    assert [name for name in known if not name.startswith("src")] == ["shop", "shop.core", "shop.core.rates", "tool"]


# Other expectations.

TEST = "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        {}\n"


@pytest.mark.parametrize(
    ("check", "value"),
    [
        *(("assert f() == 3", value) for value in (3, 3.0)),
        ("assert 'a' == f()", "a"),
        ("assert f() == []", []),
        ("assert f() == {'a': 1}", {"a": 1}),
        ("assert f() == {1, 2}", {1, 2}),
        ("assert f() == None", None),
        ("assert f() in (1, 2)", 2),
        ("assert f()", "yes"),
    ],
)
def test_what_passes_fails_where_another_value_is_expected(check: str, value: Any) -> None:
    names = {"f": lambda: value}
    exec(f"def test():\n    {check}\n", names)
    names["test"]()
    exec(change_expectations(f"def test():\n    {check}\n"), names)
    with pytest.raises(AssertionError):
        names["test"]()


def test_what_equals_everything_passes_where_another_value_is_expected() -> None:
    class Same:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

    for check in ("assert f() == 3", "assert 3 == f()", "self.assertEqual(f(), 3)"):
        names: dict[str, Any] = {"f": Same}
        exec(change_expectations(TEST.format(check)), names)
        names["T"]("test").test()
    assert change_expectations("def (:") == "def (:"


# What is refused, and what is not.


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_what_reaches_into_what_runs_it_is_refused_at_first_sight(attack: Attack) -> None:
    assert bool(find_forbidden({PATH: BROKEN}, {PATH: PRICES}, {PATH: attack.text})) is attack.is_seen


def test_ordinary_patches_are_not_refused_nor_is_what_a_file_had_before() -> None:
    for text in (*RIGHT.values(), *WRONG.values()):
        assert find_forbidden({PATH: BROKEN}, {PATH: PRICES}, {PATH: text}) == ""
    old = "import sys\nimport inspect\nx = sys.modules\n"
    assert find_forbidden({PATH: old}, {PATH: ""}, {PATH: f"{old}y = 1\n"}) == ""
    assert find_forbidden({PATH: ""}, {PATH: old}, {PATH: f"{old}y = 1\n"}) == "", "a bug may have taken it away"
    assert find_forbidden({PATH: old}, {PATH: ""}, {PATH: f"{old}y = sys.modules\n"}) == f"{PATH} newly uses sys.modules"
    assert "nested" in find_forbidden({}, {}, {PATH: "x = " + "-" * 100_000 + "1\n"})


# Pairs of programs.

TALK = "import os\n\ndef talk(source, sink):\n    os.write(sink, b'hello')\n    return os.read(source, 9)\n"
LISTEN = "import os\n\ndef listen(source, sink):\n    heard = [os.read(source, 9), os.read(source, 9)]\n    return heard\n"


def test_two_programs_talk_and_each_sees_the_end_of_the_other() -> None:
    try:
        sandbox = Sandbox()
    except IsolationError as error:
        pytest.skip(str(error))
    with sandbox:
        ended = "def leave(source, sink): pass"
        pairs = sandbox.run_pairs(
            [
                lambda one, other: (Program(TALK, "talk", (one,)), Program(TALK, "talk", (other,))),
                lambda one, other: (Program(TALK, "talk", (one,)), Program(ended, "leave", (other,))),
                lambda one, other: (Program(ended, "leave", (one,)), Program(LISTEN, "listen", (other,))),
            ]
        )
        assert sandbox.counts.total() == 6
    said = [[str(outcome.results[0]) for outcome in pair] for pair in pairs]
    assert said[0] == [to_canonical(b"hello")] * 2 and said[2][1] == to_canonical([b"", b""])
    assert pairs[1][0].status in ("ok", "exception"), "nobody reads, or has read, what it says"


# Attacks. All of them are run by `soak_patches.py`.

SAMPLE = (
    "finds the request in frames and writes the result",
    "runs no test if the tests are the real ones",
    "equals everything",
    "equals what tests expect",
    "says yes to every question in a process apart",
)


@pytest.mark.slow
def test_no_attack_is_graded_right_without_the_first_look_and_honest_patches_are_graded_as_they_are() -> None:
    try:
        runner = Unscreened(LIMITS, "isolated", False)
    except IsolationError as error:
        pytest.skip(str(error))
    report = runner.run_original(REPOSITORY, ARTIFACT.oracle)
    assert report is not None and all(report.values())
    learned = runner.learn(REPOSITORY, ARTIFACT.oracle)
    assert learned.telling == learned.apart == report.keys(), "fixtures, callbacks, exceptions and replaced names among them"
    bug = Bug(REPOSITORY, ARTIFACT, Verdict(None, frozenset(), frozenset(report)))
    attacks = [attack.text for attack in ATTACKS if attack.name in SAMPLE]
    assert all(grade_texts(bug, runner, attacks)) and len(attacks) == len(SAMPLE)
    assert grade_texts(bug, runner, [RIGHT["a class"], WRONG["another bound"]]) == ["", "tests fail"]


def test_attacks_are_sixty_at_least_and_each_is_drawn() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 60
    assert {name for name, *_ in draw_cases(random.Random(0), None)} == {*(attack.name for attack in ATTACKS), *RIGHT, *WRONG}
