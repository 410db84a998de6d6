"""The reward flow of a run: the share of each policy's credit by source. Derived from the train batches of real turns.

Every train batch names the sources of its credit with their shares; the loop logs them as metrics `flow/SOURCE>POLICY`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from milonga.runfolder.record import to_number

Flow = dict[tuple[str, str], float]
"""(source, policy) -> mean share of the policy's credit, over the turns in which it had any."""
PREFIX, SIGNAL = "flow/", "signal"
REWARDS = "rewards"
"""The source of credit that reward functions of the user's own are."""
OUTSIDE = (
    *("answers", REWARDS, "steps", "demonstrations", "text", "preferences"),
    *("format", "construction", "execution"),
)
"""Sources of credit that are not agents."""


def compute_reward_flow(rows: Iterable[Mapping[str, Any]]) -> Flow:
    """Compute the flow of some turns. A source that gave a policy nothing in a turn is zero there: shares add up to 1."""
    turns: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        found: dict[str, dict[str, float]] = {}
        for key, share in row.items():
            if key.startswith(PREFIX) and (known := to_number(share)) is not None:
                source, _, policy = key.removeprefix(PREFIX).partition(">")
                found.setdefault(policy, {})[source] = known
        for policy, shares in found.items():
            turns.setdefault(policy, []).append(shares)
    return {
        (source, policy): sum(shares.get(source, 0.0) for shares in each) / len(each)
        for policy, each in turns.items()
        for source in dict.fromkeys(name for shares in each for name in shares)
    }


def compute_credit(rows: Sequence[Mapping[str, Any]]) -> Flow:
    """Compute the flow of a run for people; none where no turn had a signal: shares of nothing mislead."""
    signals = [row[SIGNAL] for row in rows if SIGNAL in row]
    return {} if signals and not any(signals) else compute_reward_flow(rows)


def to_mermaid(flow: Flow) -> str:
    """Format a reward flow as a Mermaid graph: policies and judging agents are boxes, outside sources are round."""
    lines = ["graph LR"]
    for node in dict.fromkeys(name for edge in flow for name in edge):
        lines.append(f"    {node}({node})" if node in OUTSIDE else f"    {node}[{node}]")
    lines += [f"    {source} -->|{share:.2f}| {policy}" for (source, policy), share in flow.items()]
    return "\n".join(lines)
