"""The sandbox runs model-written programs: in limited processes that hold no secrets and leave nothing behind."""

from milonga.sandbox.executor import Sandbox, SandboxBroken
from milonga.sandbox.isolation import IsolationError, Level
from milonga.sandbox.program import Failure, Limits, Outcome, Program, Status
from milonga.sandbox.values import Canonical, InvalidValue, Value, decode, is_same_value, parse_literal, to_canonical

__all__ = [
    "Canonical",
    "Failure",
    "InvalidValue",
    "IsolationError",
    "Level",
    "Limits",
    "Outcome",
    "Program",
    "Sandbox",
    "SandboxBroken",
    "Status",
    "Value",
    "decode",
    "is_same_value",
    "parse_literal",
    "to_canonical",
]
