"""Buffers of proposed programs, one for each kind of question, to draw from in later turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from milonga.context import Context
from milonga.randomness import keyed_rng
from milonga.sandbox.values import parse_arguments, to_canonical
from milonga.systems.absolute_zero.programs import is_terse
from milonga.systems.absolute_zero.roles import Question
from milonga.tasks.code_questions import ENTRY, Kind, Worked
from milonga.types import Problem

IDENTITY = {True: ("a", "[3,1,2]"), False: (f"def {ENTRY}(a):\n    return a", "[3,1,2]")}
"""The first program of all, in the tiny dialect and in Python."""


@dataclass(frozen=True)
class Buffers:
    """The buffer of each kind, inside the state of the recipe: program, inputs, outputs, and the turn it was added in.

    Entries are unique. Only the newest `keep` stay.
    """

    state: dict[str, Any]
    keep: int

    def size(self, kind: Kind) -> int:
        return len(self.state.get(kind, []))

    def admit(self, kind: Kind, found: Sequence[Worked], turn: int) -> None:
        items = self.state.get(kind, [])
        known = {(item[0], *item[1]) for item in items}
        for worked in found:
            if (name := (worked.program, *worked.inputs)) not in known:
                known.add(name)
                items = [*items, [worked.program, list(worked.inputs), list(worked.outputs), turn]]
        self.state[kind] = items[-self.keep :]

    def draw(self, kind: Kind, ctx: Context, count: int, fresh_first: bool) -> list[Worked]:
        """Draw entries for the solver: with `fresh_first` those of the last turn first, and the rest uniformly."""
        items = self.state.get(kind, [])
        rng = keyed_rng("buffer", kind, ctx.seed, ctx.turn)
        fresh = [item for item in items if fresh_first and item[3] >= int(ctx.turn) - 1]
        older = [item for item in items if not (fresh_first and item[3] >= int(ctx.turn) - 1)]
        first = rng.sample(fresh, min(count, len(fresh)))
        return [_parse_worked(item) for item in [*first, *rng.sample(older, min(count - len(first), len(older)))]]

    def sample_reference_prompts(self, kind: Kind, ctx: Context, count: int, each: int) -> list[Problem]:
        """Sample `count` prompts for a proposer of programs, each with earlier programs as references."""
        rng = keyed_rng("references", kind, ctx.seed, ctx.turn, self.size(kind))
        texts, items = Question(is_terse(ctx)), self.state[kind]
        out = []
        for number in range(count):
            shown_ones = [_parse_worked(item) for item in rng.sample(items, min(each, len(items)))]
            text = texts.render_references([(worked.program, worked.inputs[0]) for worked in shown_ones])
            out.append(Problem(f"{kind}/{number}", text, ""))
        return out

    def sample_program_prompts(self, ctx: Context, count: int) -> list[Problem]:
        """Sample `count` prompts for the proposer of inputs, each with a program of the other two buffers."""
        rng = ctx.rng("programs")
        items = [*self.state["deduction"], *self.state["abduction"]]
        drawn = [_parse_worked(rng.choice(items)).program for _ in range(count)]
        return [Problem(f"induction/{n}", program, "", {"program": program}) for n, program in enumerate(drawn)]


def _parse_worked(item: Sequence[Any]) -> Worked:
    """Convert a buffer entry back to a program with its inputs and outputs."""
    return Worked(item[0], tuple(item[1]), tuple(item[2]))


def make_initial_state(tiny: bool) -> dict[str, Any]:
    """Return the initial buffers, with only the identity program."""
    program, given = IDENTITY[tiny]
    state: dict[str, Any] = {}
    for kind in ("deduction", "abduction"):
        Buffers(state, 1).admit(kind, [Worked(program, (given,), (to_canonical(parse_arguments(given)[0]),))], 0)
    return state
