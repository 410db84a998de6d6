"""Render chat templates. They come with models, and are programs: Jinja's sandbox keeps them from files, not from looping.

Invariant: a template is rendered only in a child process with limits on time and memory, and only on placeholders, when a model
is loaded: no text of a prompt goes through it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from milonga.errors import ConfigError

SENTINEL, ANSWER, NEXT = "\u0001prompt\u0001", "\u0001answer\u0001", "\u0001next\u0001"
Talk = tuple[tuple[str, str], ...]
"""A conversation: roles and what they say."""
OPENING: Talk = (("user", SENTINEL),)
FOLLOWED: Talk = (*OPENING, ("assistant", ANSWER), ("user", NEXT))
TALKS = (OPENING, FOLLOWED)
SECONDS = 5
"""Most seconds of processor time for both. Real templates take milliseconds."""
WAIT = 300
"""Most seconds to wait for the child, however busy the machine is."""
CHILD = Path(__file__).with_name("template_child.py")


def render_template(tokenizer: Any, talk: Talk) -> str:
    """Render one of `TALKS` by the tokenizer's template, with the turn handed to the model."""
    name = str(tokenizer.name_or_path) or "the model"
    try:
        template = tokenizer.get_chat_template()
    except ValueError as error:  # several templates, and none that is the default
        raise ConfigError(f"the chat template of '{name}': {' '.join(str(error).split())[:300]}; set chat = 'off'") from None
    special = json.dumps(tokenizer.special_tokens_map, default=str, sort_keys=True)
    found = _render_in_child(template, special, SECONDS)[TALKS.index(talk)]
    if "error" in found:
        raise ConfigError(f"the chat template of '{name}' cannot be rendered: {found['error']}; set chat = 'off'")
    return found["rendered"]


@cache
def _render_in_child(template: str, special: str, seconds: int) -> list[dict[str, str]]:
    """Render all talks, once in this process: policies share tokenizers. Each result has the key `rendered` or `error`."""
    talks = [[{"role": role, "content": content} for role, content in talk] for talk in TALKS]
    asked = json.dumps({"template": template, "special": json.loads(special), "talks": talks, "seconds": seconds})
    command = [sys.executable, "-P", str(CHILD)]
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True, encoding="utf-8", timeout=WAIT)
    except subprocess.TimeoutExpired:
        return [{"error": f"it does not end within {WAIT} seconds"}] * len(TALKS)
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return [{"error": f"it does not end within {seconds} s of processor time"}] * len(TALKS)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"]
        return [{"error": said[-1][:300]}] * len(TALKS)
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found
