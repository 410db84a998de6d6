"""The reference of the docs, written from the code: commands, config, Python API.

    python scripts/make_reference.py docs/reference

Invariant: nothing on these pages is said twice. What is missing there is a docstring or a `help` in the code.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from typer.main import get_command

import milonga
from milonga.cli.app import app
from milonga.cli.help import parse_examples
from milonga.config import Config, find_section
from milonga.objectives import ObjectiveSection
from milonga.systems.index import RECIPES
from milonga.tasks import TASKS

EXIT = """\
0
: Done.

1
: A run of a comparison or of a claim failed; the others were finished, and the same command tries it again.

2
: A mistake that can be mended: one line on stderr says what was wrong, where, and what to do.

130
: Stopped by Ctrl-C. `milonga resume DIR` goes on from the last checkpoint.
"""
FILES = """\
runs/
: Where runs and comparisons are written unless `--out` names another place.

DIR/config.toml
: The resolved config of a run; it resolves to itself.

DIR/metrics.jsonl, DIR/rollouts/, DIR/checkpoints/, DIR/models/, DIR/report.json
: What a run leaves behind: see the page "The run folder".

$XDG_CACHE_HOME/milonga
: Models that were converted at their first use.
"""
PROVIDES = {
    "milonga": milonga.__all__,
    "milonga.systems": ["Recipe", "RecipeOptions"],
    "milonga.table": ["Table"],
    "milonga.roles": ["Role"],
    "milonga.schedule": ["Schedule", "Phase", "always", "alternate", "warm_up", "until"],
    "milonga.types": ["Rollout", "Rollouts", "TrainBatch", "Reading", "Solution", "Verification"],
    "milonga.credit": import_module("milonga.credit").__all__,
}
"""What users call and what their own recipes and tasks are made of."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    group: Any = get_command(app)
    write(out / "milonga.md", overview(group))
    for name, command in group.commands.items():
        write(out / f"milonga-{name}.md", manual(name, command))
    write(out / "config.md", config_page())
    write(out / "api.md", api_page())


def write(path: Path, parts: Iterator[str]) -> None:
    path.write_text("\n\n".join(part.strip("\n") for part in parts if part) + "\n", encoding="utf-8")


def overview(group: Any) -> Iterator[str]:
    """The page of the command as a whole."""
    yield "# milonga"
    yield "## Synopsis\n\n```\nmilonga COMMAND [OPTIONS] [ARGUMENTS]\nmilonga --install-completion\n```"
    yield f"## Description\n\n{group.help}"
    yield "## Commands"
    panels = dict.fromkeys(command.rich_help_panel for command in group.commands.values())
    for panel in panels:
        yield f"### {panel}"
        members = {name: c for name, c in group.commands.items() if c.rich_help_panel == panel}
        yield definitions((f"`milonga {name}`", str(c.help).strip().partition("\n")[0]) for name, c in members.items())
    yield "## Options"
    yield options_of(group.params)
    yield "## Examples"
    yield fenced(parse_examples(group.epilog))
    yield f"## Files\n\n{FILES}"
    yield f"## Exit status\n\n{EXIT}"
    pages = "\n".join(f"milonga-{name}" for name in group.commands)
    yield f"```{{toctree}}\n:hidden:\n\n{pages}\n```"


def manual(name: str, command: Any) -> Iterator[str]:
    """The page of one command, in the order of a man page."""
    yield f"# milonga {name}"
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    yield f"## Synopsis\n\n```\n{' '.join(['milonga', name, '[OPTIONS]', *map(usage, arguments)])}\n```"
    yield f"## Description\n\n{inspect.cleandoc(command.help)}"
    if arguments:
        yield "## Arguments"
        yield definitions((f"`{usage(p)}`", p.help) for p in arguments)
    options = [p for p in command.params if p.param_type_name == "option"]
    for panel in dict.fromkeys(p.rich_help_panel for p in options):
        yield f"## {panel or 'Options'}"
        yield options_of([p for p in options if p.rich_help_panel == panel])
    yield "## Examples"
    yield fenced(parse_examples(command.epilog))
    yield f"## Files\n\n{FILES}"
    yield f"## Exit status\n\n{EXIT}"
    yield "## See also\n\nmilonga(1); of the docs, the pages on the config, the run folder and metrics."


def usage(argument: Any) -> str:
    name = argument.name.rstrip("_").upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def definitions(pairs: Any) -> str:
    return "\n\n".join(f"{term}\n: {meaning}" for term, meaning in pairs)


def options_of(options: list[Any]) -> str:
    return definitions((option_name(option), f"{option.help}{default_of(option)}") for option in options)


def option_name(option: Any) -> str:
    names = ", ".join(option.opts)
    return (
        f"`{names}`" if option.is_flag else f"`{names} {option.metavar or option.type_descriptor.annotation.__name__.upper()}`"
    )


def default_of(option: Any) -> str:
    shown = option.default not in (None, False, (), []) and isinstance(option.default, str | int | float)
    return f" Default: `{option.default}`." if shown else ""


def fenced(lines: list[str]) -> str:
    return "```\n" + "\n".join(lines) + "\n```"


def config_page() -> Iterator[str]:
    """All keys, with what they mean, from the models that check them."""
    yield "# The config"
    yield (
        "Every key can stand in a TOML file (`--config`) or on the command line (`--set batch.rollouts=16`). Later ones win: "
        "the recipe's own defaults, the file, the flags, `--set`. `--dry-run` prints what came out. An unknown key is an error "
        "that names the nearest right one."
    )
    yield "## Keys of every run"
    yield from tables(Config, "")
    yield "## Objectives"
    yield "`policies.NAME.objective`: `preset` names one of `milonga list objectives`; these switches override it."
    yield table(ObjectiveSection, "policies.NAME.objective.")
    yield "## Options of the recipes"
    for name in RECIPES:
        options = RECIPES.get(name).Options
        if options.model_fields:
            yield f"### {name}"
            yield table(options, "options.")
    yield "## Options of the tasks"
    for name in TASKS:
        yield f"### {name} (task)"
        yield table(TASKS.get(name).Options, "task.")


def tables(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """The keys of a model, and then of the tables within it."""
    if prefix:
        yield f"### `[{prefix.rstrip('.')}]`"
        yield docstring(model)
    yield table(model, prefix)
    for name, field in model.model_fields.items():
        inner = find_section(field.annotation)
        if inner is not None:
            key = f"{prefix}{name}." if "dict" not in str(field.annotation) else f"{prefix}{name}.NAME."
            yield from tables(inner, key)


def table(model: type[BaseModel], prefix: str) -> str:
    meanings = field_docs(model)
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if find_section(field.annotation) is None:
            default = "required" if field.is_required() else shown(field.get_default(call_default_factory=True))
            kind = plain_type(field.annotation)
            rows.append(f"| `{prefix}{name}` | {cell(kind)} | {cell(default)} | {cell(meanings.get(name, ''), code=False)} |")
    return "\n".join(rows)


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The text below each field, of a model and those it inherits from. It is a docstring to readers and to nobody else."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not (issubclass(base, BaseModel) and base is not BaseModel):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                found[field.target.id] = inspect.cleandoc(ast.literal_eval(text.value))
    return found


def plain_type(annotation: Any) -> str:
    """`float`, `own | lora | shared`: as short as a reader wants it."""
    text = annotation.__name__ if isinstance(annotation, type) and not getattr(annotation, "__args__", ()) else str(annotation)
    text = re.sub(r"Annotated\[(\w+), FieldInfo\(.*?\]\)\]", r"\1", text.replace("typing.", ""))
    return re.sub(r"Literal\[([^\]]*)\]", lambda found: found[1].replace("'", "").replace(", ", " | "), text)


def shown(default: Any) -> str:
    return "" if default is None else "true" if default is True else "false" if default is False else str(default)


def cell(text: str, code: bool = True) -> str:
    one = " ".join(text.split()).replace("|", "\\|")
    return f"`{one}`" if code and one else one


def api_page() -> Iterator[str]:
    yield "# The Python API"
    yield "What the package gives, and what recipes and tasks of your own are made of. Nothing else is meant to be stable."
    for module, names in PROVIDES.items():
        yield f"## {module}"
        for name in names:
            yield from entry(name, getattr(import_module(module), name))


def entry(name: str, thing: Any) -> Iterator[str]:
    yield f"### {name}"
    if inspect.isclass(thing):
        yield docstring(thing)
        for method, function in vars(thing).items():
            if inspect.isfunction(function) and not method.startswith("_"):
                yield signature(method, function)
    elif callable(thing) and not hasattr(thing, "__origin__"):
        yield signature(name, thing)
    else:
        yield f"```python\n{name} = {thing}\n```"


def signature(name: str, function: Any) -> str:
    """How it is called, without the quotes that postponed annotations leave, and what it does."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(function)))
    return f"```python\n{name}{text}\n```\n\n{inspect.cleandoc(function.__doc__ or '')}"


def docstring(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "") if "__doc__" in vars(thing) else ""


if __name__ == "__main__":
    main()
