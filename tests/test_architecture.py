"""What holds the package together: who may import whom, how large a system is, what the catalogue says, and what is public.

The layers themselves are contracts of import-linter, in pyproject.toml. Most of this reads source files and imports nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import make_reference
from milonga.systems.index import CLAIMS, RECIPES, SYSTEMS, System

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
HOME = SOURCE / "milonga" / "systems"
SHARED = ("roles", "credit", "patterns")
"""Packages for what several systems share."""
BUDGET = 600
"""Lines of Python of a system on top of the shared pieces: what a reader takes in at one sitting."""
LARGE = {"absolute_zero": 840, "deepseek_math_v2": 820, "rstar_math": 620}
"""Systems above the budget. These figures may only shrink, and no system may be added."""
FOLDERS = sorted(path.parent.name for path in HOME.glob("*/__init__.py"))


def name_module(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_module(path): ast.parse(path.read_text(encoding="utf-8")) for path in (SOURCE / "milonga").rglob("*.py")}


def list_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """List the names that a module imports from milonga, wherever in it, each with the module it is imported from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "milonga":
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "milonga")


def find_imports(tree: ast.Module) -> set[str]:
    """Find the modules in which the imported names are defined. What a package passes on counts as imported from its module."""
    found: set[str] = set()
    for module, name in list_names(tree):
        passed_on = {inner: source for source, inner in list_names(MODULES[module])}
        found.add(f"{module}.{name}" if f"{module}.{name}" in MODULES else passed_on.get(name, module))
    return found


IMPORTS = {name: find_imports(tree) for name, tree in MODULES.items()}


def get_package(module: str) -> str:
    return [*module.split("."), ""][1]


def is_shared(module: str) -> bool:
    return get_package(module) in SHARED and module.count(".") > 1


def find_users(module: str) -> tuple[set[str], set[str]]:
    """Find the systems and the layers that use a shared module, directly or through other shared modules."""
    users, seen, todo = set[str](), {module}, [module]
    while todo:
        used = todo.pop()
        for user in (name for name, imported in IMPORTS.items() if used in imported and name not in seen):
            seen.add(user)
            users.add(user)
            if is_shared(user):
                todo.append(user)
    systems = {user.split(".")[2] for user in users if get_package(user) == "systems"}
    return systems, {get_package(user) for user in users} - {"systems", *SHARED}


@pytest.mark.parametrize("module", sorted(filter(is_shared, MODULES)))
def test_what_is_shared_has_two_systems_or_serves_all(module: str) -> None:
    """What only one system uses lies in its folder. A layer that uses a module serves every system, and so does the module."""
    systems, layers = find_users(module)
    assert len(systems) > 1 or layers, f"{module} is used by {', '.join(systems) or 'nobody'} alone: move it there"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_system_imports_no_other_but_its_parent(folder: str) -> None:
    parents = {find_folder(SYSTEMS_BY_NAME[entry.parent]) for entry in SYSTEMS if find_folder(entry) == folder and entry.parent}
    for module, imported in IMPORTS.items():
        if module.startswith(f"milonga.systems.{folder}."):
            others = {name.split(".")[2] for name in imported if name.startswith("milonga.systems.")} & {*FOLDERS}
            assert others <= {folder, *parents}, f"{module} imports {', '.join(others - {folder})}"


def find_folder(entry: System) -> str:
    return entry.recipe.partition(".")[0]


SYSTEMS_BY_NAME = {entry.name: entry for entry in SYSTEMS}


def count_lines(folder: str) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (HOME / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_system_is_read_at_one_sitting(folder: str) -> None:
    assert count_lines(folder) <= LARGE.get(folder, BUDGET), f"{folder} has {count_lines(folder)} lines of Python"


def test_no_system_is_called_large_that_is_not() -> None:
    assert all(count_lines(folder) > BUDGET for folder in LARGE), "take it out of LARGE"


def test_every_folder_is_in_the_catalogue_and_names_are_used_once() -> None:
    assert {find_folder(entry) for entry in SYSTEMS} == {*FOLDERS}
    assert len(SYSTEMS_BY_NAME) == len(SYSTEMS)
    assert {path.parent.name for path in HOME.glob("*/*")} - {"__pycache__"} == {*FOLDERS}, "a folder has no __init__.py"


@pytest.mark.parametrize("entry", SYSTEMS, ids=lambda entry: entry.name)
def test_an_entry_of_the_catalogue_is_true(entry: System) -> None:
    """The class has the entry's name, its page is there, its claim is about it, and its parent is what its class extends."""
    recipe = RECIPES.get(entry.name)
    assert recipe.name == entry.name and recipe.__module__ == f"milonga.systems.{entry.recipe.partition(':')[0]}"
    assert entry.page.startswith(f"{find_folder(entry)}/") and (HOME / entry.page).is_file()
    assert (HOME / find_folder(entry) / "README.md").is_file()
    if entry.claim:
        assert CLAIMS.get(entry.name).recipe == entry.name and find_folder(entry) == entry.claim.partition(".")[0]
    if entry.parent:
        assert issubclass(recipe, RECIPES.get(entry.parent))


def test_every_claim_of_a_folder_is_in_the_catalogue() -> None:
    said = {entry.claim for entry in SYSTEMS if entry.claim}
    written = {
        f"{path.parent.name}.{path.stem}:{target.id}"
        for path in HOME.glob("*/claim*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.endswith("CLAIM")
    }
    assert said == written


PARSERS = {
    "milonga.reading": "the one parser of what others wrote",
    "milonga.sandbox.child": "compiles a program in its own process, whose output is its own",
    "milonga.tasks.worker": "parses functions of an installed package",
}


def is_parser(node: ast.AST) -> bool:
    """Whether a node is `ast.parse`, under whatever name it is imported, or the built-in `compile`."""
    if isinstance(node, ast.ImportFrom):
        return node.module in ("ast", "builtins") and any(alias.name in ("parse", "compile", "*") for alias in node.names)
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and (node.value.id, node.attr) in (("ast", "parse"), ("builtins", "compile"))
    if isinstance(node, ast.alias):
        return node.name == "ast" and node.asname not in (None, "ast")
    return isinstance(node, ast.Name) and node.id == "compile"


def test_python_of_others_is_parsed_in_one_place() -> None:
    """Python's parser prints warnings about what it reads to the terminal of who calls it: `parse_python` keeps it quiet."""
    assert {name for name, tree in MODULES.items() if any(map(is_parser, ast.walk(tree)))} == PARSERS.keys()


def test_what_is_public_changes_only_on_purpose() -> None:
    """Renew the file by `python scripts/make_reference.py --api tests/public_api.txt`, and say in the commit why."""
    kept = (ROOT / "tests" / "public_api.txt").read_text(encoding="utf-8").splitlines()
    now = list(make_reference.list_public_api())
    gone, new = [line for line in kept if line not in now], [line for line in now if line not in kept]
    assert kept == now, (
        f"public names changed: gone {gone}, new {new}; python scripts/make_reference.py --api tests/public_api.txt"
    )


def test_the_map_of_the_layers_names_every_module() -> None:
    top = {get_package(name) for name in MODULES} - {"", "__main__"}
    assert {name for layer in make_reference.read_layers() for name in layer} == top
