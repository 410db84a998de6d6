"""Shell completion: what is offered when Tab is pressed.

Invariant: nothing here imports torch, and completing names of recipes and claims imports the catalogue alone, no recipe.
"""

from __future__ import annotations

import ast
import contextlib
import glob
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from milonga.reading import NOT_PYTHON, SETTINGS, UNREADABLE, parse_python, read_text

Offers = list[tuple[str, str]]
"""(word, help) pairs."""
ASKED = "_MILONGA_COMPLETE"
"""The environment variable by which a shell asks for completions instead of running a command."""


def complete_from(*words: str) -> Callable[[str], list[str]]:
    """Make a completion function for an option with fixed values."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def complete_recipes(incomplete: str) -> Offers:
    """Complete recipe names, and those of the user's own file: `mine.py:Mine`."""
    from milonga.systems.index import SYSTEMS

    return [*((system.name, system.line) for system in SYSTEMS), *_complete_attributes(incomplete)]


def complete_tasks(incomplete: str) -> Offers:
    from milonga.tasks import TASKS

    named = [(name, (TASKS.get(name).__doc__ or "").partition("\n")[0]) for name in TASKS]
    gym = ("reasoning_gym:", "Any procedural set of reasoning-gym.")
    return [*named, gym, *_complete_attributes(incomplete)]


def complete_claims(incomplete: str) -> Offers:
    from milonga.systems.index import SYSTEMS

    del incomplete  # the caller keeps what fits
    return [(system.name, system.line) for system in SYSTEMS if system.claim]


def complete_shapes(incomplete: str) -> list[str]:
    """Complete sizes and models that can be planned for, and folders with a config.json."""
    from milonga.planning import SHAPES
    from milonga.planning.shapes import SIZES

    here = [os.path.dirname(file) for file in glob.glob(f"{glob.escape(incomplete)}*/config.json")]
    return [name for name in (*SIZES, *SHAPES, *here) if name.startswith(incomplete)]


def complete_accelerators(incomplete: str) -> list[str]:
    from milonga.planning import ACCELERATORS

    return [name for name in ACCELERATORS if name.startswith(incomplete)]


def _complete_attributes(incomplete: str) -> Offers:
    """Complete the classes and functions of a user's own file, which is parsed, not run."""
    file, colon, _ = incomplete.rpartition(":")
    if not colon or not file.endswith(".py") or not Path(file).is_file():
        return []
    try:
        body = parse_python(read_text(Path(file), SETTINGS)).body
    except (*NOT_PYTHON, *UNREADABLE):
        return []
    things = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")]
    return [(f"{file}:{node.name}", (ast.get_docstring(node) or "").partition("\n")[0]) for node in things]


def complete_folders(incomplete: str) -> list[str]:
    """Complete run folders, newest first: those in `runs`, and those that start with the word."""
    patterns = ("runs/*/config.toml", "runs/*/*/*/config.toml", f"{glob.escape(incomplete)}*/config.toml")
    found = {os.path.dirname(file) for pattern in patterns for file in glob.glob(pattern)}  # as it was typed
    return sorted(found, key=lambda folder: -os.stat(folder).st_mtime)


def complete_arms(incomplete: str) -> Offers:
    """Complete recipes, and after `RECIPE:` the settings of an arm."""
    recipe, colon, rest = incomplete.partition(":")
    if not colon or recipe.endswith(".py"):
        return complete_recipes(incomplete)
    before, comma, last = rest.rpartition(",")
    return [(f"{recipe}:{before}{comma}{word}", help) for word, help in list_settings(recipe, last)]


def complete_settings(context: typer.Context, incomplete: str) -> Offers:
    """Complete keys of the config, and the values of a complete key."""
    return list_settings(context.params.get("recipe") or next(iter(_list_typed_arms(context)), None), incomplete)


def _list_typed_arms(context: typer.Context) -> list[str]:
    """List the recipes of the arms typed so far. An incomplete list is not parsed yet: its words are in `context.args`."""
    return [arm.partition(":")[0] for arm in context.params.get("recipes") or context.args]


def list_settings(recipe: str | None, incomplete: str) -> Offers:
    from milonga.config import Config

    known = dict(_iterate_keys(Config, "", recipe, incomplete))
    known.pop("recipe")  # it is named as an argument
    key, equals, _ = incomplete.partition("=")
    fitting = [name for name in known if (name == key if equals else name.startswith(key))]
    if len(fitting) > 1:
        return [(name if name.endswith(".") else f"{name}=", "") for name in fitting]
    # The bare key comes first: with two words to choose from a shell puts no space behind what they share.
    return [(f"{name}={value}", "") for name in fitting for value in ("", *known[name])]


def _iterate_keys(model: type[Any], prefix: str, recipe: str | None, incomplete: str) -> Iterator[tuple[str, list[str]]]:
    """Yield dotted config keys with values to offer. Tables whose keys are slow to find are opened only on request."""
    from milonga.config import find_section

    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        section = find_section(field.annotation)
        if not prefix and name in ("task", "options", "policies"):
            if incomplete and (key.startswith(incomplete) or incomplete.startswith(key)):
                for table, inner in _list_tables(name, recipe):
                    yield from _iterate_keys(inner, f"{table}.", recipe, incomplete)
            else:
                yield f"{key}.", []
        elif name == "objective":
            yield f"{key}.preset", _list_objectives()
        elif section is not None:
            yield from _iterate_keys(section, f"{key}.", recipe, incomplete)
        else:
            yield key, _list_values(field.annotation, field.default)


def _list_tables(table: str, recipe: str | None) -> list[tuple[str, type[Any]]]:
    """List (prefix, model) of a table whose keys depend on the recipe, or of every task: a user's own file is not run."""
    from milonga.config import PolicySection
    from milonga.systems.index import RECIPES
    from milonga.tasks import TASKS

    if table == "task":
        return [("task", TASKS.get(name).Options) for name in TASKS]
    named = [RECIPES.get(name) for name in ([recipe] if recipe is not None and recipe in RECIPES else RECIPES)]
    if table == "options":
        return [("options", found.Options) for found in named]
    return [(f"policies.{agent}", PolicySection) for agent in dict.fromkeys(agent for found in named for agent in found.agents)]


def _list_objectives() -> list[str]:
    from milonga.objectives import PRESETS

    return PRESETS.names()


def _list_values(annotation: Any, default: Any) -> list[str]:
    """List the values of a Literal or bool, or the default as an example."""
    inner = [annotation, *get_args(annotation)]
    listed = [str(value) for kind in inner if get_origin(kind) is Literal for value in get_args(kind)]
    if listed or bool in inner:
        return listed or ["true", "false"]
    return [str(default)] if isinstance(default, int | float | str) else []


def complete_metrics(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the metrics of the arms typed so far; of all recipes if there are none."""
    from milonga.comparing.arms import list_metrics
    from milonga.errors import UserError
    from milonga.resolve import resolve
    from milonga.systems.index import RECIPES

    names = set[str]()
    for recipe in _list_typed_arms(context) or list(RECIPES):
        with contextlib.suppress(UserError):  # a misspelt arm is reported when the command runs
            names |= list_metrics(resolve([{"recipe": recipe}]))
    short = {name.removeprefix("eval/") for name in names}
    return sorted(names if incomplete.startswith("eval/") else short | names)


@contextlib.contextmanager
def join_bash_words() -> Iterator[None]:
    """Join the words that bash splits at `=` and `:` before they are parsed, and cut what bash already has from the answers."""
    if os.environ.get(ASKED) != "complete_bash":
        yield
        return
    words, at, had = _join_words(os.environ.get("COMP_WORDS", "").split("\n"), int(os.environ.get("COMP_CWORD", "0")))
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(at)}
    answers = io.StringIO()
    try:
        with contextlib.redirect_stdout(answers):
            yield
    finally:
        sys.stdout.write("".join(line.removeprefix(had) + "\n" for line in answers.getvalue().splitlines()))


def _join_words(words: Sequence[str], at: int) -> tuple[list[str], int, str]:
    """Join words as the user typed them. Return the words, the index of the current one, and its part that bash already has."""
    whole: list[str] = []
    place, had, open_end = at, "", False
    for index, word in enumerate(words):
        ends = word != "" and not word.strip("=:")
        before = whole.pop() if whole and (ends or open_end) else ""
        if index == at:
            place, had = len(whole), before + (word if ends else "")
        whole.append(before + word)
        open_end = ends
    return whole, place, had
