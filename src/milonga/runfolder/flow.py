"""The reward flow of a run: the share of each policy's credit by source. Derived from the train batches of real turns.

Every train batch names the sources of its credit with their shares; the loop logs them as metrics `flow/SOURCE>POLICY`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from milonga.runfolder.record import to_number

Flow = dict[tuple[str, str], float]
"""(source, policy) -> mean share of the policy's credit, over the turns in which that source gave any."""
PREFIX = "flow/"
REWARDS = "rewards"
"""The source of credit that reward functions of the user's own are."""
OUTSIDE = ("answers", REWARDS, "steps", "demonstrations", "text", "preferences", "format", "construction", "execution")
"""Sources of credit that are not agents."""


def compute_reward_flow(rows: Iterable[Mapping[str, Any]]) -> Flow:
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        for key, share in row.items():
            if key.startswith(PREFIX):
                source, _, policy = key.removeprefix(PREFIX).partition(">")
                if (known := to_number(share)) is not None:
                    found.setdefault((source, policy), []).append(known)
    return {edge: sum(shares) / len(shares) for edge, shares in found.items()}


def to_mermaid(flow: Flow) -> str:
    """Format a reward flow as a Mermaid graph: policies and judging agents are boxes, outside sources are round."""
    lines = ["graph LR"]
    for node in dict.fromkeys(name for edge in flow for name in edge):
        lines.append(f"    {node}({node})" if node in OUTSIDE else f"    {node}[{node}]")
    lines += [f"    {source} -->|{share:.2f}| {policy}" for (source, policy), share in flow.items()]
    return "\n".join(lines)
