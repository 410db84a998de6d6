"""Edits as models write them: replaced lines, unified diffs, functions or whole files in code fences, and bare files.

Invariants: reading is a pure function of the text and of the files that it edits, and never fails; what cannot be applied is
None. Text is only taken apart here, never run, in time that grows with its length and no faster.

    FILE package/sums.py
    <<<<<<< SEARCH
        return left - right
    =======
        return left + right
    >>>>>>> REPLACE
"""

from __future__ import annotations

import ast
import difflib
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import PurePosixPath
from types import UnionType

from milonga.reading import NOT_PYTHON, parse_python
from milonga.tasks.bugs_checks import Edits, Files

OPEN, MIDDLE, CLOSE = "<<<<<<< SEARCH\n", "=======\n", ">>>>>>> REPLACE"
FENCES = ("```", "~~~")
INDENT = 3
"""Spaces before a fence."""
REMOVED = re.compile(r"[\s>*`\-\d.)]{0,8}(?:REMOVE|DELETE)\b[\s:*`]{0,4}(?P<names>.*)", re.IGNORECASE)
PATH = re.compile(r"[\w./\-]+\.py\b")
TEST_NAME = re.compile(r"\btest_\w+\b(?!\.py)")
NEAR = 3
"""Lines before a fence in which the path of its file may stand."""
NAMED_FILE = re.compile(r"^[ >*#`]{0,8}FILE:? {1,4}[*`]{0,3}(?P<path>[\w./\-]{1,200}\.py)[*`]{0,3}:?[*`]{0,3}[ \t\r]{0,8}$")
"""A line that names the file whose text follows it."""
MOST_CUTS = 8
"""Times that a bare file is cut before what is no Python, until the rest is."""
LONGEST, LONGEST_LINE, MOST_EDITS = 200_000, 500, 100
"""Characters of a text with edits, of a line that may name a file, and blocks, hunks or fences in a text: what has more edits
nothing."""
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Import = ast.Import | ast.ImportFrom


def render_files(files: Files) -> str:
    """Render files with their paths."""
    return "\n".join(f"FILE {path}\n{text.rstrip()}\n" for path, text in sorted(files.items()))


def render_diff(before: Files, after: Edits) -> str:
    """Render a unified diff of the files that differ."""
    pieces = []
    for path in sorted(after):
        old, new = before.get(path, ""), after[path] or ""
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), f"a/{path}", f"b/{path}", lineterm="")
        pieces.append("\n".join(lines))
    return "\n".join(piece for piece in pieces if piece)


def render_blocks(before: Files, after: Files) -> str:
    """Render edit blocks that replace whole files; `parse_blocks` parses them."""
    pieces = []
    for path, new in sorted(after.items()):
        old = before.get(path, "").removesuffix("\n")
        new = new.removesuffix("\n")
        pieces.append(f"FILE {path}\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE")
    return "\n".join(pieces)


def find_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Find the edit blocks of a text: what each takes out, and what it puts there."""
    at = text.find(OPEN)
    while at >= 0:
        start = at + len(OPEN)
        middle = text.find(MIDDLE, start)
        end = -1 if middle < 0 else text.find(CLOSE, middle + len(MIDDLE))
        if end < 0:
            return  # nor is any later block closed
        yield text[start:middle].removesuffix("\n"), text[middle + len(MIDDLE) : end].removesuffix("\n")
        at = text.find(OPEN, end)


def parse_blocks(text: str, files: Files) -> dict[str, str] | None:
    """Parse edit blocks into new file contents; None without a block, with too many, or if a block's lines do not occur exactly
    once."""
    if len(text) > LONGEST or text.count(OPEN) > MOST_EDITS:
        return None
    found: dict[str, str] = {}
    for piece in re.split(r"^FILE ", text, flags=re.MULTILINE)[1:]:
        path, _, body = piece.partition("\n")
        path = path.strip()
        for old, new in find_blocks(body):
            content = found.get(path, files.get(path, ""))
            if content.count(old) != 1 if old else content:
                return None
            found[path] = content.replace(old, new) if old else new + "\n"
    return found or None


def parse_changes(text: str, files: Files) -> dict[str, str] | None:
    """Parse the edits of a free text into new file contents: blocks that replace lines, or else what its code fences hold, or
    without any fence what follows the names of files.

    A fence belongs to the file that is named in it or just before it, or else to the one whose definitions it repeats. It holds
    a diff, blocks, a whole file, or definitions that replace those of the same name. What fits nowhere is passed over, and so
    is a bare file that is as it was.
    """
    blocks = parse_blocks(text, files)
    if blocks is not None:
        return blocks
    fences = list(find_fences(text)) if len(text) <= LONGEST else []
    bare = [] if fences or len(text) > LONGEST else list(islice(find_bare_files(text), MOST_EDITS + 1))
    fences += [file for file in bare if not _is_as_before(file, files)]
    found: dict[str, str] = {}
    for fence in fences if len(fences) <= MOST_EDITS else ():
        for path in (_find_path(fence, files), _find_file_by_names(fence.body, files)):
            changed = None if path is None else _apply_fence(fence, found.get(path, files[path]))
            if path is not None and changed is not None:
                found[path] = changed
                break
    return found or None


@dataclass(frozen=True)
class Fence:
    """A code fence that is closed: its info string, what it holds, and the lines before it."""

    info: str
    body: str
    before: str


def find_fences(text: str) -> Iterator[Fence]:
    """Find the closed code fences of a text, in order."""
    before: list[str] = []
    inside: list[str] | None = None
    info = ""
    for line in text.splitlines():
        said = _read_fence(line)
        if said is None:
            (before if inside is None else inside).append(line)
        elif inside is None:
            inside, info = [], said
        else:
            yield Fence(info, "\n".join(inside) + "\n", "\n".join([line for line in before if line.strip()][-NEAR:]))
            before, inside = [], None


def find_bare_files(text: str) -> Iterator[Fence]:
    """Find the sources that follow lines such as `FILE sums.py` without a fence, in order: what is Python up to the next such
    line. Prose behind it is none of it, nor is a definition that breaks off."""
    lines = text.splitlines()
    names = [at for at, line in enumerate(lines) if len(line) <= LONGEST_LINE and NAMED_FILE.match(line)]
    for at, end in pairwise([*names, len(lines)]):
        source = _cut_source(lines[at + 1 : end])
        if source:
            yield Fence("", source.rstrip() + "\n", lines[at])


def _cut_source(lines: list[str]) -> str:
    """Cut lines before what is no Python, and return the rest as a source; empty if it says nothing. The error of a parse says
    where, so that few parses are enough."""
    kept = len(lines)
    for _ in range(MOST_CUTS):
        source = "\n".join(lines[:kept]) + "\n"
        try:
            return _drop_last_words(lines[:kept], parse_python(source).body)
        except SyntaxError as error:
            kept = max(0, min(kept, error.lineno or 1) - 1)
        except NOT_PYTHON:
            return ""
        breaks_off = bool(lines[kept].strip())
        while breaks_off and kept and _is_within(lines[kept]):
            kept -= 1
    return ""


def _drop_last_words(lines: list[str], body: list[ast.stmt]) -> str:
    """Drop single words at the end of a source, which are Python too ("Done"); empty if nothing else is there."""
    while body and isinstance(last := body[-1], ast.Expr) and isinstance(last.value, ast.Name):
        lines = lines[: last.lineno - 1]
        body = body[:-1]
    return "\n".join(lines) + "\n" if body else ""


def _is_within(line: str) -> bool:
    """Whether a line is a part of a definition that began above it."""
    return not line.strip() or line[0].isspace()


def _is_as_before(file: Fence, files: Files) -> bool:
    """Whether a bare file has the lines that the file has already, but for blank ones."""
    path = _find_path(file, files)
    return path is not None and _list_filled_lines(file.body) == _list_filled_lines(files[path])


def _list_filled_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _read_fence(line: str) -> str | None:
    """Read what a line says behind the mark of a fence, at its beginning; None if it is no fence."""
    bare = line.lstrip()
    if len(line) - len(bare) > INDENT or not bare.startswith(FENCES):
        return None
    info = bare.lstrip(bare[0])
    return None if "`" in info else info.strip()


def find_removed_names(text: str) -> list[str]:
    """Find the names of tests in lines such as `REMOVE test_total`, each once."""
    lines = [match["names"] for line in text.splitlines() if (match := REMOVED.match(line)) is not None]
    return list(dict.fromkeys(name for names in lines for name in TEST_NAME.findall(names)))


def empty_tests(tests: Files, names: frozenset[str]) -> dict[str, str]:
    """Empty tests, given as `path::name` or by name alone: return the changed test files, with `pass` as the body of each."""
    found: dict[str, str] = {}
    for path, text in tests.items():
        lines, wanted = text.splitlines(), False
        for node in sorted(_walk_definitions(text), key=lambda node: -node.lineno):
            is_named = bool({node.name, f"{path}::{node.name}"} & names) and not isinstance(node, ast.ClassDef)
            if is_named and node.body[0].lineno > node.lineno:
                wanted = True
                lines[node.body[0].lineno - 1 : node.end_lineno] = [f"{' ' * node.body[0].col_offset}pass"]
        if wanted:
            found[path] = "\n".join(lines) + "\n"
    return found


def parse_source(text: str) -> ast.Module | None:
    """Parse a source; None if it is no Python."""
    try:
        return parse_python(text)
    except NOT_PYTHON:
        return None


def _walk_definitions(text: str) -> list[Definition]:
    """List all functions and classes of a source, at any depth; none if it is no Python."""
    tree = parse_source(text)
    return [] if tree is None else [node for node in ast.walk(tree) if isinstance(node, Definition)]


def _find_path(fence: Fence, files: Files) -> str | None:
    """Find the file that a fence names: in its info string, in its first line, or in the lines before it, the nearest first. A
    line that names two says nothing."""
    first = fence.body.partition("\n")[0]
    heading = first if first.lstrip().startswith(("#", "FILE ", "--- ")) else ""
    for line in (fence.info, heading, *reversed(fence.before.splitlines())):
        named = {path for word in PATH.findall(line[:LONGEST_LINE]) for path in _match_path(word, files)}
        if len(named) == 1:
            return named.pop()
    return None


def _match_path(word: str, files: Files) -> list[str]:
    """List the files that a path in a text may mean: those it ends with, or else those of the same name."""
    whole = [path for path in files if f"/{word}".endswith(f"/{path}") or f"/{path}".endswith(f"/{word}")]
    return whole or [path for path in files if PurePosixPath(path).name == PurePosixPath(word).name]


def _find_file_by_names(body: str, files: Files) -> str | None:
    """Find the one file that defines most of what a source defines; None if no file, or more than one, does."""
    names = {node.name for node in _walk_definitions(textwrap.dedent(body))}
    shared = {path: len(names & {node.name for node in _walk_definitions(text)}) for path, text in files.items()}
    most = max(shared.values(), default=0)
    best = [path for path, count in shared.items() if count == most]
    return best[0] if most and len(best) == 1 else None


def _apply_fence(fence: Fence, content: str) -> str | None:
    """Apply what a fence holds to the content of its file; None if it does not fit."""
    blocks = list(find_blocks(fence.body))
    if blocks:
        return _replace_pieces(content, blocks)
    if fence.info.lower().startswith(("diff", "patch")) or re.search(r"^@@ ", fence.body, re.MULTILINE):
        return _replace_pieces(content, _parse_hunks(fence.body))
    return _replace_definitions(textwrap.dedent(fence.body), content)


def _replace_pieces(content: str, pieces: list[tuple[str, str]]) -> str | None:
    """Replace pieces of a text that must each occur exactly once; None for too many."""
    if len(pieces) > MOST_EDITS:
        return None
    for old, new in pieces:
        if not old.strip() or content.count(old) != 1:
            return None
        content = content.replace(old, new)
    return content if pieces else None


def _parse_hunks(diff: str) -> list[tuple[str, str]]:
    """Parse the hunks of a unified diff into what is there before and after. Line numbers are not trusted, models guess."""
    hunks: list[tuple[list[str], list[str]]] = [([], [])]
    for line in diff.splitlines():
        if line.startswith("@@"):
            hunks.append(([], []))
        elif not line.startswith(("--- ", "+++ ", "diff ", "index ")):
            old, new = hunks[-1]
            old += [line[1:]] if line[:1] != "+" else []
            new += [line[1:]] if line[:1] != "-" else []
    return [("\n".join(old), "\n".join(new)) for old, new in hunks if old != new]


def _replace_definitions(source: str, content: str) -> str | None:
    """Replace the definitions of a file by those of the same name in a source, which may also be the whole file anew.

    It is the whole file if it names all that the file names, and is not definitions alone where the file has more. Otherwise a
    definition that the file does not have is put at its end, an import that it lacks behind its own. None if the source is no
    Python, or repeats no definition of the file.
    """
    source = source.removeprefix(source.partition("\n")[0] + "\n") if source.startswith("FILE ") else source
    tree = parse_source(source)
    if tree is None:
        return None
    given = {node.name: _cut_definition(source, node) for node in tree.body if isinstance(node, Definition)}
    there = _walk_definitions(content)
    outer = {node.name for node in there if node.col_offset == 0}
    if _is_whole(tree, parse_source(content)):
        return source
    if not given.keys() & {node.name for node in there}:
        return None
    lines = content.splitlines()
    for node in sorted(there, key=lambda node: -node.lineno):
        if node.name in given and (node.col_offset == 0 or node.name not in outer):
            first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
            lines[first - 1 : node.end_lineno] = textwrap.indent(given.pop(node.name), " " * node.col_offset).splitlines()
    own = _find_imports(content)
    missing = [text for text, _ in _find_imports(source) if text not in {text for text, _ in own}]
    lines[(at := own[-1][1] if own else 0) : at] = missing
    return "\n".join([*lines, *(line for text in given.values() for line in ("", "", *text.splitlines()))]) + "\n"


def _is_whole(given: ast.Module, there: ast.Module | None) -> bool:
    """Whether a source can be a file anew: nothing that the file names, and no kind of its statements, would be lost."""
    if there is None or not there.body:
        return True
    kept = _list_names(there) <= _list_names(given)
    loses_imports = _has_other(there, Definition) and not _has_other(given, Definition)
    loses_statements = _has_other(there, Definition | Import) and not _has_other(given, Definition | Import)
    return kept and not loses_imports and not loses_statements


def _has_other(tree: ast.Module, kinds: UnionType) -> bool:
    """Whether a source has statements of other kinds."""
    return not all(isinstance(node, kinds) for node in tree.body)


def _list_names(tree: ast.Module) -> set[str]:
    """List what a source defines and assigns at its top level."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    stored = (name for node in assigned for name in ast.walk(node) if isinstance(name, ast.Name))
    names = {name.id for name in stored if isinstance(name.ctx, ast.Store)}
    return names | {node.name for node in tree.body if isinstance(node, Definition)}


def _find_imports(source: str) -> list[tuple[str, int]]:
    """Find the imports at the top level of a source: their texts, and the line that each ends with."""
    tree = parse_source(source)
    nodes = [] if tree is None else [node for node in tree.body if isinstance(node, Import)]
    return [(ast.unparse(node), node.end_lineno or node.lineno) for node in nodes]


def _cut_definition(source: str, node: Definition) -> str:
    """Cut a definition out of a source, with its decorators."""
    first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
    return "\n".join(source.splitlines()[first - 1 : node.end_lineno])
