"""A worker process of a comparison or sweep: it reads runs from stdin, one JSON line each, and answers each with one line on
stdout. Its argument, if there is one, is the share of the GPU's memory that it may take.

Invariants: when stdin closes the process ends at once, whatever it is doing: a comparison that is stopped or killed
leaves no process behind, and a run can be resumed from any moment. Only answers are written to the answer pipe. SIGINT ends a
run after its turn, with a checkpoint.
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
from milonga.config import parse_config
from milonga.errors import OutOfMemory, UserError
from milonga.resolve import resolve
from milonga.runfolder.folder import has_config
from milonga.trust import list_reached


def main() -> None:
    answers = _take_stdout()
    if len(sys.argv) > 1:
        _limit_gpu_memory(float(sys.argv[1]))
    orders: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read_orders, args=(orders,), daemon=True).start()
    while True:
        answers.write(json.dumps(run_order(orders.get())) + "\n")
        answers.flush()
        gc.collect()  # the models of the last run


def _take_stdout() -> TextIO:
    """Take stdout for our answers alone: what libraries print to stdout goes to stderr instead."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _limit_gpu_memory(share: float) -> None:
    import torch

    torch.cuda.set_per_process_memory_fraction(share)


def _read_orders(orders: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    os._exit(1)


def run_order(order: dict[str, Any]) -> dict[str, Any]:
    """Start or resume a run; return its error, or None for success, and whether it was interrupted or ran out of memory."""
    folder = Path(order["folder"])
    try:
        if (folder / "config.toml").exists():
            # What the user's own command names is trusted, in a folder from elsewhere too; what it changes, such as paths
            # on another machine, was accepted by whoever changed it.
            trust = [one.name for one in list_reached(parse_config(order["config"]), folder)]
            accept = has_config(folder, resolve([order["config"]]).config)
            api.resume(folder, quiet=True, accept_changes=accept, trust=trust)
        else:
            api.start(resolve([order["config"]]), folder, quiet=True)
    except KeyboardInterrupt:
        return {"error": None, "interrupted": True}
    except UserError as error:
        return {"error": " ".join(str(error).split()), "out_of_memory": isinstance(error, OutOfMemory)}
    except Exception as error:
        trace = traceback.format_exc()
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}", "traceback": trace}
    return {"error": None}


if __name__ == "__main__":
    main()
