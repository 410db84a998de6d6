"""Render conversations by a chat template, as a process of its own: JSON on stdin, and for each conversation on stdout.

Run as a file, so that nothing of this package is imported. Limits are set after the imports: what they bound is the template.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time

from transformers.utils.chat_template_utils import render_jinja_template

MEMORY = 4 << 30
"""Most bytes of address space, which the imported libraries take a part of."""
LONGEST = 1 << 20
"""Most characters of a rendered conversation of a few words."""


def render(talk: list[dict[str, str]], template: str, special: dict[str, str]) -> dict[str, str]:
    """Render a conversation; whatever a foreign template does is its own mistake."""
    try:
        rendered = render_jinja_template(conversations=[talk], chat_template=template, add_generation_prompt=True, **special)[
            0
        ][0]
        if len(rendered) > LONGEST:
            raise ValueError(f"it writes more than {LONGEST} characters")
    except Exception as error:
        return {"error": " ".join(str(error).split())[:300] or type(error).__name__}
    return {"rendered": rendered}


def main() -> None:
    asked = json.load(sys.stdin)
    seconds = math.ceil(time.process_time()) + asked["seconds"]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    json.dump([render(talk, asked["template"], asked["special"]) for talk in asked["talks"]], sys.stdout)


if __name__ == "__main__":
    main()
