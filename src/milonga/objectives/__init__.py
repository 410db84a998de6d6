"""Objectives: what a learner minimises. The names and switches are here, free of torch; the formulas are in `losses`."""

from milonga.objectives.spec import OBJECTIVES, Kind, Objective, make_objective

__all__ = ["OBJECTIVES", "Kind", "Objective", "make_objective"]
