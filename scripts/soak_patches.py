"""Patches that try to grade themselves, several times over and in random order, among honest ones. `make soak`.

    python scripts/soak_patches.py --out docs/results/soak/patches.json
    python scripts/soak_patches.py --count 10      # the script itself, in a minute

Every attack of `patch_attacks.py` is graded with the first look at its text and without it; right patches of several styles
must be right, and wrong ones wrong. The exit code is 1 if any is graded otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

from milonga.sandbox import Limits
from milonga.tasks.bugs_pytest import PytestRunner
from patch_attacks import ATTACKS, REPOSITORY, RIGHT, WRONG, Unscreened, grade_texts, make_bug

ROUNDS = 3
BATCH = 10
LIMITS = Limits(cpu_s=30, wall_s=300, memory_mb=512, open_files=256, file_mb=16, scratch_mb=64)


def draw_cases(rng: random.Random, count: int | None) -> list[tuple[str, str, bool, bool]]:
    """Draw all cases several times, in random order: name, text, whether it is right, and whether its text is looked at."""
    attacks = [(each.name, each.text, False, screened) for each in ATTACKS for screened in (True, False)]
    honest = [
        (name, text, is_right, True) for texts, is_right in ((RIGHT, True), (WRONG, False)) for name, text in texts.items()
    ]
    cases = [*attacks, *honest] * ROUNDS
    rng.shuffle(cases)
    return cases[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, help="patches; by default all, three times over")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    start = time.monotonic()
    runners = {True: PytestRunner(LIMITS, "isolated", False), False: Unscreened(LIMITS, "isolated", False)}
    bugs = {screened: make_bug(runner) for screened, runner in runners.items()}
    learned = runners[True].learn(REPOSITORY, bugs[True].artifact.oracle)
    cases = draw_cases(random.Random(asked.seed), asked.count)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    flaws = []
    for screened in (True, False):
        own = [case for case in cases if case[3] is screened]
        for at in range(0, len(own), BATCH):
            batch = own[at : at + BATCH]
            graded = grade_texts(bugs[screened], runners[screened], [text for _, text, _, _ in batch])
            for (name, _, is_right, _), reason in zip(batch, graded, strict=True):
                reasons[name][reason or "right"] += 1
                if is_right is bool(reason):
                    flaws.append({"patch": name, "looked_at": screened, "reason": reason})
            print(f"{at + len(batch)} of {len(own)}, {len(flaws)} graded wrongly", file=sys.stderr, flush=True)
    result = {
        "seed": asked.seed,
        "patches": len(cases),
        "kinds": {"attacks": len(ATTACKS), "right": len(RIGHT), "wrong": len(WRONG)},
        "tests": {"all": len(bugs[True].verdict.specified), "apart": len(learned.apart), "telling": len(learned.telling)},
        "graded_wrongly": flaws,
        "seconds": round(time.monotonic() - start, 1),
        "reasons": {name: dict(counts.most_common()) for name, counts in sorted(reasons.items())},
    }
    text = json.dumps(result, indent=1) + "\n"
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(text)
    print(text)
    sys.exit(1 if flaws else 0)


if __name__ == "__main__":
    main()
