"""What all pages share."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from milonga.board.browse import Traces
from milonga.board.catalogue import Card, Catalogue
from milonga.board.curves import Shelf

KEPT_RUNS = 8
"""Runs whose turns are remembered."""


@dataclass
class Board:
    """The runs, and what was read of them."""

    catalogue: Catalogue
    shelf: Shelf = field(default_factory=Shelf)
    opened: OrderedDict[Path, Traces] = field(default_factory=OrderedDict)

    def traces(self, card: Card) -> Traces:
        """Those of the runs that were looked at last keep what they know of their turns."""
        found = self.opened.setdefault(card.path, Traces(card.path / "traces", card.dialect == "terse"))
        self.opened.move_to_end(card.path)
        while len(self.opened) > KEPT_RUNS:
            self.opened.popitem(last=False)
        return found
