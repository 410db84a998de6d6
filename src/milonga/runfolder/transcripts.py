"""Load solutions with the verifier's verdict beside the true label of each step, and select those worth reading first."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milonga.config import Config
from milonga.roles import StepSolver, make_step_solver
from milonga.runfolder.rollouts import read_rollouts
from milonga.types import Solution

FILE = re.compile(r"turn-[0-9]{6,12}\.parquet")
MOST_ROLLOUTS = 20_000
"""Most rollouts that are read from a file: those of the last problems, with all their verifications."""
COLUMNS = (
    *("id", "agent", "problem", "question", "targets", "text", "finish", "invalid"),
    *("answer", "final_verdict", "step_verdicts", "correct", "step_truth"),
)


@dataclass(frozen=True)
class Step:
    text: str
    verdict: bool | None
    truth: bool | None

    @property
    def disputed(self) -> bool:
        return self.verdict is not None and self.truth is not None and self.verdict != self.truth


@dataclass(frozen=True)
class Transcript:
    """A solution and one verification of it, if there is any."""

    id: str
    turn: int
    agent: str
    problem: str
    question: str
    text: str
    steps: Sequence[Step]
    """Empty if no steps can be parsed from the text."""
    answer: str | None
    correct: bool | None
    invalid: str | None
    """Why it could not be parsed."""
    checked: bool = False
    says_right: bool | None = None
    """The verification's final verdict; None if none can be parsed."""
    check_text: str = ""
    check_invalid: str | None = None
    """Why that verification could not be parsed."""
    unread: Sequence[str] = ()
    """Of all its verifications that could not be parsed, why."""
    agreeing: tuple[int, int] = field(default=(0, 0))
    """(how many verifications call this solution right, how many there are)."""
    cut: str = ""
    """What of the two was cut at the limit of tokens, in words."""

    @property
    def disputed(self) -> int:
        """Number of steps whose verdict differs from the true label."""
        return sum(step.disputed for step in self.steps)

    @property
    def fooled(self) -> bool:
        return self.correct is False and self.says_right is True

    @property
    def contradicts(self) -> bool:
        """Whether the final verdict contradicts the step verdicts."""
        verdicts = [step.verdict for step in self.steps if step.verdict is not None]
        return self.says_right is not None and bool(verdicts) and all(verdicts) != self.says_right


def read_transcripts(folder: Path, config: Config) -> list[Transcript]:
    """Read the transcripts of the last saved rollouts, in file order; empty if none were saved."""
    files = sorted(file for file in (folder / "rollouts").glob("turn-*.parquet") if FILE.fullmatch(file.name))
    if not files:
        return []
    rows = read_rollouts(files[-1], COLUMNS, MOST_ROLLOUTS)
    turn = int(files[-1].stem.removeprefix("turn-"))
    solver = make_step_solver(config.dialect)
    checks: dict[str, list[dict[str, Any]]] = {}
    solutions = [row for row in rows if not row["targets"] or _is_later_turn(row)]
    for row in rows:
        for target in () if _is_later_turn(row) else row["targets"] or ():
            checks.setdefault(target, []).append(row)
    return [_build_transcript(row, checks.get(row["id"], []), solver, turn) for row in solutions]


def _is_later_turn(row: Mapping[str, Any]) -> bool:
    """Whether a row is a later turn of a conversation, not a verification. Its id, as the context made it, tells."""
    return any(f"/{target}>" in row["id"] for target in row["targets"] or ())


def _build_transcript(row: Mapping[str, Any], checks: Sequence[Mapping[str, Any]], solver: StepSolver, turn: int) -> Transcript:
    """Build a transcript. Of several verifications the one with the largest disagreement is shown; the others are counted."""
    truth = row["step_truth"] or []
    check = max(checks, key=lambda one: _measure_disagreement(one, row["correct"], truth), default=None)
    verdicts = (check["step_verdicts"] if check is not None else None) or []
    read = solver.parse(row["text"]).value
    texts = read.steps if isinstance(read, Solution) else ()
    steps = [
        Step(text, verdicts[k] if k < len(verdicts) else None, truth[k] if k < len(truth) else None)
        for k, text in enumerate(texts)
    ]
    return Transcript(
        id=row["id"],
        turn=turn,
        agent=row["agent"],
        problem=row["problem"],
        question=row["question"],
        text=row["text"],
        steps=steps,
        answer=row["answer"],
        correct=row["correct"],
        invalid=row["invalid"],
        checked=check is not None,
        says_right=None if check is None else check["final_verdict"],
        check_text="" if check is None else check["text"],
        check_invalid=None if check is None else check["invalid"],
        unread=tuple(one["invalid"] for one in checks if one["invalid"]),
        agreeing=(sum(one["final_verdict"] is True for one in checks), len(checks)),
        cut=_describe_cut(row["finish"] == "length", check is not None and check["finish"] == "length"),
    )


def _describe_cut(solution: bool, check: bool) -> str:
    """Describe what was cut at the limit of tokens; nothing if all is whole."""
    what = " and ".join(name for name, cut in (("the solution", solution), ("the verification", check)) if cut)
    return f"{what} {'were' if solution and check else 'was'} cut at the limit of tokens" if what else ""


def _measure_disagreement(check: Mapping[str, Any], correct: bool | None, truth: Sequence[bool]) -> tuple[int, int]:
    """Disagreement of a verification with the truth: (final verdict wrong, number of wrong step verdicts)."""
    final = check["final_verdict"]
    wrong = final is not None and correct is not None and final != correct
    verdicts = check["step_verdicts"] or []
    return int(wrong), sum(a != b for a, b in zip(verdicts, truth, strict=False))


KINDS: tuple[tuple[str, Callable[[Transcript], int]], ...] = (
    ("the verifier was fooled: it calls a wrong solution right", lambda one: one.fooled),
    ("largest disagreement with the truth of the steps", lambda one: one.disputed),
    ("contradiction: the final verdict is not what the step verdicts say", lambda one: one.contradicts),
    ("an error among the last", lambda one: one.correct is False),
)
"""(reason why a transcript is worth reading, score of a transcript; 0 for not at all)."""


def select_transcripts(transcripts: Sequence[Transcript], each: int) -> list[tuple[str, Transcript]]:
    """Select transcripts worth reading, with the reason: at most `each` of each kind, none twice, the last ones first."""
    out: list[tuple[str, Transcript]] = []
    taken: set[str] = set()
    for why, measure in KINDS:
        found = [one for one in reversed(transcripts) if one.id not in taken and measure(one)]
        chosen = sorted(found, key=measure, reverse=True)[:each]
        taken |= {one.id for one in chosen}
        out += [(why, one) for one in chosen]
    return out
