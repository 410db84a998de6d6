"""Objectives: what a learner minimises. The names and switches are here, free of torch; the formulas are in `losses`."""

from milonga.objectives.spec import OBJECTIVES, Objective, make_objective

__all__ = ["OBJECTIVES", "Objective", "make_objective"]
