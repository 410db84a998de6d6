"""A model that says what a script says: prompts, ids, log-probabilities and learning are the engine's own, the words are given.

A tiny random model writes nothing that can be read. With it a turn on prose can be followed from the prompt to the weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_helpers import model_folder
from milonga.engine import Completion, Decoding, Request
from milonga.engine.local import LocalEngine
from milonga.types import Parsed, Problem, Rollout, Rollouts, Segment

Says = Callable[[str, int], str]
"""From the conversation so far, and the number of completions before this one, to what is said."""
QUICK = {"probe": "off", "eval": {"problems": 1, "samples": 1, "greedy": False, "bench": 0, "checks": 1}}


def make_chat_model(folder: Path, positions: int = 16384) -> str:
    """Make a tiny random model with a chat template and a context that prose fits into."""
    made = model_folder(folder, kind="chat")
    config = Path(made) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": positions}))
    return made


def script_model(monkeypatch: pytest.MonkeyPatch, says: Says) -> list[str]:
    """Let every policy of a local engine say what the script says. Returns the list that conversations are noted in."""
    numbers, seen = count(), list[str]()

    def sample(
        self: LocalEngine, policy: str, asked: list[Request], decoding: Decoding, tag: str = "live", history: Any = None
    ) -> list[Completion]:
        out = []
        for request in asked:
            said = self.policy(policy).codec.decode_ids(request.context.tolist())
            seen.append(said)
            out.append(_complete(self, policy, request, says(said, next(numbers)), tag))
        return out

    monkeypatch.setattr(LocalEngine, "sample", sample)
    return seen


def _complete(engine: LocalEngine, policy: str, request: Request, text: str, tag: str) -> Completion:
    """Encode a text as if it had been sampled, with the log-probabilities that it has."""
    made = engine.encode_completion(policy, text, True)
    ids = np.concatenate([request.context, made.ids])
    segments = (Segment("prompt", 0, len(request.context)), Segment("one", len(request.context), len(ids), policy, 0, True))
    row = Rollout("one", "one", Problem("one", "", ""), ids, segments, np.zeros(len(ids)), text, Parsed(None, 0.0))
    (logprobs,) = engine.score(policy, Rollouts([row]), tag)
    return Completion(made.ids, logprobs[len(request.context) :], "eos", text, made.ends)
