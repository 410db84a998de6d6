"""Objectives: how advantages are estimated and what a learner minimises. The switches are here, free of torch; the formulas of
the losses are in `losses`."""

from milonga.objectives.presets import PRESETS, Objective, ObjectiveSection, make_objective
from milonga.objectives.spec import Estimator, Kind, Loss, RolloutFilter

__all__ = ["PRESETS", "Estimator", "Kind", "Loss", "Objective", "ObjectiveSection", "RolloutFilter", "make_objective"]
