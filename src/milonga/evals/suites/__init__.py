"""Suites: questions about a trained pair that `milonga eval DIR SUITE` answers at length.

Add one by registering it in `SUITES`.
"""

from milonga.evals.suites.base import SUITES, Finding, Subject, Suite, SuiteOptions
from milonga.evals.suites.best_of_n import BestOfN
from milonga.evals.suites.calibration import Calibration
from milonga.evals.suites.matrix import Matrix
from milonga.evals.suites.pass_at_k import PassAtK
from milonga.evals.suites.processbench import ProcessBench
from milonga.evals.suites.transfer import Transfer

__all__ = [
    "SUITES",
    "BestOfN",
    "Calibration",
    "Finding",
    "Matrix",
    "PassAtK",
    "ProcessBench",
    "Subject",
    "Suite",
    "SuiteOptions",
    "Transfer",
]
