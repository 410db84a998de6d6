"""Export an agent of a run as a folder to share: a Hugging Face model, its note, and a model card."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any

from milonga.errors import ConfigError, RunFolderError, suggest_name
from milonga.pair import load_finished_run, make_run_context, restrict_to_agents
from milonga.runfolder.files import translate_disk_errors
from milonga.runfolder.note import make_note
from milonga.using.card import list_agents, render_card


def export(
    path: str | Path, agent: str, out: str | Path, *, adapters: bool = False, trust: Collection[str] = ()
) -> dict[str, Any]:
    """Write the newest checkpoint of an agent as a folder that `AutoModelForCausalLM` and vLLM load, with a model card.

    Adapters are merged into their base; with `adapters` only the adapter is written. `trust` names what a run that was not made
    here may use of code, hosts and variables. Returns what was written.
    """
    path, out = Path(path), Path(out)
    found = load_finished_run(path, {"sampling": {"sampler": "auto"}}, trust)
    plan = found.plan
    if agent not in plan.agents:
        raise ConfigError(f"recipe '{plan.config.recipe}' has no agent '{agent}': {suggest_name(agent, plan.agents)}")
    policy = plan.agents[agent]
    if adapters and plan.policies[policy].lora is None:
        raise ConfigError(f"the {agent} of '{path}' was trained with all its weights: it has no adapter to keep")
    draft = _choose_draft_folder(out)
    run_context = make_run_context(restrict_to_agents(plan, [agent]), found.weights)
    with closing(run_context.engine), translate_disk_errors(out):
        try:
            run_context.engine.export(policy, draft, merged=not adapters)
            make_note(plan.config, policy, list_agents(plan, policy), found.turn).write(draft)
            (draft / "README.md").write_text(render_card(path, found, run_context, agent, adapters), encoding="utf-8")
            draft.replace(out)  # an empty folder may lie there
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    size = sum(file.stat().st_size for file in out.iterdir())
    return {"folder": str(out), "agent": agent, "turn": found.turn, "adapters": adapters, "bytes": size}


def _choose_draft_folder(out: Path) -> Path:
    """Return the draft folder to write to before it is renamed to `out`. No file of the user is overwritten."""
    if out.resolve() == Path.cwd():
        raise RunFolderError(f"'{out}' is the folder that you are in; name another one to export to")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunFolderError(f"'{out}' already exists; choose another folder to export to")
    draft = out.with_name(out.name + ".draft")
    if draft.exists():
        raise RunFolderError(f"'{draft}' is in the way, perhaps left by an export that was killed; remove it")
    return draft
