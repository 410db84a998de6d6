"""Prompts as Jinja templates (files of the package, or the user's own) or as functions of the user's.

Invariant: problems, solutions and steps are foreign text. They pass through a template as placeholders and come out as parts
of their own, so that no text of a data set or model can become a special token or a piece of the template. What a function
returns is foreign as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from milonga.errors import ConfigError
from milonga.loading import format_name, is_attribute, load_attribute, make_load_error
from milonga.reading import SETTINGS, UNREADABLE, explain_unreadable, read_text
from milonga.types import Part, Prompt

PLACE = re.compile("\ue000(\\d+)\ue001")
"""A placeholder for foreign text: its number between two characters of private use."""
VARIABLES = {
    "problem": "the problem's text",
    "solution": "the text of the solution to be judged",
    "steps": "its steps, as a list of texts",
    "count": "the number of its steps",
    "example": "whether a worked example is to be shown",
    "program": "whether the answer is a program",
}


class PromptTemplate:
    """A template of one agent's prompt."""

    def __init__(self, source: str, name: str) -> None:
        self.name = name
        try:
            self.template: Template = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False).from_string(
                source
            )
        except TemplateSyntaxError as error:
            raise ConfigError(f"prompt '{name}', line {error.lineno}: {error.message}") from None

    def render(self, foreign: Mapping[str, str | Sequence[str]], **own: object) -> Prompt:
        """Render the prompt. `foreign` texts are inserted as they are; `own` values are ours (numbers, switches)."""
        texts: list[str] = []

        def place(text: str) -> str:
            texts.append(text)
            return f"\ue000{len(texts) - 1}\ue001"

        values: dict[str, Any] = dict(own)
        for key, value in foreign.items():
            values[key] = place(value) if isinstance(value, str) else [place(text) for text in value]
        try:
            rendered = self.template.render(values)
        except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
            known = ", ".join(VARIABLES)
            raise ConfigError(f"prompt '{self.name}': {error}; its variables are {known}") from None
        return _split_parts(rendered, texts)


def _split_parts(rendered: str, texts: Sequence[str]) -> Prompt:
    """Split a rendered template at its placeholders: odd pieces are the numbers of foreign texts."""
    pieces = PLACE.split(rendered)
    parts = [Part(texts[int(piece)], foreign=True) if odd % 2 else Part(piece) for odd, piece in enumerate(pieces)]
    return tuple(part for part in parts if part.text)


class PromptFunction:
    """A function of the user's that writes one agent's prompt: `f(problem, **more) -> str`, more being the other variables of a
    template."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self.name = function, name

    def render(self, foreign: Mapping[str, str | Sequence[str]], **own: object) -> Prompt:
        try:
            text = self.function(**foreign, **own)
        except Exception as error:
            raise make_load_error(f"prompt '{format_name(self.name)}'", error) from None
        if not isinstance(text, str):
            raise ConfigError(f"prompt '{format_name(self.name)}' must return a text, not {text!r:.80}")
        return (Part(text, foreign=True),)


@cache
def load_packaged_prompt(name: str, package: str = "milonga.roles") -> PromptTemplate:
    """Load a prompt of the package, such as `solver`, or of a system in its own package."""
    return PromptTemplate((files(package) / "prompts" / f"{name}.jinja").read_text(encoding="utf-8"), name)


def load_prompt(name: str) -> PromptTemplate | PromptFunction:
    """Load a prompt of the user's: a template from a file, or a function named as `file.py:function`."""
    if is_attribute(name):
        function = load_attribute("prompt", name)[0]
        if not callable(function):
            raise ConfigError(f"prompt '{name}' is not a function, but {function!r:.80}")
        return PromptFunction(function, name)
    try:
        return PromptTemplate(read_text(Path(name), SETTINGS), name)
    except UNREADABLE as error:
        raise ConfigError(f"prompt file '{name}' cannot be read: {explain_unreadable(error)}") from None
