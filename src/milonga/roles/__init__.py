"""Roles: prompt templates and output parsers of the agents. Add a role by subclassing `Role` and registering it in `ROLES`."""

from milonga.roles.base import DIALECTS, ROLES, Dialect, Role
from milonga.roles.coder import Coder
from milonga.roles.debater import Debater
from milonga.roles.proposer import Proposal, Proposer
from milonga.roles.reviser import Reviser
from milonga.roles.scorer import ImplicitScorer, Scorer, StepScorer
from milonga.roles.searcher import Searcher, SearchProposer, SearchReader, adapt_roles_to_tool
from milonga.roles.slices import SliceJudge
from milonga.roles.solver import ProgramSolver, StepSolver, make_step_solver
from milonga.roles.verifier import StepVerifier
from milonga.roles.yes_no import YesNoVerifier

__all__ = [
    "DIALECTS",
    "ROLES",
    "Coder",
    "Debater",
    "Dialect",
    "ImplicitScorer",
    "ProgramSolver",
    "Proposal",
    "Proposer",
    "Reviser",
    "Role",
    "Scorer",
    "SearchProposer",
    "SearchReader",
    "Searcher",
    "SliceJudge",
    "StepScorer",
    "StepSolver",
    "StepVerifier",
    "YesNoVerifier",
    "adapt_roles_to_tool",
    "make_step_solver",
]
