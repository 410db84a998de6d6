"""Plan a run for hardware that is not at hand: time, memory and cost of a turn, and the best placement on the GPUs.

Invariants: nothing here imports torch; every constant is measured (`measured.json`), published (`shapes`, `hardware`) or an
assumption that is listed beside the result; a number outside of what was measured is called *model*.
"""

from milonga.planning.calibrate import Calibration, calibrate
from milonga.planning.describe import describe
from milonga.planning.hardware import ACCELERATORS, Accelerator, find_accelerator
from milonga.planning.lengths import Lengths
from milonga.planning.model import Machine
from milonga.planning.plan import ClusterPlan, make_plan, make_plans
from milonga.planning.shapes import SHAPES, Shape, find_shape
from milonga.planning.simulate import Simulation, simulate
from milonga.planning.workload import PLANNABLE, Workload

__all__ = [
    "ACCELERATORS",
    "PLANNABLE",
    "SHAPES",
    "Accelerator",
    "Calibration",
    "ClusterPlan",
    "Lengths",
    "Machine",
    "Shape",
    "Simulation",
    "Workload",
    "calibrate",
    "describe",
    "find_accelerator",
    "find_shape",
    "make_plan",
    "make_plans",
    "simulate",
]
