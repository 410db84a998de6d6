"""Train, dev and test of a source: how many problems are held out, which ones, and that no text is in two splits.

Invariants:
- The split of a row follows from its text and the sizes alone, not from the seed or from the order of the rows.
- Train, dev and test are disjoint by normalised text. What occurs in a held-out split too is removed from train: the
  held-out splits stay whole (dev only loses what the test has), and what was removed is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from milonga.errors import DataError
from milonga.randomness import keyed_rng
from milonga.tasks.base import normalise_text
from milonga.tasks.rows import Row
from milonga.types import SPLITS, Split

SHARE = 0.05
"""Of the rows, held out for dev, and as many for test."""
LEAST, LEAST_OF_FEW, MOST = 16, 4, 512
MANY = 64
"""Rows from which on `LEAST` of them are held out; of fewer, `LEAST_OF_FEW`."""
SMALLEST = 8
"""Rows of a source that can still be split."""


@dataclass(frozen=True)
class Splits:
    """Disjoint splits, and how many rows had to go to make them so."""

    rows: Mapping[Split, Sequence[Row]]
    overlaps: Mapping[str, int]


def choose_held_out_count(rows: int) -> int:
    """Choose how many problems to hold out for one split: about a twentieth of the rows, and never more than a quarter."""
    return min(max(round(SHARE * rows), LEAST if rows >= MANY else LEAST_OF_FEW), rows // 4, MOST)


def make_splits(task: str, own: Mapping[Split, Sequence[Row]], dev: int | None = None, test: int | None = None) -> Splits:
    """Make the splits of a task from those that its source has. What it lacks is taken from its train rows: so many problems,
    by default a number that suits the source."""
    rows = own["train"]
    asked: dict[Split, int | None] = {"dev": dev, "test": test}
    asked = {split: count for split, count in asked.items() if split not in own}
    if len(rows) < SMALLEST and None in asked.values():
        raise DataError(
            f"task '{task}' has {len(rows)} rows, too few to hold some out: give it {SMALLEST} or more, set task.dev and "
            "task.test to numbers of problems, or give it dev and test data of their own"
        )
    counts = {split: choose_held_out_count(len(rows)) if count is None else count for split, count in asked.items()}
    if counts and sum(counts.values()) >= len(rows):
        said = " and ".join(f"task.{split}={count}" for split, count in counts.items())
        raise DataError(f"task '{task}': {said} leave nothing to train on; there are {len(rows)} rows")
    made = split_rows(rows, counts.get("dev", 0), counts.get("test", 0))
    splits = remove_overlaps({split: own[split] if split in own and split != "train" else made[split] for split in SPLITS})
    if not splits.rows["train"]:
        raise DataError(f"task '{task}': nothing is left to train on; every row is in dev or test")
    return splits


def split_rows(rows: Sequence[Row], dev: int, test: int) -> dict[Split, list[Row]]:
    """Split rows in the order of a hash of their text: test first, then dev. Repetitions of a question stay together, so that
    a split may have a few rows more than asked for."""
    texts = [normalise_text(row.question) for row in rows]
    repetitions = Counter(texts)
    order = iter(sorted(repetitions, key=lambda text: keyed_rng("split", text).random()))
    chosen: dict[str, Split] = {}
    wanted: tuple[tuple[Split, int], ...] = (("test", test), ("dev", dev))
    for split, missing in wanted:
        while missing > 0 and (text := next(order, None)) is not None:
            chosen[text] = split
            missing -= repetitions[text]
    out: dict[Split, list[Row]] = {split: [] for split in SPLITS}
    for row, text in zip(rows, texts, strict=True):
        out[chosen.get(text, "train")].append(row)
    return out


def remove_overlaps(rows: Mapping[Split, Sequence[Row]]) -> Splits:
    """Make the splits disjoint: test stays whole, dev loses what is in test, train loses what is in either."""
    texts = {split: [normalise_text(row.question) for row in rows[split]] for split in SPLITS}
    dev, test = set(texts["dev"]), set(texts["test"])
    held_out = dev | test
    overlaps = {
        "train_dev": sum(text in dev for text in texts["train"]),
        "train_test": sum(text in test for text in texts["train"]),
        "dev_test": sum(text in test for text in texts["dev"]),
    }
    kept: dict[Split, Sequence[Row]] = {
        "train": [row for row, text in zip(rows["train"], texts["train"], strict=True) if text not in held_out],
        "dev": [row for row, text in zip(rows["dev"], texts["dev"], strict=True) if text not in test],
        "test": rows["test"],
    }
    return Splits(kept, overlaps)
