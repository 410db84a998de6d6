"""Tests that expect something else: what passes them although it should not has not been tested at all.

Each assertion of a file of tests expects another value, or the opposite. Code under test is not told which tests it runs with:
code that makes every test pass makes these pass too, and so does a value that equals whatever it is compared with.
"""

from __future__ import annotations

import ast
import secrets

from milonga.tasks.bugs_checks import Files
from milonga.tasks.bugs_parts import choose_category
from milonga.tasks.bugs_patches import parse_source

OPPOSITES = {
    "assertTrue": "assertFalse",
    "assertFalse": "assertTrue",
    "assertIn": "assertNotIn",
    "assertNotIn": "assertIn",
    "assertIsNone": "assertIsNotNone",
    "assertIsNotNone": "assertIsNone",
    "assertNotEqual": "assertEqual",
}
COMPARE = """
def NAME(left, right):
    def change(value):
        if type(value) in (int, float, complex, bool):
            return value + 1
        if type(value) in (str, bytes, list, tuple):
            return value + value[:1] if value else type(value)({str: "?", bytes: b"?"}.get(type(value), ["?"]))
        if type(value) in (set, frozenset):
            return value ^ {"?"}
        if type(value) is dict:
            return {**value, "?": value}
        return None if value is not None else 0
    plain = (int, float, complex, bool, str, bytes, list, tuple, set, frozenset, dict, type(None))
    if type(right) in plain:
        return left == change(right)
    if type(left) in plain:
        return change(left) == right
    return not left == right
"""
"""Compares with another value than the one expected. Only a plain value can be changed so that it surely is another."""


def change_tests(tree: Files) -> dict[str, str]:
    """Change what the tests of a tree expect; files that are no Python stay as they are."""
    return {path: change_expectations(text) if choose_category(path) == "tests" else text for path, text in tree.items()}


def change_expectations(text: str) -> str:
    """Change what every assertion of a file of tests expects; what is nested too deeply to be written again stays as it is."""
    tree = parse_source(text)
    if tree is None:
        return text
    name = f"_{secrets.token_hex(8)}"  # a name that no code can look for
    try:
        changed = ast.unparse(ast.fix_missing_locations(_Changer(name).visit(tree)))
    except RecursionError:
        return text
    return f"{changed}\n{COMPARE.replace('NAME', name)}"


class _Changer(ast.NodeTransformer):
    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """`a == b` becomes a comparison with another value, any other condition its opposite."""
        test = node.test
        if isinstance(test, ast.Compare) and [type(each) for each in test.ops] == [ast.Eq]:
            return ast.Assert(self.compare(test.left, test.comparators[0]), node.msg)
        return ast.Assert(ast.UnaryOp(ast.Not(), test), node.msg)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """The methods of `unittest` likewise."""
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return node
        if call.func.attr == "assertEqual" and len(call.args) >= 2:
            return ast.Assert(self.compare(call.args[0], call.args[1]))
        call.func.attr = OPPOSITES.get(call.func.attr, call.func.attr)
        return node

    def compare(self, left: ast.expr, right: ast.expr) -> ast.Call:
        return ast.Call(ast.Name(self.name, ast.Load()), [left, right], [])
