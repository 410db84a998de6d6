"""The table of a results page, as Markdown, from what `milonga compare` wrote.

python scripts/results_table.py easy=docs/results/tango/easy.json sparse=docs/results/tango/sparse.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ACCURACY, SOUND, F1 = "eval/generator/accuracy", "eval/generator/sound_accuracy", "eval/verifier/f1"
HEAD = "| regime | arm | seeds | accuracy | sound | area | accuracy − {0} | area − {0} | F1 | tokens |"


def final(arm: dict[str, Any], metric: str, field: str = "final") -> str:
    found = arm["metrics"].get(metric)
    return "—" if found is None else f"{found[field]:.3f}"


def difference(result: dict[str, Any], arm: str, metric: str) -> str:
    """Mean and 95 % t interval over paired seeds; nothing for the baseline itself."""
    for row in result["differences"]:
        if row["arm"] == arm and row["metric"] == metric:
            low, high = row["interval"]
            strong = "**" if row["verdict"] in ("higher", "lower") else ""
            return f"{strong}{row['mean']:+.3f}{strong} [{low:+.3f}, {high:+.3f}]"
    return ""


def rows(regime: str, result: dict[str, Any]) -> list[str]:
    lines = []
    for name in sorted(result["arms"], key=lambda arm: arm != result["baseline"]):
        arm = result["arms"][name]
        cells = [regime, name, str(len(arm["runs"])), final(arm, ACCURACY), final(arm, SOUND), final(arm, ACCURACY, "area")]
        cells += [difference(result, name, ACCURACY), difference(result, name, f"area of {ACCURACY}")]
        cells += [final(arm, F1), f"{arm['tokens'] / 1e6:.1f}M"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", help="compare.json files, each as NAME=FILE")
    args = parser.parse_args()
    read = [(name, json.loads(Path(file).read_text())) for name, _, file in (text.rpartition("=") for text in args.results)]
    print(HEAD.format(read[0][1]["baseline"]))
    print("|---" * HEAD.count(" | ") + "|---|")
    for name, result in read:
        print("\n".join(rows(name, result)))


if __name__ == "__main__":
    main()
