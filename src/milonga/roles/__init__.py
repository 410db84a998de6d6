"""Roles: prompt templates and output parsers of the agents. Add a role by subclassing `Role` and registering it in `ROLES`."""

from milonga.roles.base import DIALECTS, ROLES, Dialect, Role
from milonga.roles.chooser import Choice, Chooser
from milonga.roles.coder import Coder
from milonga.roles.corrector import Corrector
from milonga.roles.corruptor import Corruptor
from milonga.roles.critic import Critic
from milonga.roles.debater import Debater
from milonga.roles.evolve import Asker, Judge
from milonga.roles.grader import Grader
from milonga.roles.inquirer import Inquirer, PrivilegedCritic, Question
from milonga.roles.pair_judge import Duel, Judgement, PairJudge
from milonga.roles.programs import Abducer, Deducer, Inducer, InputProposer, ProgramProposer
from milonga.roles.proofs import DefectVerifier, MetaVerifier, ProofWriter
from milonga.roles.proposer import Proposal, Proposer
from milonga.roles.repairs import Injector, Repairer
from milonga.roles.research import Planner, Reader
from milonga.roles.reviser import Reviser
from milonga.roles.scorer import ImplicitScorer, Scorer, StepScorer
from milonga.roles.searcher import Searcher, SearchProposer, SearchReader, adapt_roles_to_tool
from milonga.roles.slices import SliceJudge
from milonga.roles.solver import StepSolver, make_step_solver
from milonga.roles.tester import Tester
from milonga.roles.thinker import Predictor, Thinker
from milonga.roles.verifier import StepVerifier
from milonga.roles.yes_no import YesNoVerifier

__all__ = [
    "DIALECTS",
    "ROLES",
    "Abducer",
    "Asker",
    "Choice",
    "Chooser",
    "Coder",
    "Corrector",
    "Corruptor",
    "Critic",
    "Debater",
    "Deducer",
    "DefectVerifier",
    "Dialect",
    "Duel",
    "Grader",
    "ImplicitScorer",
    "Inducer",
    "Injector",
    "InputProposer",
    "Inquirer",
    "Judge",
    "Judgement",
    "MetaVerifier",
    "PairJudge",
    "Planner",
    "Predictor",
    "PrivilegedCritic",
    "ProgramProposer",
    "ProofWriter",
    "Proposal",
    "Proposer",
    "Question",
    "Reader",
    "Repairer",
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
    "Tester",
    "Thinker",
    "YesNoVerifier",
    "adapt_roles_to_tool",
    "make_step_solver",
]
