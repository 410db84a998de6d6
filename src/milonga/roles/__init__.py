"""Roles: who sits at the table. Add a role by subclassing `Role` and registering it in `ROLES`."""

from milonga.roles.base import DIALECTS, ROLES, Dialect, Role
from milonga.roles.scorer import ImplicitScorer, Scorer, StepScorer
from milonga.roles.solver import StepSolver
from milonga.roles.verifier import StepVerifier

__all__ = [
    "DIALECTS",
    "ROLES",
    "Dialect",
    "ImplicitScorer",
    "Role",
    "Scorer",
    "StepScorer",
    "StepSolver",
    "StepVerifier",
]
