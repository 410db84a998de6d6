"""Put the reward flow of a real run into the page of its recipe, between its two marks.

python scripts/draw_flow.py runs/tango-… src/milonga/systems/tango/README.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from milonga.runfolder.files import JsonLines
from milonga.runfolder.flow import compute_reward_flow, to_mermaid

BEGIN, END = (
    "<!-- reward flow: made by scripts/draw_flow.py from the train batches of a run -->",
    "<!-- end of the reward flow -->",
)


def drawn(page: str, graph: str) -> str:
    """The page with this graph: in the old one's place, or at its end."""
    block = f"{BEGIN}\n```mermaid\n{graph}\n```\n{END}"
    if BEGIN not in page:
        return f"{page.rstrip()}\n\n## Reward flow\n{block}\n"
    before, _, rest = page.partition(BEGIN)
    return before + block + rest.partition(END)[2]


def main() -> None:
    run, page = Path(sys.argv[1]), Path(sys.argv[2])
    graph = to_mermaid(compute_reward_flow(JsonLines(run / "metrics.jsonl").rows()))
    page.write_text(drawn(page.read_text(), graph))


if __name__ == "__main__":
    main()
