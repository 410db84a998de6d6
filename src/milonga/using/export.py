"""Export an agent of a run as a folder to share: a Hugging Face model, its note, and a model card."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

from milonga.errors import ConfigError, RunFolderError, nearest
from milonga.pair import finished, only, seated
from milonga.run.files import disk_errors
from milonga.run.note import note_of
from milonga.using.card import card, seats_of


def export(path: str | Path, seat: str, out: str | Path, *, adapters: bool = False) -> dict[str, Any]:
    """Write the newest checkpoint of an agent as a folder that `AutoModelForCausalLM` and vLLM load, with a model card.

    Adapters are merged into their base; with `adapters` only the adapter is written. Returns what was written.
    """
    path, out = Path(path), Path(out)
    found = finished(path, {"sampling": {"sampler": "auto"}})
    plan = found.plan
    if seat not in plan.seats:
        raise ConfigError(f"recipe '{plan.config.recipe}' has no seat '{seat}': {nearest(seat, plan.seats)}")
    policy = plan.seats[seat]
    if adapters and plan.policies[policy].lora is None:
        raise ConfigError(f"the {seat} of '{path}' was trained with all its weights: it has no adapter to keep")
    draft = check_place(out)
    setting = seated(only(plan, [seat]), found.weights)
    with closing(setting.engine), disk_errors(out):
        try:
            setting.engine.export(policy, draft, merged=not adapters)
            note_of(plan.config, policy, seats_of(plan, policy), found.turn).write(draft)
            (draft / "README.md").write_text(card(path, found, setting, seat, adapters), encoding="utf-8")
            draft.replace(out)  # an empty folder may lie there
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    size = sum(file.stat().st_size for file in out.iterdir())
    return {"folder": str(out), "seat": seat, "turn": found.turn, "adapters": adapters, "bytes": size}


def check_place(out: Path) -> Path:
    """Return the draft folder to write to before it is renamed to `out`. No file of the user is overwritten."""
    if out.resolve() == Path.cwd():
        raise RunFolderError(f"'{out}' is the folder that you are in; name another one to export to")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunFolderError(f"'{out}' already exists; choose another folder to export to")
    draft = out.with_name(out.name + ".draft")
    if draft.exists():
        raise RunFolderError(f"'{draft}' is in the way, perhaps left by an export that was killed; remove it")
    return draft
