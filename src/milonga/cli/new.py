"""The body of `milonga new`: write a system of the user's own (recipe, claim, test, page), or a task, its test and a page.

Invariant: either all files are written or none, and no existing file is touched.
"""

from __future__ import annotations

import ast
import keyword
import re
import sys
from pathlib import Path
from string import Template
from typing import Any

from rich.console import Console
from rich.markup import escape

from milonga.errors import ConfigError, RunFolderError, suggest_name
from milonga.reading import parse_python

TEMPLATES = Path(__file__).parent / "templates"
KINDS = ("recipe", "task")
LONGEST = 40
IMPORTED = ("milonga", "numpy", "pydantic", "pytest")
"""What the templates import, besides modules of Python's own."""


def write_skeleton(kind: str, name: str, folder: Path) -> dict[str, Any]:
    """Write the skeleton files; return their paths and the commands to run and test them."""
    from milonga.runfolder.files import translate_disk_errors

    if kind not in KINDS:
        raise ConfigError(f"unknown kind '{kind}': {suggest_name(kind, KINDS)}")
    _check_name(kind, name)
    class_name = _make_class_name(name)
    files = _list_files(kind, name)
    taken = [str(folder / file) for file in files if (folder / file).exists()]
    if taken:
        raise RunFolderError(f"nothing was written: {', '.join(taken)} is there already; choose another name or --dir")
    texts = {file: _fill_template(template, name, class_name) for file, template in files.items()}
    with translate_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
    place = f"{folder / next(iter(files))}:{class_name}"
    written = {"kind": kind, "name": place, "files": [str(folder / file) for file in files]}
    test = f"pytest {folder / f'test_{name}.py'}"
    if kind == "task":
        return written | {"run": f"milonga run grpo --task {place}", "test": test}
    claim, entry = f"milonga claim {folder / 'claim.py'}:CLAIM", _make_entry(name, class_name)
    return written | {"run": f"milonga run {place}", "test": test, "claim": claim, "entry": entry}


def _list_files(kind: str, name: str) -> dict[str, str]:
    """List the files of a skeleton with their templates; the first one has the class."""
    if kind == "task":
        return {f"{name}.py": "task.py", f"test_{name}.py": "test_task.py", f"{name}.md": "task.md"}
    return {
        "recipe.py": "recipe.py",
        "claim.py": "claim.py",
        f"test_{name}.py": "test_recipe.py",
        "README.md": "recipe_readme.md",
    }


def _make_entry(name: str, class_name: str) -> str:
    """Make the line of a recipe in systems/index.py, should it be contributed."""
    line = "Rewards for right answers, less the price of their tokens"
    places = f'"{name}.recipe:{class_name}", "Single policy", "", "{line}", "{name}.claim:CLAIM", "{name}/README.md"'
    return f'System("{name}", {places}),'


def _check_name(kind: str, name: str) -> None:
    """Check that a name can be the name of a module and, in CamelCase, of a class."""
    fits = re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) is not None and len(name) <= LONGEST
    if not fits or keyword.iskeyword(name) or keyword.iskeyword(name.capitalize()):
        raise ConfigError(
            f"'{name}' cannot name a {kind}: use small letters, digits and single underscores, a letter first, "
            f"at most {LONGEST} of them, and no word of Python's"
        )
    if name in (*sys.stdlib_module_names, *IMPORTED):
        raise ConfigError(f"'{name}' cannot name a {kind}: its file would stand before the module of that name; choose another")
    if _make_class_name(name) in _list_template_names(f"{kind}.py"):
        raise ConfigError(
            f"'{name}' cannot name a {kind}: {_make_class_name(name)} is a class that its file needs; choose another"
        )


def _make_class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _list_template_names(template: str) -> set[str]:
    """List the names that a template imports or defines."""
    body = parse_python(_fill_template(template, "placeholder", "Placeholder")).body
    imported = {alias.asname or alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    return imported | {node.name for node in body if isinstance(node, ast.ClassDef)}


def _fill_template(template: str, name: str, class_name: str) -> str:
    text = (TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(name=name, class_name=class_name, entry=_make_entry(name, class_name))


def print_written(written: dict[str, Any], console: Console) -> None:
    for file in written["files"]:
        console.print(f"wrote {escape(file)}", soft_wrap=True, highlight=False)
    console.print("what to try next:")
    for command in (written[key] for key in ("test", "run", "claim") if key in written):
        console.print(f"  {escape(command)}", soft_wrap=True, highlight=False)
    if "entry" in written:
        console.print("to contribute it, move the folder to src/milonga/systems and add to systems/index.py:", soft_wrap=True)
        console.print(f"  {escape(written['entry'])}", soft_wrap=True, highlight=False)
