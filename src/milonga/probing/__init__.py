"""Is there anything to learn from? A probe samples a few train problems before a run and says so; a run that finds no signal
for some turns stops; and a run may choose its train problems by how often its start model solves them.

Invariants: a probe uses train problems only, draws with keys of its own, is not charged to the budget and changes no state: a
run after a probe is the same to the bit as one without.
"""

from milonga.probing.pass_rates import choose_problems, recall_problems
from milonga.probing.probe import PROBLEMS, ROLLOUTS, Probe, can_probe, probe, should_probe
from milonga.probing.stall import count_signals, find_stall

__all__ = [
    "PROBLEMS",
    "ROLLOUTS",
    "Probe",
    "can_probe",
    "choose_problems",
    "count_signals",
    "find_stall",
    "probe",
    "recall_problems",
    "should_probe",
]
