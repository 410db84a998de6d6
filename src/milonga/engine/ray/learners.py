"""The learners of a policy, and how those that were lost are made again.

Invariant: learners that take the place of lost ones are what those were: they go back to the last saved state, and do again
what was done since, which nobody counts a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milonga.engine.ray.group import Group, Lost, report_loss
from milonga.engine.ray.worker import Charges
from milonga.types import Parsed, Problem, Rollout, Rollouts

DRAFT = ".draft"
"""How a checkpoint's folder is called while it is written; it loses that when it is complete."""


@dataclass
class Learners:
    """The learner workers of one policy, and what restores them: a saved state, and a journal of the calls since."""

    policy: str
    group: Group
    saved: tuple[Path, Mapping[str, Any]] | None = None
    journal: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    def call_workers(
        self, method: str, *args: Any, changes: bool = False, fetch: bool = True
    ) -> tuple[list[Any], list[Charges]]:
        """Call a method on all workers, replacing lost ones; return their values (or references to them) and costs."""
        for attempt in range(self.group.placement.retries + 1):
            try:
                if not self.group.alive:
                    self.rebuild()
                call = self.group.submit(method, *args)
                charges = self.group.wait_until_done(call)
                found = self.group.fetch_values(call) if fetch else call.values
                break
            except Lost as lost:
                report_loss(self.group, lost, attempt)
        if changes:
            self.journal.append((method, args))
        return found, charges

    def rebuild(self) -> None:
        """Restart the workers from the saved state and replay the journal. Its compute was counted before."""
        try:
            self.group.start()
            if self.saved is not None:
                folder, state = self.saved
                self.group.wait_until_done(self.group.submit("load", self.policy, _find_checkpoint(folder), state))
            for method, args in self.journal:
                self.group.wait_until_done(self.group.submit(method, *args))
        except BaseException:
            self.group.stop()  # half of what was done is nothing to go on from
            raise

    def mark_saved(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Mark this state as saved: lost workers are restored from it."""
        self.saved, self.journal = (folder, state), []


def _find_checkpoint(folder: Path) -> Path:
    """Find the folder of a checkpoint: it was saved under a draft's name, and may have been renamed since."""
    return folder if folder.exists() else folder.with_name(folder.name.removesuffix(DRAFT))


def strip_rollouts(rollouts: Rollouts) -> Rollouts:
    """Strip rollouts to what learners need: ids, segments, log-probabilities, temperature. No texts are sent."""
    nothing, unread = Problem("", "", ""), Parsed(None, 0.0)
    return Rollouts(
        Rollout(t.id, t.agent, nothing, t.ids, t.segments, t.logprobs, "", unread, origin=t.origin, temperature=t.temperature)
        for t in rollouts
    )
