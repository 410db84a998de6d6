"""Make the inputs of docs/results/real/study.toml, in which every system runs on real data with an instruct model.

    python scripts/real_systems.py MADE --data FOLDER       # FOLDER has gsm8k, math and mbpp
    milonga sweep docs/results/real/study.toml --out runs/real --with MODEL=... --with DATA=FOLDER --with MADE=MADE
    python scripts/real_results.py gather runs/real FILE    # what became of them

What is made: `preferences.jsonl` and `labelled.jsonl` from the worked solutions of GSM8K's train rows (the rejected reply, or
the wrong step, is the task's own flawed demonstration), `texts/` (the pages of the systems) with `questions.jsonl` about them,
and `repository/`, a small git repository with tests.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from milonga.systems.index import SYSTEMS
from milonga.tasks import Task, make_task

HOME = Path(__file__).parents[1]
ROWS = 200
RESULTS = re.compile(r"<!-- result of .*?<!-- end of the result -->", re.DOTALL)
"""What a page shows of a measured claim."""
FILES = {
    "intervals.py": '''\
"""Closed intervals of whole numbers, as pairs."""


def overlaps(a, b):
    return a[0] <= b[1] and b[0] <= a[1]


def merge(intervals):
    """Merge intervals that overlap or touch."""
    found = []
    for low, high in sorted(intervals):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def length(intervals):
    """Count the numbers in the union of intervals."""
    return sum(high - low + 1 for low, high in merge(intervals))
''',
    "numerals.py": '''\
"""Roman numerals from 1 to 3999."""

VALUES = ((1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"))
SMALL = ((50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))


def to_roman(number):
    if not 1 <= number <= 3999:
        raise ValueError(f"{number} has no Roman numeral")
    written = ""
    for value, letters in VALUES + SMALL:
        count, number = divmod(number, value)
        written += letters * count
    return written


def from_roman(text):
    single = {letters: value for value, letters in VALUES + SMALL if len(letters) == 1}
    values = [single[letter] for letter in text]
    total = 0
    for value, after in zip(values, [*values[1:], 0]):
        total += -value if value < after else value
    return total
''',
    "words.py": '''\
"""Counting and wrapping words."""


def count_words(text):
    found = {}
    for word in text.lower().split():
        word = word.strip(".,;:!?")
        if word:
            found[word] = found.get(word, 0) + 1
    return found


def most_common(text, number):
    """Return the most frequent words, in alphabetical order where they are equally frequent."""
    counted = count_words(text)
    return sorted(counted, key=lambda word: (-counted[word], word))[:number]


def wrap(text, width):
    """Break a text into lines of at most `width` characters; a longer word has a line of its own."""
    lines = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines
''',
    "tests/test_intervals.py": """\
from intervals import length, merge, overlaps


def test_overlaps():
    assert overlaps((1, 3), (3, 5)) and overlaps((2, 9), (4, 5)) and not overlaps((1, 2), (3, 4))


def test_merge():
    assert merge([(5, 7), (1, 2), (3, 4)]) == [(1, 7)]
    assert merge([(1, 2), (4, 5)]) == [(1, 2), (4, 5)] and merge([]) == []


def test_merge_keeps_the_longer_end():
    assert merge([(1, 9), (2, 3)]) == [(1, 9)]


def test_length():
    assert length([(1, 3), (2, 5)]) == 5 and length([(4, 4)]) == 1
""",
    "tests/test_numerals.py": """\
import pytest

from numerals import from_roman, to_roman


@pytest.mark.parametrize(("number", "text"), [(4, "IV"), (9, "IX"), (1994, "MCMXCIV"), (2026, "MMXXVI"), (3999, "MMMCMXCIX")])
def test_known(number, text):
    assert to_roman(number) == text and from_roman(text) == number


def test_there_and_back():
    assert all(from_roman(to_roman(number)) == number for number in range(1, 4000, 37))


def test_out_of_range():
    with pytest.raises(ValueError):
        to_roman(0)
""",
    "tests/test_words.py": """\
from words import count_words, most_common, wrap


def test_count_words():
    assert count_words("A rose, a rose!") == {"a": 2, "rose": 2} and count_words(" ... ") == {}


def test_most_common():
    assert most_common("b a b c a d", 2) == ["a", "b"] and most_common("x", 3) == ["x"]


def test_wrap():
    assert wrap("one two three four", 9) == ["one two", "three", "four"]
    assert wrap("incomprehensible is long", 7) == ["incomprehensible", "is long"]
""",
}
"""The repository: short enough for a prompt, with functions that a small bug breaks."""


def prepare(made: Path, data: Path) -> None:
    """Make all inputs in a folder; what is there already is replaced."""
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    task = make_task({"name": "gsm8k", "path": str(data / "gsm8k")})
    write_rows(made / "preferences.jsonl", make_preferences(task))
    write_rows(made / "labelled.jsonl", make_labelled(task))
    make_texts(made)
    make_repository(made / "repository")


def write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def make_preferences(task: Task) -> Iterable[dict[str, str]]:
    """Prompt, a worked solution as chosen and a flawed one as rejected reply."""
    for number, problem in enumerate(task.draw_problems("train", 0, 2 * ROWS)):
        flawed = task.demonstrate_flawed(problem, random.Random(number))
        if flawed is not None:
            good = task.demonstrate(problem, random.Random(number))
            texts = ["\n\n".join([*one.steps, f"The answer is \\boxed{{{one.answer}}}."]) for one in (good, flawed)]
            yield {"prompt": problem.text, "chosen": texts[0], "rejected": texts[1]}


def make_labelled(task: Task) -> Iterable[dict[str, Any]]:
    """ProcessBench's form: a problem, the steps of a solution, and the number of its first wrong step, or -1. Every other
    solution is flawed, where it can be."""
    for number, problem in enumerate(task.draw_problems("train", 2 * ROWS, ROWS)):
        flawed = task.demonstrate_flawed(problem, random.Random(number)) if number % 2 else None
        shown = flawed or task.demonstrate(problem, random.Random(number))
        yield {"problem": problem.text, "steps": list(shown.steps), "label": shown.first_error}


def make_texts(made: Path) -> None:
    """The systems' pages as a folder of texts, without the results that they show, and a question about each that names a
    paper."""
    (made / "texts").mkdir()
    asked = {}
    for system in SYSTEMS:
        page = HOME / "src" / "milonga" / "systems" / system.page
        if system.paper.startswith("arXiv ") and page.name == "README.md":
            text = RESULTS.sub("", page.read_text(encoding="utf-8"))
            (made / "texts" / f"{page.parent.name}.md").write_text(text, encoding="utf-8")
            title = text.partition("\n")[0].removeprefix("# ")
            asked.setdefault(title, system.paper)
    rows = [{"question": f"Which system does the paper {paper} describe?", "answer": title} for title, paper in asked.items()]
    write_rows(made / "questions.jsonl", rows)


def make_repository(folder: Path) -> None:
    """A git repository with one commit."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    who = ("-c", "user.name=Milonga", "-c", "user.email=milonga@example.org", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "first")):
        subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("made", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="a folder with gsm8k, math and mbpp")
    args = parser.parse_args()
    prepare(args.made, args.data)


if __name__ == "__main__":
    main()
