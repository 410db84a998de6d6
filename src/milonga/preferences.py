"""The preference pairs of a run: pairs of completions of which one should win, with the reason why each was kept.

Invariants: a pair is kept once in a round, whatever its white space and case; two sides that read alike are no pair. Sampled
text is kept by its ids, so that a pair that is learned from again is never encoded again. The run folder holds every pair,
and a resumed run has exactly those up to its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from milonga.errors import RunFolderError
from milonga.reading import check_shape
from milonga.tasks.base import normalise_text
from milonga.types import Parsed, Problem, Rollout, Segment

SIDES = ("winner", "loser")


@dataclass(frozen=True)
class Side:
    """One completion of a pair: its text, all its ids (prompt included), and where among them the completion begins."""

    text: str
    ids: tuple[int, ...]
    start: int

    @classmethod
    def from_rollout(cls, rollout: Rollout) -> Side:
        start = rollout.segments[-1].start if rollout.segments else 0
        return cls(rollout.text, tuple(int(token) for token in rollout.ids), start)

    def to_rollout(self, id: str, agent: str, problem: Problem, policy: str) -> Rollout:
        """Rebuild the rollout, as a row of a train batch for a policy with the same tokenizer; never for a policy gradient."""
        return Rollout(
            id=id,
            agent=agent,
            problem=problem,
            ids=np.array(self.ids, dtype=np.int64),
            segments=(Segment("prompt", 0, self.start), Segment(agent, self.start, len(self.ids), policy, trained=True)),
            logprobs=np.zeros(len(self.ids)),
            text=self.text,
            parsed=Parsed(None, 0.0, "kept from an earlier turn, not read again"),
            origin="given",
        )


@dataclass(frozen=True)
class Preference:
    """A preference pair: its turn and round, the agent and problem, the winner, the loser, and the reason."""

    turn: int
    round: int
    agent: str
    problem: str
    """The problem's id."""
    question: str
    winner: Side
    loser: Side
    reason: str

    @property
    def key(self) -> tuple[int | str, ...]:
        """Identity of the pair, by which duplicates are found. The round is part of it: later the policy is another one."""
        return (self.round, self.agent, *(normalise_text(text) for text in (self.question, self.winner.text, self.loser.text)))

    def to_rollouts(self, policy: str) -> tuple[Rollout, Rollout]:
        """Rebuild winner and loser as rows of a train batch for a policy with the same tokenizer."""
        id, problem = f"{self.turn}/{self.problem}", Problem(self.problem, self.question, "")
        return (
            self.winner.to_rollout(f"{id}/winner", self.agent, problem, policy),
            self.loser.to_rollout(f"{id}/loser", self.agent, problem, policy),
        )

    def to_json(self) -> dict[str, Any]:
        """A row of the run folder."""
        sides = tuple(zip(SIDES, (self.winner, self.loser), strict=True))
        texts = {name: side.text for name, side in sides}
        tokens = {f"{name}_{what}": value for name, s in sides for what, value in (("ids", list(s.ids)), ("start", s.start))}
        named = {
            "turn": self.turn,
            "round": self.round,
            "agent": self.agent,
            "problem": self.problem,
            "question": self.question,
        }
        return named | {"reason": self.reason} | texts | tokens

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Preference:
        """Read a row of the run folder; one of another shape is a `RunFolderError`."""
        sides = {name: {"text": row.get(name)} | {key: row.get(f"{name}_{key}") for key in ("ids", "start")} for name in SIDES}
        try:
            return check_shape(cls, row | sides)
        except ValueError as error:
            raise RunFolderError(f"a pair of preferences of turn {row.get('turn')} cannot be read: {error}") from None


class Preferences:
    """All pairs of a run so far, in the order in which they were made."""

    def __init__(self, rows: Iterable[dict[str, Any]] = ()) -> None:
        """From the rows of a run folder, all of which are saved already."""
        try:
            self.kept = [Preference.from_json(row) for row in rows]
        except (KeyError, TypeError):
            raise RunFolderError("preferences.jsonl has a row that is no pair: remove it, or put back the file") from None
        self._seen = {one.key for one in self.kept}
        self._saved = len(self.kept)

    def add(self, one: Preference) -> bool:
        """Keep a pair; False if its sides read alike, or if the round has it already."""
        if normalise_text(one.winner.text) == normalise_text(one.loser.text) or one.key in self._seen:
            return False
        self._seen.add(one.key)
        self.kept.append(one)
        return True

    def select_round(self, number: int) -> list[Preference]:
        return [one for one in self.kept if one.round == number]

    def take_unsaved(self) -> list[dict[str, Any]]:
        """Return the rows that the run folder does not hold yet, and mark them as saved."""
        rows = [one.to_json() for one in self.kept[self._saved :]]
        self._saved = len(self.kept)
        return rows
