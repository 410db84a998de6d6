"""State that all pages share."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from milonga.board.browse import Rollouts
from milonga.board.catalogue import Card, Catalogue
from milonga.board.curves import Shelf

KEPT_RUNS = 8
"""Most runs whose saved rollouts stay in the cache."""


@dataclass
class Board:
    """The catalogue of runs, and caches of what was read from them."""

    catalogue: Catalogue
    shelf: Shelf = field(default_factory=Shelf)
    opened: OrderedDict[Path, Rollouts] = field(default_factory=OrderedDict)

    def open_rollouts(self, card: Card) -> Rollouts:
        """Open the saved rollouts of a run. The runs that were viewed last keep their cached counts."""
        found = self.opened.setdefault(card.path, Rollouts(card.path / "rollouts", card.dialect == "terse"))
        self.opened.move_to_end(card.path)
        while len(self.opened) > KEPT_RUNS:
            self.opened.popitem(last=False)
        return found
