"""The body of `milonga new`: write a skeleton of a recipe or a task, its test, and a page that says how to run them.

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
    check_name(kind, name)
    class_name = make_class_name(name)
    files = {f"{name}.py": f"{kind}.py", f"test_{name}.py": f"test_{kind}.py", f"{name}.md": f"{kind}.md"}
    taken = [str(folder / file) for file in files if (folder / file).exists()]
    if taken:
        raise RunFolderError(f"nothing was written: {', '.join(taken)} is there already; choose another name or --dir")
    texts = {file: fill_template(template, name, class_name) for file, template in files.items()}
    with translate_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
    place = f"{folder / name}.py:{class_name}"
    run = f"milonga run {place}" if kind == "recipe" else f"milonga run grpo --task {place}"
    test = f"pytest {folder / f'test_{name}.py'}"
    return {"kind": kind, "name": place, "files": [str(folder / file) for file in files], "run": run, "test": test}


def check_name(kind: str, name: str) -> None:
    """Check that a name can be the name of a module and, in CamelCase, of a class."""
    fits = re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) is not None and len(name) <= LONGEST
    if not fits or keyword.iskeyword(name) or keyword.iskeyword(name.capitalize()):
        raise ConfigError(
            f"'{name}' cannot name a {kind}: use small letters, digits and single underscores, a letter first, "
            f"at most {LONGEST} of them, and no word of Python's"
        )
    if name in (*sys.stdlib_module_names, *IMPORTED):
        raise ConfigError(f"'{name}' cannot name a {kind}: its file would stand before the module of that name; choose another")
    if make_class_name(name) in list_template_names(f"{kind}.py"):
        raise ConfigError(
            f"'{name}' cannot name a {kind}: {make_class_name(name)} is a class that its file needs; choose another"
        )


def make_class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def list_template_names(template: str) -> set[str]:
    """List the names that a template imports or defines."""
    body = ast.parse(fill_template(template, "placeholder", "Placeholder")).body
    imported = {alias.asname or alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    return imported | {node.name for node in body if isinstance(node, ast.ClassDef)}


def fill_template(template: str, name: str, class_name: str) -> str:
    text = (TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(name=name, class_name=class_name)


def print_written(written: dict[str, Any], console: Console) -> None:
    for file in written["files"]:
        console.print(f"wrote {escape(file)}", soft_wrap=True, highlight=False)
    console.print("what to try next:")
    for command in (written["test"], written["run"]):
        console.print(f"  {escape(command)}", soft_wrap=True, highlight=False)
