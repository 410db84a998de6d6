"""Readers of what models write: no text takes time that grows faster than its length, whichever reader it is shown to.

All readers are found in the registries and in the layers that read, and not listed: see `scripts/reader_attacks.py`.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import pytest

from milonga.roles import ROLES
from milonga.roles.tags import cut_tags, find_sequence, find_tags
from milonga.tasks import TASKS
from milonga.text import compare_words, edit_distance
from reader_attacks import FACTOR, LENGTH, PIECES, STEEPEST, Reader, find_growth, load_readers, repeat_piece
from soak_readers import soak


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> list[Reader]:
    return load_readers(tmp_path_factory.mktemp("tasks"))


def test_every_registered_role_and_task_is_among_the_readers(readers: list[Reader]) -> None:
    kinds = {reader.name.rpartition(".")[2].partition("/")[0] for reader in readers}
    assert {ROLES.get(name).__name__ for name in ROLES} <= kinds
    assert {f"tasks/{name}/extract" for name in TASKS if name != "hub"} <= {reader.name for reader in readers}


@pytest.mark.parametrize(
    "text", ["1if y else 2", "def f(y): return 1if y else '\\d'", "```python\ndef f(y): return y is 1\n```", "1is 1"]
)
def test_no_text_writes_to_the_terminal_of_who_reads_it(
    readers: list[Reader], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for reader in readers:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            reader.read(text)
        assert not [str(one.message) for one in said], reader.name
    assert capfd.readouterr() == ("", "")


SHARE, PAIRS = 4, 8


def test_no_repetition_takes_more_than_linear_time(readers: list[Reader]) -> None:
    """Every reader is shown a part of the pieces, and every piece to a part of the readers; the soak draws at random."""
    steep = {}
    for number, reader in enumerate(readers):
        for piece in PIECES[number % SHARE :: SHARE]:
            growth = find_growth(reader.read, lambda length, piece=piece: repeat_piece(piece, length), LENGTH)  # type: ignore[misc]
            if growth is not None and growth > FACTOR**STEEPEST:
                steep[reader.name, piece] = round(growth)
    assert not steep


def test_no_two_repetitions_take_more_than_linear_time(readers: list[Reader]) -> None:
    """One behind the other, on lines of their own: what is found in the first may be looked at for each of the second."""
    steep = {}
    for number, reader in enumerate(readers):
        rng = random.Random(number)
        for first, second in (rng.sample(PIECES, 2) for _ in range(PAIRS)):

            def make(length: int, first: str = first, second: str = second) -> str:
                return repeat_piece(first, length // 2) + "\n" + repeat_piece(f"{second}\n", length // 2)

            growth = find_growth(reader.read, make, 4 * LENGTH)
            if growth is not None and growth > FACTOR**STEEPEST:
                steep[reader.name, first, second] = round(growth)
    assert not steep


NAMED: list[tuple[str, Callable[[int], str]]] = [
    ("Injector/tagged", lambda n: "<oracle>" + "</oracle> <bug>" * (n // 30) + "</bug> <weaken>" * (n // 30)),
    ("Grader/terse", lambda n: "a" * n + "\n=5"),
    ("Tester/tagged", lambda n: "<think>" + "</think><input></input>" * (n // 30) + "<output></output>x"),
    ("find_tags", lambda n: "<step>" * (n // 6)),
    ("StepVerifier/plain", lambda n: "".join(f"{k}. CORRECT\n" for k in range(1, n // 12))),
    ("StepSolver/plain", lambda n: "$$x$$\n\n" * (n // 8)),
    ("make_right_demonstration", lambda n: "1-" * (n // 2)),
    ("find_named", lambda n: "</oracle>" * (n // 18) + "\n" + "```\n" * (n // 8)),
    ("compare_words", lambda n: "a " * (n // 2)),
    ("change_digit", lambda n: " " * n),
    ("ProgramProposer/plain", lambda n: "```python\ndef f(a): return a\n" + "input = 1\n" * (n // 10)),
    ("ProgramProposer/plain", lambda n: "```python\ndef f(a): return a\n" + "f(1);" * (n // 5)),
    ("find_labelled", lambda n: "```python\n" + "input: 1\n" * (n // 9)),
    ("list_items", lambda n: "a" + " " * n + "a"),
    ("gsm8k/votes", lambda n: "\n".join(str(k) for k in range(n // 5))),
]


@pytest.mark.parametrize(("name", "make"), NAMED, ids=[name for name, _ in NAMED])
def test_no_text_that_was_made_for_a_reader_does(name: str, make: Callable[[int], str], readers: list[Reader]) -> None:
    (read,) = [reader.read for reader in readers if reader.name.endswith(name)]
    growth = find_growth(read, make, 8 * LENGTH)
    assert growth is None or growth < FACTOR**STEEPEST


def test_no_reader_minds_half_a_character(readers: list[Reader]) -> None:
    for reader in readers:
        reader.read("<step>\ud800 7</step>\n\\boxed{\udfff}")


def test_tags_are_found_as_they_stand() -> None:
    text = "a<step>1</step>b<step>2<step></step>c</step>"
    assert [(tag.body, text[tag.start : tag.end]) for tag in find_tags(text, "step")] == [
        ("1", "<step>1</step>"),
        ("2<step>", "<step>2<step></step>"),
    ]
    assert find_tags("<step>1</step>", "step", 5)[0].start == 5
    assert cut_tags(text, "step") == "abc</step>"
    assert find_sequence(" <a>1</a>\n<b></b> ", "a", "b") == ["1", ""]
    for broken in ("<a>1</a>x<b></b>", "<b></b><a>1</a>", "<a>1</a><a>1</a><b></b>", "<a>1<b></a></b>", "<a></a>"):
        assert find_sequence(broken, "a", "b") is None


def test_words_and_characters_are_compared_as_before_on_short_texts() -> None:
    assert compare_words("a b c d", "b d a") == pytest.approx(2 * 2 / 7) and compare_words("", "") == 1.0
    assert edit_distance("kitten", "sitting") == 3 and edit_distance("kitten", "sitting", 2) == 2
    assert edit_distance("a" * 50, "", 60) == 50 and edit_distance("", "ab") == 2 and edit_distance("abab", "baba") == 2


def test_the_soak_finds_nothing_in_some_hundred_texts(readers: list[Reader]) -> None:
    found = soak(readers, inputs=600, seed=0)
    assert found["inputs"] == 600 and not found["errors"] and not found["slow"]
