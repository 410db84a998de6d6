"""One process of a comparison: takes runs, one line of JSON each, on stdin, and answers each with one line on stdout.

Invariants: when stdin closes the process ends at once, whatever it is doing: a comparison that is stopped, or killed,
leaves nobody behind, and a run can be resumed from any moment. Nothing but answers goes into the pipe of the answers.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, TextIO

from milonga import api
from milonga.errors import UserError
from milonga.resolve import resolve


def main() -> None:
    answers = private_stdout()
    orders: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=listen, args=(orders,), daemon=True).start()
    while True:
        answers.write(json.dumps(obey(orders.get())) + "\n")
        answers.flush()
        gc.collect()  # the models of the last run


def private_stdout() -> TextIO:
    """A pipe of our own: what libraries print to stdout goes to stderr instead."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def listen(orders: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    os._exit(1)


def obey(order: dict[str, Any]) -> dict[str, Any]:
    """Begin or go on with a run; an error is an answer too."""
    folder = Path(order["folder"])
    try:
        if (folder / "config.toml").exists():
            api.resume(folder, quiet=True)
        else:
            api.start(resolve([order["config"]]), folder, quiet=True)
    except UserError as error:
        return {"error": " ".join(str(error).split())}
    except Exception as error:
        trace = traceback.format_exc()
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}", "trace": trace}
    return {"error": None}


if __name__ == "__main__":
    main()
