"""The shortest run of each recipe in which every agent that learns has learned: seconds, to see who moves and from where."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import milonga
from cases import TINY
from milonga.api import make_engine
from milonga.loop import Loop
from milonga.resolve import resolve
from milonga.runfolder.console import LiveView
from milonga.runfolder.files import JsonLines
from milonga.runfolder.folder import RunFolder


@dataclass(frozen=True)
class Short:
    """So few turns of a recipe that every agent that learns has learned, and which agents these are."""

    turns: int
    learners: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    """What earlier turns would have left to these."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What else must differ from the tiny settings of all, such as the task."""


GENERATOR, VERIFIER = ("generator",), ("verifier",)
BOTH = (*GENERATOR, *VERIFIER)
SMALL_GRAPH = {"name": "search", "entities": 60, "relations": 5, "hops": 2}
SMALL_CODE = {"name": "code", "level": 1}
SHORT: dict[str, Short] = {
    "tango": Short(2, BOTH, {"warmup": 0, "n_generator": 1}),
    "tango_balanced": Short(2, BOTH, {"warmup": 0, "n_generator": 1, "step_credit": 1.0, "corruptions": 0.5}),
    "sequential": Short(2, BOTH, {"warmup": 1}),
    "tango_code": Short(2, BOTH, {"warmup": 0, "n_generator": 1}, settings={"task": SMALL_CODE}),
    "tango_free": Short(2, BOTH, {"warmup": 0, "n_generator": 1, "votes": 4, "checks": 1}),
    "tango_free_adversary": Short(3, (*BOTH, "adversary"), {"warmup": 0, "n_generator": 1, "votes": 4, "checks": 1}),
    "curriculum": Short(3, (*BOTH, "proposer"), {"warmup": 0, "n_generator": 1, "formats": 1}),
    "grpo": Short(1, GENERATOR),
    "ttrl": Short(1, GENERATOR),
    "frozen": Short(1, GENERATOR),
    "oracle": Short(1, GENERATOR),
    "verifier_only": Short(1, VERIFIER),
    "sft": Short(2, BOTH),
    "prime": Short(1, BOTH, {"accuracy_low": 0.0, "accuracy_high": 1.0}),
    "genrm": Short(1, VERIFIER, {"rationales": 1}),
    "lets_verify": Short(1, VERIFIER),
    "math_shepherd": Short(1, VERIFIER, {"completions": 1}),
    "math_shepherd_rl": Short(2, BOTH, {"completions": 1, "warmup": 1}),
    "qwen_prm": Short(1, VERIFIER, {"completions": 1}),
    "gar": Short(2, BOTH, {"sft": 1, "sft_slices": 8, "disc_group": 2}),
    "apo": Short(2, BOTH, {"rm_turns": 1, "llm_turns": 1}),
    "spin": Short(3, GENERATOR, {"round_turns": 2}),
    # To give points that can be read takes longer to learn than a test may: the truth gives them.
    "self_rewarding": Short(2, BOTH, {"seed_turns": 1, "round_turns": 1, "judge": "oracle"}),
    "self_taught_evaluators": Short(
        4,
        ("judge",),
        {"seed_turns": 1, "seed_noise": 0.0, "iters": 1, "train": 1, "rows": 16, "measured": 4}
        | {"negatives": "modified", "answers": "written"},
    ),
    # To end a dialogue well takes longer to learn than a test may: a better format is enough.
    "sweet_rl": Short(
        3,
        (*GENERATOR, "critic"),
        {"formats": 1, "format_lines": 8, "hidden": 1, "questions": 1, "critic_turns": 1, "any_gap": True, "measured": 4},
    ),
    "v_star": Short(3, BOTH, {"rounds": 1, "train": 1, "rows": 8}),
    "aprm": Short(3, ("corruptor", "verifier"), {"sft": 1, "sft_steps": 8, "warmup": 1, "measured": 4}),
    "score": Short(3, GENERATOR, {"formats": 1, "format_lines": 8, "stage1": 1, "measured": 4}),
    "maporl": Short(2, ("generator", "partner"), {"formats": 1, "format_lines": 6, "talk": 2, "measured": 4}),
    "mars": Short(
        2,
        ("generator", "reader"),
        {"formats": 1, "format_lines": 4, "format_notes": 4, "measured": 4},
        settings={"task": {"name": "haystack", "noise": 2}},
    ),
    "marti": Short(2, (*BOTH, "refiner"), {"formats": 1, "format_lines": 6, "measured": 4}),
    "rlp": Short(2, GENERATOR, {"format_turns": 1, "format_lines": 8, "measured": 4}),
    "rstar_math": Short(4, BOTH, {"searches": 2, "candidates": 4, "check": False, "measured": 4}),
    # To pose problems that can be read takes longer to learn than a test may: the judge learns from what is remembered.
    "asl": Short(
        4,
        ("proposer", *BOTH),
        {"formats": 1, "n_proposer": 1, "n_verifier": 1, "n_generator": 1, "attempts": 2, "self_checks": 1, "audit": 4},
        {
            "pairs": [
                ["3+4*5%100", "35", "earlier", work, work.endswith("#35")]
                for work in ("3+4=7\n7*5=35\n#35", "3+4=8\n8*5=40\n#40")
            ]
        },
    ),
    # As above: the judge practises on what is remembered, and the pool holds a question and one that is none.
    "multi_agent_evolve": Short(
        2,
        ("proposer", *BOTH),
        {"formats": 1, "answers": 2, "judgements": 1, "audit": 4},
        {
            "questions": [["3+4*5%100", "earlier"], ["3+%100", "other"]],
            "pairs": [["3+4*5%100", "earlier", "3+4=7\n7*5=35\n#35"], ["3+%100", "other", "3+4=8\n#8"]],
        },
    ),
    "search_self_play": Short(
        2, ("proposer", *GENERATOR), {"measured": 4}, settings={"task": SMALL_GRAPH, "batch": {"problems": 12, "rollouts": 4}}
    ),
    "cure": Short(2, ("generator", "tester"), {"tests": 4, "measured": 4}, settings={"task": SMALL_CODE}),
    "absolute_zero": Short(
        2,
        GENERATOR,
        {"measured": 2, "seeds": 1, "seed_rounds": 2},
        settings={"task": SMALL_CODE},
    ),
    "self_play_swe": Short(
        2, ("injector", "generator"), {"injections": 4, "bugs": 4, "measured": 4}, settings={"task": {"name": "bugs"}}
    ),
    "deepseek_math_v2": Short(
        5,
        (*BOTH, "meta_verifier"),
        {"formats": 1, "n_score": 1, "n_quality": 1, "n_verifier": 1, "n_generator": 1, "audit": 4},
    ),
}


def assert_resumes(
    recipe: str, folder: Path, after: int, lead: int | None = None, sampling: Mapping[str, Any] | None = None
) -> None:
    """The short run, whole, and gone on with from its checkpoint after some turns: the same rows and the same weights. `lead`
    are the turns of the lead agent, where others learn too."""
    short = SHORT[recipe]
    kept = {"options": short.options, "keep": {"checkpoint_every": 1, "checkpoints": 10, "rollouts_every": 1}}
    settings = TINY | kept | short.settings
    settings["sampling"] = {**settings.get("sampling", {}), **(sampling or {})}
    for name in ("whole", "cut"):
        milonga.run(recipe, turns=lead or short.turns, out=folder / name, settings=settings, quiet=True)
    for path in sorted((folder / "cut" / "checkpoints").iterdir())[after + 1 :]:
        shutil.rmtree(path)
    milonga.resume(folder / "cut", quiet=True)
    rows = [JsonLines(folder / name / "metrics.jsonl").rows() for name in ("whole", "cut")]
    assert rows[0] == rows[1] and len(rows[0]) == short.turns + 1
    weights = [sorted((folder / name / "models").rglob("model.safetensors")) for name in ("whole", "cut")]
    assert weights[0] and all(a.read_bytes() == b.read_bytes() for a, b in zip(*weights, strict=True))


@contextmanager
def short_loop(recipe: str, folder: Path, settings: Mapping[str, Any] | None = None) -> Iterator[Loop]:
    """The real loop of such a run before its first turn; it measures nothing."""
    short = SHORT[recipe]
    asked = {"recipe": recipe, "turns": 100, "options": short.options}
    plan = resolve([TINY, short.settings, asked, settings or {}])
    plan.recipe.state |= deepcopy(short.state)
    with RunFolder(folder, 1) as opened, LiveView("", None, quiet=True) as view:
        yield Loop(plan, make_engine(plan), opened, view)
