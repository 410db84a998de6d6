"""The reference of the docs, written from the code: commands, config, Python API, layers.

    python scripts/make_reference.py docs/reference
    python scripts/make_reference.py --api tests/public_api.txt     # the public names that a test holds fixed

Invariant: nothing on these pages is said twice. What is missing there is a docstring or a `help` in the code.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import shutil
import textwrap
import tomllib
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
from milonga.tasks import TASKS, PassRate

EXIT = """\
0
: Done.

1
: A run of a comparison or of a claim failed; the others were finished, and the same command tries it again.

2
: A mistake that can be mended: one line on stderr says what was wrong, where, and what to do.

129
: Stopped because its terminal was closed (SIGHUP).

130
: Stopped by Ctrl-C (SIGINT).

143
: Stopped by SIGTERM. After any of the three the command that goes on is said on stderr: for a run, `milonga resume DIR`.
  `board`, `chat` and `serve` are ended so, and exit with 0.
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
    "milonga.recipe": ["Recipe", "RecipeOptions", "Permission", "ALLOWED", "Refused"],
    "milonga.context": ["Context"],
    "milonga.tasks": ["Capability", "Demonstration", "Tool", "make_task"],
    "milonga.roles": import_module("milonga.roles").__all__,
    "milonga.schedule": ["Schedule", "Phase", "always", "alternate", "warm_up", "rounds", "until"],
    "milonga.types": ["Rollout", "Rollouts", "TrainBatch", "Parsed", "Solution", "Verification", "Segment"],
    "milonga.credit": import_module("milonga.credit").__all__,
    "milonga.engine": import_module("milonga.engine").__all__,
}
"""What users call and what their own recipes and tasks are made of."""
ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "milonga"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="the folder of the pages; with --api, the file of the public names")
    parser.add_argument("--api", action="store_true", help="write the public names and their signatures, and nothing else")
    given = parser.parse_args()
    out: Path = given.out
    if given.api:
        out.write_text("\n".join(list_public_api()) + "\n", encoding="utf-8")
        return
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    group: Any = get_command(app)
    write(out / "milonga.md", render_overview(group))
    for name, command in group.commands.items():
        write(out / f"milonga-{name}.md", render_manual(name, command))
    write(out / "config.md", render_config())
    write(out / "api.md", render_api())
    write(out / "layers.md", render_layers())


def write(path: Path, parts: Iterator[str]) -> None:
    path.write_text("\n\n".join(part.strip("\n") for part in parts if part) + "\n", encoding="utf-8")


def render_overview(group: Any) -> Iterator[str]:
    """The page of the command as a whole."""
    yield "# milonga"
    yield "## Synopsis\n\n```\nmilonga COMMAND [OPTIONS] [ARGUMENTS]\nmilonga --install-completion\n```"
    yield f"## Description\n\n{group.help}"
    yield "## Commands"
    panels = dict.fromkeys(command.rich_help_panel for command in group.commands.values())
    for panel in panels:
        yield f"### {panel}"
        members = {name: c for name, c in group.commands.items() if c.rich_help_panel == panel}
        yield render_definitions(
            (f"[`milonga {name}`](milonga-{name}.md)", str(c.help).strip().partition("\n")[0]) for name, c in members.items()
        )
    yield "## Options"
    yield render_options(group.params)
    yield "## Examples"
    yield fence(parse_examples(group.epilog))
    yield f"## Files\n\n{FILES}"
    yield f"## Exit status\n\n{EXIT}"
    pages = "\n".join(f"milonga-{name}" for name in group.commands)
    yield f"```{{toctree}}\n:hidden:\n\n{pages}\n```"


def render_manual(name: str, command: Any) -> Iterator[str]:
    """The page of one command, in the order of a man page."""
    yield f"# milonga {name}"
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    yield f"## Synopsis\n\n```\n{' '.join(['milonga', name, '[OPTIONS]', *map(render_usage, arguments)])}\n```"
    yield f"## Description\n\n{inspect.cleandoc(command.help)}"
    if arguments:
        yield "## Arguments"
        yield render_definitions((f"`{render_usage(p)}`", p.help) for p in arguments)
    options = [p for p in command.params if p.param_type_name == "option"]
    for panel in dict.fromkeys(p.rich_help_panel for p in options):
        yield f"## {panel or 'Options'}"
        yield render_options([p for p in options if p.rich_help_panel == panel])
    yield "## Examples"
    yield fence(parse_examples(command.epilog))
    yield f"## Files\n\n{FILES}"
    yield f"## Exit status\n\n{EXIT}"
    yield "## See also\n\nmilonga(1); of the docs, the pages on the config, the run folder and metrics."


def render_usage(argument: Any) -> str:
    name = argument.name.rstrip("_").upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def render_definitions(pairs: Any) -> str:
    return "\n\n".join(f"{term}\n: {meaning}" for term, meaning in pairs)


def render_options(options: list[Any]) -> str:
    return render_definitions((render_option_name(option), f"{option.help}{render_default(option)}") for option in options)


def render_option_name(option: Any) -> str:
    names = ", ".join(option.opts)
    return (
        f"`{names}`" if option.is_flag else f"`{names} {option.metavar or option.type_descriptor.annotation.__name__.upper()}`"
    )


def render_default(option: Any) -> str:
    shown = option.default not in (None, False, (), []) and isinstance(option.default, str | int | float)
    return f" Default: `{option.default}`." if shown else ""


def fence(lines: list[str]) -> str:
    return "```\n" + "\n".join(lines) + "\n```"


def render_config() -> Iterator[str]:
    """All keys, with what they mean, from the models that check them."""
    yield "# The config"
    yield (
        "Every key can stand in a TOML file (`--config`) or on the command line (`--set batch.rollouts=16`). Later ones win: "
        "the recipe's own defaults, the file, the flags, `--set`. `--dry-run` prints what came out. An unknown key is an error "
        "that names the nearest right one."
    )
    yield "## Keys of every run"
    yield from render_tables(Config, "")
    yield "## Objectives"
    yield "`policies.NAME.objective`: `preset` names one of `milonga list objectives`; these switches override it."
    yield render_table(ObjectiveSection, "policies.NAME.objective.")
    yield "## Options of the recipes"
    for name in RECIPES:
        options = RECIPES.get(name).Options
        if options.model_fields:
            yield f"### {name}"
            yield render_table(options, "options.")
    yield "## Options of the tasks"
    yield "Any task that knows its answers takes these beside its own:"
    yield render_table(PassRate, "task.")
    for name in TASKS:
        yield f"### {name} (task)"
        yield render_table(TASKS.get(name).Options, "task.")


def render_tables(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """The keys of a model, and then of the tables within it."""
    if prefix:
        yield f"### `[{prefix.rstrip('.')}]`"
        yield clean_docstring(model)
    yield render_table(model, prefix)
    for name, field in model.model_fields.items():
        inner = find_section(field.annotation)
        if inner is not None:
            key = f"{prefix}{name}." if "dict" not in str(field.annotation) else f"{prefix}{name}.NAME."
            yield from render_tables(inner, key)


def render_table(model: type[BaseModel], prefix: str) -> str:
    meanings = read_field_docs(model)
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if find_section(field.annotation) is None:
            default = "required" if field.is_required() else render_value(field.get_default(call_default_factory=True))
            kind = simplify_type(field.annotation)
            meaning = render_cell(meanings.get(name, ""), code=False)
            cells = (f"`{prefix}{name}`", render_cell(kind), render_cell(default), meaning)
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def read_field_docs(model: type[BaseModel]) -> dict[str, str]:
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


def simplify_type(annotation: Any) -> str:
    """`float`, `own | lora | shared`: as short as a reader wants it."""
    text = annotation.__name__ if isinstance(annotation, type) and not getattr(annotation, "__args__", ()) else str(annotation)
    text = re.sub(r"Annotated\[(\w+), FieldInfo\(.*?\]\)\]", r"\1", text.replace("typing.", ""))
    return re.sub(r"Literal\[([^\]]*)\]", lambda found: found[1].replace("'", "").replace(", ", " | "), text)


def render_value(default: Any) -> str:
    return "" if default is None else "true" if default is True else "false" if default is False else str(default)


def render_cell(text: str, code: bool = True) -> str:
    one = " ".join(text.split()).replace("|", "\\|")
    return f"`{one}`" if code and one else one


def render_api() -> Iterator[str]:
    yield "# The Python API"
    yield "What the package gives, and what recipes and tasks of your own are made of. Nothing else is meant to be stable."
    for module, names in PROVIDES.items():
        yield f"## {module}"
        for name in names:
            yield from render_entry(name, getattr(import_module(module), name))
    yield "Where these modules lie, and what they may import: [the layers](layers.md)."
    yield "```{toctree}\n:hidden:\n\nlayers\n```"


def render_entry(name: str, thing: Any) -> Iterator[str]:
    yield f"### {name}"
    if inspect.isclass(thing):
        yield clean_docstring(thing)
        for method, function in list_methods(thing):
            yield f"```python\n{render_signature(method, function)}\n```\n\n{inspect.cleandoc(function.__doc__ or '')}"
    elif inspect.isfunction(thing):
        yield f"```python\n{render_signature(name, thing)}\n```\n\n{inspect.cleandoc(thing.__doc__ or '')}"
    else:
        yield f"```python\n{name} = {thing}\n```"


def list_methods(thing: type) -> Iterator[tuple[str, Any]]:
    """List the public methods that a class defines itself, class and static methods too."""
    for name, member in vars(thing).items():
        function = getattr(member, "__func__", member)
        if inspect.isfunction(function) and not name.startswith("_"):
            yield name, function


def render_signature(name: str, function: Any) -> str:
    """Render how it is called, without the quotes that postponed annotations leave."""
    return name + re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(function)))


def clean_docstring(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "") if "__doc__" in vars(thing) else ""


def list_public_api() -> Iterator[str]:
    """List every public name with its signature, and a class with its fields, properties and methods: one line each."""
    for module, names in PROVIDES.items():
        for name in names:
            thing = getattr(import_module(module), name)
            if inspect.isclass(thing):
                yield f"class {module}.{name}({', '.join(base.__name__ for base in thing.__bases__)})"
                yield from (f"    {line}" for line in sorted(list_members(thing)))
            else:
                yield f"{module}.{render_signature(name, thing) if inspect.isfunction(thing) else name}"


def list_members(thing: type) -> Iterator[str]:
    """List what a class defines itself and shows: annotated fields, properties and methods, and how it is made."""
    yield from (f"{name}: {kind}" for name, kind in inspect.get_annotations(thing).items() if not name.startswith("_"))
    yield from (name for name, member in vars(thing).items() if isinstance(member, property))
    yield from (render_signature(name, function) for name, function in list_methods(thing))
    if inspect.isfunction(made := vars(thing).get("__init__")):
        yield render_signature("__init__", made)


def read_layers() -> list[list[str]]:
    """Read the layers from pyproject.toml, the topmost first: the modules of each, as import-linter checks them."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip() for name in re.split("[:|]", layer)] for layer in layers]


def render_layers() -> Iterator[str]:
    """The map of the package: one line for each module or package of a layer, with its size."""
    yield "# The layers"
    yield (
        "Each layer imports only those below it, and no two modules import each other in a circle; `lint-imports` checks both. "
        "What stands under one heading lies in one layer."
    )
    for modules in read_layers():
        rows = ["| module | what it is | files | lines |", "|---|---|---:|---:|"]
        for name in modules:
            files = sorted((SOURCES / name).rglob("*.py")) or [SOURCES / f"{name}.py"]
            lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
            rows.append(f"| `{name}` | {render_cell(read_first_sentence(name), code=False)} | {len(files)} | {lines:,} |")
        yield f"## {' · '.join(modules)}"
        yield "\n".join(rows)


def read_first_sentence(name: str) -> str:
    """Read the first sentence of a module's docstring, or of a package's."""
    file = SOURCES / name / "__init__.py" if (SOURCES / name).is_dir() else SOURCES / f"{name}.py"
    text = " ".join((ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", text)[0]


if __name__ == "__main__":
    main()
