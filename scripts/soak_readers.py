"""A million fuzzed texts for every reader of what models write: none raises, none is slow. `make soak`.

    python scripts/soak_readers.py --out docs/results/soak/readers.json
    python scripts/soak_readers.py --count 20000      # the script itself, in a minute

Texts are made of the delimiters that readers know, repeated, alternated and nested at random, and of characters of all kinds.
Each is shown to one reader, in turn; those that group votes, which ask a grader in another process, see fewer. A text that
takes longer than `SLOW` is shown again, at an eighth of its length: it is slow if the time grows faster than
`reader_attacks.STEEPEST` allows. The exit code is 1 if anything raised, or was slow.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

from reader_attacks import FACTOR, PIECES, STEEPEST, Reader, find_growth, load_readers, measure_seconds, no_collection

SLOW = 0.25
"""Seconds of processor time from which on a text is looked at again."""
LONGEST = 20_000
CHARACTERS = "".join(
    map(chr, [*range(32, 127), 0, 9, 10, 13, 0xA0, 0xAD, 0x301, 0x200B, 0x202E, 0x2028, 0xFF15, 0xD800, 0x1F600])
)
WORST = 10
VOTES, VOTES_SHARE = "/votes", 20
"""Readers that group votes take part in one round of so many: each of their texts may be hundreds of questions to a grader."""


def draw_text(rng: random.Random) -> Callable[[int], str]:
    """Draw a text as a function of its length, so that a slow one can be shown again at another."""
    parts = [
        rng.choice(PIECES) if rng.random() < 0.8 else "".join(rng.choices(CHARACTERS, k=4)) for _ in range(rng.randint(1, 6))
    ]
    form, before, behind = rng.randrange(4), rng.choice(["", *PIECES]), rng.choice(["", *PIECES])
    seed = rng.randrange(2**32)

    def make(length: int) -> str:
        if form == 0:
            body = "".join(part * (length // (len(parts) * len(part)) + 1) for part in parts)
        elif form == 1:
            body = "".join(parts) * (length // len("".join(parts)) + 1)
        else:
            body = "".join(random.Random(seed).choices(parts if form == 2 else PIECES, k=length // 4 + 1))
        return before + body[:length] + behind

    return make


def iterate_readers(readers: Sequence[Reader]) -> Iterator[Reader]:
    """Iterate over the readers without end, round by round."""
    for turn in count():
        yield from (each for each in readers if turn % VOTES_SHARE == 0 or not each.name.endswith(VOTES))


def soak(readers: Sequence[Reader], inputs: int, seed: int, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Show `inputs` texts to the readers, and return what raised, what was slow, and what took the longest."""
    rng = random.Random(seed)
    errors: list[dict[str, str]] = []
    slow: list[dict[str, Any]] = []
    times: list[tuple[float, str, str]] = []
    for number, reader in enumerate(islice(iterate_readers(readers), inputs)):
        make, length = draw_text(rng), int(LONGEST ** rng.random())
        text = make(length)
        try:
            with no_collection():
                taken = measure_seconds(reader.read, text)
            growth = find_growth(reader.read, make, length) if taken > SLOW else None
        except Exception as error:
            errors.append({"reader": reader.name, "text": ascii(text[:200]), "error": f"{type(error).__name__}: {error}"[:200]})
            continue
        times = sorted([*times, (taken, reader.name, ascii(text[:40]))], reverse=True)[:WORST]
        if growth is not None and growth > FACTOR**STEEPEST:
            slow.append({"reader": reader.name, "text": ascii(text[:200]), "seconds": round(taken, 3), "growth": round(growth)})
        if (number + 1) % 10_000 == 0:
            say(f"{number + 1} of {inputs}: {len(errors)} errors, {len(slow)} slow")
    worst = [{"seconds": round(taken, 3), "reader": name, "text": text} for taken, name, text in times]
    return {"seed": seed, "inputs": inputs, "readers": len(readers), "errors": errors, "slow": slow, "worst": worst}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="milonga-soak-") as folder:
        readers = load_readers(Path(folder))
        result = soak(readers, asked.count, asked.seed, lambda line: print(line, file=sys.stderr, flush=True))
    text = json.dumps(result, indent=1) + "\n"
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(text)
    print(text)
    sys.exit(1 if result["errors"] or result["slow"] else 0)


if __name__ == "__main__":
    main()
