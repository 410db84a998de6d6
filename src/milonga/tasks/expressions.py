"""A tiny dialect of Python: single expressions over integers, booleans, strings and lists, with our own interpreter.

Invariants:
- Total: every text has an `Evaluation`, whatever it says; no exception leaves `evaluate`, and nothing of the text is ever run
  by Python itself. Python's parser reads it; what is not on the list of the grammar is `forbidden`.
- Deterministic: an evaluation is a function of text, arguments and bounds alone.
- Bounded: work is counted in steps (a step for each node, and for each item or character that an operation touches), and
  integers, lists, strings and nesting have limits. A program of N steps ends within a budget of N and not of N - 1.
- Where it gives a value, Python gives the same one; where it says `exception`, Python raises one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NoReturn

from milonga.reading import NOT_PYTHON, parse_python
from milonga.sandbox.values import Canonical, InvalidValue, Value, to_canonical

Ending = Literal["ok", "syntax", "forbidden", "exception", "timeout", "memory", "bad_output"]
"""How an evaluation ends; words of the sandbox's closed set."""


@dataclass(frozen=True)
class Budget:
    """Bounds of one evaluation."""

    steps: int = 4000
    depth: int = 40
    """Nesting of the expression."""
    bits: int = 256
    """Of an integer."""
    length: int = 256
    """Items of a list, characters of a string."""
    size: int = 4096
    """Items and characters of a value at all depths together: lists within lists multiply."""
    source: int = 1000
    """Characters of the text."""


DEFAULT = Budget()


@dataclass(frozen=True)
class Evaluation:
    """The result of a program: its value if `ok`, and otherwise why there is none."""

    status: Ending
    value: Canonical | None = None
    steps: int = 0
    why: str = ""


class _Stop(Exception):
    """An evaluation that ends without a value. It never leaves this module."""

    def __init__(self, status: Ending, why: str) -> None:
        super().__init__(why)
        self.status: Ending = status


def evaluate(source: str, arguments: Mapping[str, Value], budget: Budget = DEFAULT) -> Evaluation:
    """Evaluate an expression with these arguments, by name."""
    run = _Run(budget)
    try:
        tree = _parse_or_stop(source, budget)
        for value in arguments.values():
            run.check_argument(value)
        found = to_canonical(run.visit(tree, dict(arguments)))
        return Evaluation("ok", found, run.used)
    except _Stop as stop:
        return Evaluation(stop.status, None, run.used, str(stop))
    except InvalidValue as error:
        return Evaluation("bad_output", None, run.used, str(error))
    except RecursionError:  # the caller stood deep in Python's own stack
        return Evaluation("memory", None, run.used, "nested too deep")


def _parse_or_stop(source: str, budget: Budget) -> ast.expr:
    found = _parse(source, budget)
    if isinstance(found, _Stop):
        raise _Stop(found.status, str(found))
    return found


@lru_cache(maxsize=4096)
def _parse(source: str, budget: Budget) -> ast.expr | _Stop:
    """Parse a text within the grammar, or return why not. Cached: the same program runs on many inputs."""
    if len(source) > budget.source:
        return _Stop("memory", f"longer than {budget.source} characters")
    if "\\" in source:
        return _Stop("forbidden", "a backslash: strings are what they look like")
    try:
        tree = parse_python(source.strip(), "eval").body
    except NOT_PYTHON as error:
        return _Stop("syntax", f"not an expression: {type(error).__name__}")
    try:
        _check_place(None, tree)
        _check_node(tree, budget, budget.depth)
    except _Stop as stop:
        return stop
    return tree


# --------------------------------------------------------------------------------------------------------------- grammar

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
PLAIN = {ast.BoolOp, ast.IfExp, ast.List, ast.Subscript, ast.Slice, ast.ListComp, ast.GeneratorExp}
"""Nodes that are allowed as they are, with whatever is allowed inside them."""
CONSUMERS = ("sum", "min", "max", "sorted", "any", "all", "list")
"""Functions that iterate over their argument; only they accept a generator."""


def _check_node(node: ast.AST, budget: Budget, depth: int) -> None:
    if depth < 0:
        raise _Stop("memory", f"nested deeper than {budget.depth}")
    kind = type(node)
    if kind not in PLAIN and not (kind in RULES and RULES[kind](node, budget)):
        raise _Stop("forbidden", f"{kind.__name__} is not in the dialect")
    for field in kind._fields:
        if field in ("op", "ops", "ctx"):
            continue
        found = getattr(node, field)
        for child in found if type(found) is list else (found,):
            if isinstance(child, ast.AST):
                _check_place(node, child)
                _check_node(child, budget, depth - 1)


def _check_place(node: ast.AST | None, child: ast.AST) -> None:
    """Raise if a node is not allowed at this place: generators, ranges and methods are allowed in certain parents only."""
    if _is_lazy(child) and not (node is not None and _consumes(node, child)):
        raise _Stop("forbidden", "nothing goes through this")
    if isinstance(child, ast.Attribute) and not (isinstance(node, ast.Call) and child is node.func):
        raise _Stop("forbidden", "a method that is not called")


def _is_lazy(node: ast.AST) -> bool:
    """Whether the node is a generator or a range: iterable, but no value of the dialect."""
    return isinstance(node, ast.GeneratorExp) or (isinstance(node, ast.Call) and _function_name(node) == "range")


def _consumes(node: ast.AST, child: ast.AST) -> bool:
    if isinstance(node, ast.Call) and child in node.args:
        return len(node.args) == 1 and (
            _function_name(node) in CONSUMERS or (_function_name(node) == "len" and isinstance(child, ast.Call))
        )
    return isinstance(node, ast.comprehension) and child is node.iter and isinstance(child, ast.Call)


def _is_allowed_constant(node: ast.Constant, budget: Budget) -> bool:
    value = node.value
    if isinstance(value, int) and value.bit_length() > budget.bits:
        raise _Stop("memory", f"an integer of more than {budget.bits} bits")
    if isinstance(value, str) and len(value) > budget.length:
        raise _Stop("memory", f"a string of more than {budget.length} characters")
    return isinstance(value, int | str)


def _function_name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _is_allowed_call(call: ast.Call, budget: Budget) -> bool:
    """Whether a call is to a function or method of the dialect, with an allowed number of arguments."""
    keys = [keyword.arg for keyword in call.keywords]
    if isinstance(call.func, ast.Attribute):
        least, most = METHODS.get(call.func.attr, ("", 0, -1))[1:]
        return not keys and least <= len(call.args) <= most
    least, most, key = FUNCTIONS.get(_function_name(call), (0, -1, ""))
    return least <= len(call.args) <= most and (not keys or (keys == [key] and len(call.args) == 1))


RULES: dict[type[ast.AST], Callable[[Any, Budget], bool]] = {
    ast.Constant: _is_allowed_constant,
    ast.Name: lambda node, budget: not node.id.startswith("__"),
    ast.BinOp: lambda node, budget: type(node.op) in ARITHMETIC,
    ast.UnaryOp: lambda node, budget: isinstance(node.op, ast.USub | ast.Not),
    ast.Compare: lambda node, budget: all(type(op) in COMPARISONS for op in node.ops),
    ast.Call: _is_allowed_call,
    ast.Attribute: lambda node, budget: node.attr in METHODS,
    ast.keyword: lambda node, budget: node.arg in ("default", "reverse"),
    ast.comprehension: lambda node, budget: isinstance(node.target, ast.Name) and not node.is_async,
}
"""Nodes that are allowed on a condition."""
FUNCTIONS: dict[str, tuple[int, int, str]] = {
    "len": (1, 1, ""),
    "sum": (1, 1, ""),
    "min": (1, 8, "default"),
    "max": (1, 8, "default"),
    "sorted": (1, 1, "reverse"),
    "any": (1, 1, ""),
    "all": (1, 1, ""),
    "list": (1, 1, ""),
    "abs": (1, 1, ""),
    "int": (1, 1, ""),
    "str": (1, 1, ""),
    "bool": (1, 1, ""),
    "ord": (1, 1, ""),
    "range": (1, 3, ""),
}
"""Least and most arguments, and the keyword that may be named."""
METHODS: dict[str, tuple[str, int, int]] = {
    "count": ("str list", 1, 1),
    "index": ("str list", 1, 1),
    "find": ("str", 1, 1),
    "upper": ("str", 0, 0),
    "lower": ("str", 0, 0),
    "strip": ("str", 0, 0),
    "replace": ("str", 2, 2),
    "split": ("str", 0, 1),
    "join": ("str", 1, 1),
    "startswith": ("str", 1, 1),
    "endswith": ("str", 1, 1),
    "isdigit": ("str", 0, 0),
    "isalpha": ("str", 0, 0),
}
"""The types that have the method; least and most arguments."""

# ----------------------------------------------------------------------------------------------------------- evaluation

UNBOUND: Any = object()
"""A variable of a comprehension before its first value."""
Names = dict[str, Any]


class _Run:
    """One evaluation: the steps that are left, and how each node is evaluated."""

    def __init__(self, budget: Budget) -> None:
        self.budget, self.left = budget, budget.steps

    @property
    def used(self) -> int:
        return self.budget.steps - max(self.left, 0)

    def charge(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise _Stop("timeout", f"more than {self.budget.steps} steps")

    def visit(self, node: ast.AST, names: Names) -> Any:
        self.left -= 1
        if self.left < 0:
            self.charge(0)
        return KINDS[type(node)](self, node, names)

    # Values.

    def check_argument(self, value: Value) -> None:
        """Check that an argument is a value of the dialect, within its bounds."""
        kind = type(value)
        if kind is list:
            assert isinstance(value, list)
            for item in value[: self.budget.length]:
                self.check_argument(item)
        elif kind not in (bool, int, str):
            raise _Stop("forbidden", f"an argument of type {kind.__name__}")
        self.check_bounds(value)

    def check_bounds(self, value: Any) -> Any:
        """Return the value if it is within the bounds; charge a step for each of its items or characters."""
        kind, budget = type(value), self.budget
        if kind is int:
            if value.bit_length() > budget.bits:
                raise _Stop("memory", f"an integer of more than {budget.bits} bits")
        elif kind is list or kind is str:
            if len(value) > budget.length:
                raise _Stop("memory", f"more than {budget.length} items or characters")
            self.charge(len(value))
            if kind is list and any(type(item) in (list, str) for item in value) and _count_items(value) > budget.size:
                raise _Stop("memory", f"more than {budget.size} items and characters together")
        return value

    def check_length(self, length: int) -> None:
        """Check a length before a value of that length is made."""
        if length > self.budget.length:
            raise _Stop("memory", f"more than {self.budget.length} items or characters")

    def get_items(self, value: Any) -> list[Any] | str:
        """Return a list or string to iterate over; charge a step for each item."""
        if type(value) is not list and type(value) is not str:
            _stop_with_exception("TypeError", f"{type(value).__name__} has no items")
        self.charge(len(value))
        found: list[Any] | str = value
        return found

    # Nodes.

    def visit_constant(self, node: ast.Constant, names: Names) -> Any:
        return node.value

    def visit_name(self, node: ast.Name, names: Names) -> Any:
        if node.id not in names and node.id in FUNCTIONS:
            raise _Stop("forbidden", f"the function {node.id} is not called")
        value = names.get(node.id, UNBOUND)
        return _stop_with_exception("NameError", node.id) if value is UNBOUND else value

    def visit_list(self, node: ast.List, names: Names) -> Any:
        return self.check_bounds([self.visit(item, names) for item in node.elts])

    def visit_binary(self, node: ast.BinOp, names: Names) -> Any:
        left, right, op = self.visit(node.left, names), self.visit(node.right, names), type(node.op)
        if isinstance(left, int) and isinstance(right, int):
            return ARITHMETIC[op](self, left, right)
        if op is ast.Mult:
            return self.repeat_value(left, right) if isinstance(right, int) else self.repeat_value(right, left)
        if op is ast.Add and type(left) is type(right):
            self.check_length(len(left) + len(right))
            return self.check_bounds(left + right)
        if op is ast.Mod and isinstance(left, str):
            raise _Stop("forbidden", "formatting is not in the dialect")
        _stop_with_exception("TypeError", "these types do not go together")

    def check_divisor(self, number: int) -> int:
        return number if number else _stop_with_exception("ZeroDivisionError", "by zero")

    def compute_power(self, base: int, exponent: int) -> int:
        if exponent < 0:  # Python gives a float, which the dialect does not have, or fails at zero
            raise _Stop("exception" if base == 0 else "forbidden", "a negative power")
        if abs(base) > 1 and abs(base).bit_length() * exponent > 2 * self.budget.bits:
            raise _Stop("memory", f"an integer of more than {self.budget.bits} bits")
        # Of 0, 1 and -1 the power costs nothing whatever the exponent is.
        return int(self.check_bounds(int(base) ** exponent))

    def repeat_value(self, many: Any, times: Any) -> Any:
        if not isinstance(many, list | str) or not isinstance(times, int):
            _stop_with_exception("TypeError", "* of these types")
        self.check_length(len(many) * max(times, 0))
        return self.check_bounds(many * times)

    def visit_unary(self, node: ast.UnaryOp, names: Names) -> Any:
        value = self.visit(node.operand, names)
        if isinstance(node.op, ast.Not):
            return not value
        return -value if isinstance(value, int) else _stop_with_exception("TypeError", "minus of no number")

    def visit_logical(self, node: ast.BoolOp, names: Names) -> Any:
        stops = isinstance(node.op, ast.Or)
        value: Any = None
        for part in node.values:
            value = self.visit(part, names)
            if bool(value) is stops:
                break
        return value

    def visit_compare(self, node: ast.Compare, names: Names) -> bool:
        left = self.visit(node.left, names)
        for op, part in zip(node.ops, node.comparators, strict=True):
            right = self.visit(part, names)
            self.charge(
                min(_count_items(left), _count_items(right)) if isinstance(op, ast.Eq | ast.NotEq) else _count_items(right)
            )
            try:
                if not COMPARISONS[type(op)](left, right):
                    return False
            except TypeError:
                _stop_with_exception("TypeError", "these cannot be compared")
            left = right
        return True

    def visit_conditional(self, node: ast.IfExp, names: Names) -> Any:
        return self.visit(node.body if self.visit(node.test, names) else node.orelse, names)

    def visit_subscript(self, node: ast.Subscript, names: Names) -> Any:
        value = self.visit(node.value, names)
        part = self.build_slice(node.slice, names) if isinstance(node.slice, ast.Slice) else self.visit(node.slice, names)
        if not isinstance(value, list | str) or not isinstance(part, int | slice):
            _stop_with_exception("TypeError", "this has no such place")
        try:
            found = value[part]
        except (IndexError, ValueError) as error:
            _stop_with_exception(type(error).__name__, "no such place")
        return self.check_bounds(found) if isinstance(part, slice) else found

    def build_slice(self, node: ast.Slice, names: Names) -> slice:
        ends = [None if part is None else self.visit(part, names) for part in (node.lower, node.upper, node.step)]
        if not all(end is None or isinstance(end, int) for end in ends):
            _stop_with_exception("TypeError", "a slice by no numbers")
        return slice(*ends)

    def visit_comprehension(self, node: ast.ListComp, names: Names) -> Any:
        made: list[Any] = []
        for value in self.generate_values(node, names):
            self.check_length(len(made) + 1)
            made.append(value)
        return self.check_bounds(made)

    def generate_values(self, node: ast.ListComp | ast.GeneratorExp, names: Names) -> Iterator[Any]:
        """Generate the values one by one. As in Python, the first iterable is evaluated outside, and all else inside, where
        the variables are unbound before their first value."""
        source = self.iterate_source(node.generators[0].iter, names)
        inside = names | {part.target.id: UNBOUND for part in node.generators if isinstance(part.target, ast.Name)}
        return self.loop_values(node, 0, source, inside)

    def loop_values(
        self, node: ast.ListComp | ast.GeneratorExp, level: int, source: Iterable[Any], names: Names
    ) -> Iterator[Any]:
        part, last = node.generators[level], level + 1 == len(node.generators)
        assert isinstance(part.target, ast.Name)
        for item in source:
            self.charge(1)
            names[part.target.id] = item
            if not all(self.visit(test, names) for test in part.ifs):
                continue
            if last:
                yield self.visit(node.elt, names)
            else:
                yield from self.loop_values(node, level + 1, self.iterate_source(node.generators[level + 1].iter, names), names)

    def iterate_source(self, node: ast.expr, names: Names) -> Iterable[Any]:
        """Iterate over a source: a generator lazily, so that `any` and `all` can stop early."""
        if isinstance(node, ast.GeneratorExp):
            self.charge(1)
            return self.generate_values(node, names)
        if isinstance(node, ast.Call) and _function_name(node) == "range" and "range" not in names:
            self.charge(1)
            return self.charge_numbers(self.build_range([self.visit(part, names) for part in node.args]))
        return self.get_items(self.visit(node, names))

    def charge_numbers(self, numbers: range) -> Iterator[int]:
        for number in numbers:
            self.charge(1)
            yield number

    def build_range(self, ends: list[Any]) -> range:
        if not all(isinstance(end, int) for end in ends):
            _stop_with_exception("TypeError", "a range of no numbers")
        if len(ends) == 3 and ends[2] == 0:
            _stop_with_exception("ValueError", "a range of step zero")
        return range(*ends)

    # Functions and methods.

    def visit_call(self, node: ast.Call, names: Names) -> Any:
        if isinstance(node.func, ast.Attribute):
            return self.call_method(node.func, node.args, names)
        name = _function_name(node)
        if name in names:
            _stop_with_exception("TypeError", f"{name} is no function here")
        if name == "len" or (name in CONSUMERS and len(node.args) == 1):
            return self.call_consumer(name, node, names)
        values = [self.visit(part, names) for part in node.args]
        if name in ("min", "max"):
            return self.find_extreme(name, values)
        return self.call_simple(name, values[0])

    def call_consumer(self, name: str, node: ast.Call, names: Names) -> Any:
        source = self.iterate_source(node.args[0], names)
        named = {str(k.arg): self.visit(k.value, names) for k in node.keywords}
        if name == "len":
            return len(source) if isinstance(source, list | str) else sum(1 for _ in source)
        if name in ("any", "all"):
            return any(source) if name == "any" else all(source)
        values = self.collect_values(source)
        if name == "sum":
            return self.sum_values(values)
        if name in ("min", "max"):
            return named["default"] if not values and named else self.find_extreme(name, values)
        return self.check_bounds(values if name == "list" else self.sort_values(values, named.get("reverse", False)))

    def collect_values(self, source: Iterable[Any]) -> list[Any]:
        values: list[Any] = []
        for value in source:
            self.check_length(len(values) + 1)
            self.charge(1)
            values.append(value)
        return values

    def sum_values(self, values: list[Any]) -> int:
        total = 0
        for value in values:
            if not isinstance(value, int):
                _stop_with_exception("TypeError", "a sum of no numbers")
            total = self.check_bounds(total + value)
        return total

    def find_extreme(self, name: str, values: list[Any]) -> Any:
        self.charge(_count_items(values))
        try:
            return min(values) if name == "min" else max(values)
        except (TypeError, ValueError) as error:
            _stop_with_exception(type(error).__name__, f"no {name} of these")

    def sort_values(self, values: list[Any], reverse: Any) -> list[Any]:
        if not isinstance(reverse, int):  # as Python until 3.12, on every Python: a problem's answer must not hang on it
            _stop_with_exception("TypeError", "reverse is yes or no")
        self.charge(_count_items(values))
        try:
            return sorted(values, reverse=bool(reverse))
        except TypeError:
            _stop_with_exception("TypeError", "these have no order")

    def call_simple(self, name: str, value: Any) -> Any:
        number = isinstance(value, int)
        if name == "bool":
            return bool(value)
        if name == "abs":
            return abs(value) if number else _stop_with_exception("TypeError", "abs of no number")
        if name == "ord":
            fits = isinstance(value, str) and len(value) == 1
            return ord(value) if fits else _stop_with_exception("TypeError", "ord of no single character")
        if name == "str":
            if isinstance(value, list):
                raise _Stop("forbidden", "lists have no text in the dialect")
            return self.check_bounds(str(value))
        if isinstance(value, list):
            _stop_with_exception("TypeError", "int of a list")
        try:
            return self.check_bounds(int(value))
        except ValueError:
            _stop_with_exception("ValueError", "int of no number")

    def call_method(self, node: ast.Attribute, args: list[ast.expr], names: Names) -> Any:
        owner = self.visit(node.value, names)
        values = [self.visit(part, names) for part in args]
        if type(owner).__name__ not in METHODS[node.attr][0].split():
            _stop_with_exception("AttributeError", node.attr)
        if isinstance(owner, list):
            self.charge(_count_items(owner))
            if node.attr == "count":
                return owner.count(values[0])
            return owner.index(values[0]) if values[0] in owner else _stop_with_exception("ValueError", "not in the list")
        self.charge(len(owner))
        if node.attr == "join":
            return self.join_strings(owner, values[0])
        if not all(isinstance(value, str) for value in values):
            _stop_with_exception("TypeError", f"{node.attr} by no string")
        if node.attr == "replace":
            self.check_length(len(owner) + owner.count(values[0]) * max(0, len(values[1]) - len(values[0])))
        try:
            return self.check_bounds(getattr(owner, node.attr)(*values))
        except ValueError:
            _stop_with_exception("ValueError", f"{node.attr} finds nothing")

    def join_strings(self, mark: str, parts: Any) -> str:
        if not isinstance(parts, list | str) or not all(isinstance(part, str) for part in parts):
            _stop_with_exception("TypeError", "join of no strings")
        self.check_length(sum(len(part) for part in parts) + len(mark) * max(0, len(parts) - 1))
        return str(self.check_bounds(mark.join(parts)))


ARITHMETIC: dict[type[ast.operator], Callable[[_Run, int, int], Any]] = {
    ast.Add: lambda run, left, right: run.check_bounds(left + right),
    ast.Sub: lambda run, left, right: run.check_bounds(left - right),
    ast.Mult: lambda run, left, right: run.check_bounds(left * right),
    ast.FloorDiv: lambda run, left, right: left // run.check_divisor(right),
    ast.Mod: lambda run, left, right: left % run.check_divisor(right),
    ast.Pow: _Run.compute_power,
}
KINDS: dict[type[ast.AST], Callable[[_Run, Any, Names], Any]] = {
    ast.Constant: _Run.visit_constant,
    ast.Name: _Run.visit_name,
    ast.List: _Run.visit_list,
    ast.BinOp: _Run.visit_binary,
    ast.UnaryOp: _Run.visit_unary,
    ast.BoolOp: _Run.visit_logical,
    ast.Compare: _Run.visit_compare,
    ast.IfExp: _Run.visit_conditional,
    ast.Subscript: _Run.visit_subscript,
    ast.ListComp: _Run.visit_comprehension,
    ast.Call: _Run.visit_call,
}


def _stop_with_exception(kind: str, why: str) -> NoReturn:
    """Stop with the status `exception`, where Python raises one."""
    raise _Stop("exception", f"{kind}: {why}")


def _count_items(value: Any) -> int:
    """Count items and characters at all depths; fast for values within the bounds."""
    if type(value) is str:
        return len(value) + 1
    if type(value) is list:
        return 1 + sum(_count_items(item) for item in value)
    return 1
