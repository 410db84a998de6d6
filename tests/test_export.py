"""Exported agents: ordinary folders for transformers and peft, with a card, that another run can begin from."""

from __future__ import annotations

import ast
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from cases import TINY
from engine_helpers import chat_folder
from helpers import Command
from milonga.api import plan_run, run
from milonga.cli.new import write_skeleton
from milonga.config import merge
from milonga.errors import ConfigError, RunFolderError
from milonga.pair import Pair
from milonga.report.markdown import render_fenced
from milonga.runfolder.note import FILE, Note, find_dialect, find_origin, read_note
from milonga.tasks.foreign import make_foreign_problem
from milonga.using.card import shorten_path, strip_paths
from milonga.using.export import export


@pytest.fixture(scope="module")
def exported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("exported")
    for agent in ("generator", "verifier"):
        export(trained, agent, root / agent)
    return {agent: root / agent for agent in ("generator", "verifier")}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an adapter for each agent."""
    folder = tmp_path_factory.mktemp("adapted") / "run"
    settings = merge(TINY, {"binding": "lora", "options": {"warmup": 1, "n_generator": 1}})
    run("tango", turns=1, out=folder, settings=settings, quiet=True)
    return folder


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=torch.arange(40, 70)[None]).logits
    return found


def policy_of(pair: Pair, agent: str) -> Any:
    policy = pair.engine.policies[agent]  # type: ignore[attr-defined]
    policy.activate()
    return policy


@pytest.mark.parametrize("agent", ["generator", "verifier"])
def test_transformers_computes_what_the_run_computed(trained: Path, exported: dict[str, Path], agent: str) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(exported[agent])
    start = AutoModelForCausalLM.from_pretrained(Path(__file__).parents[1] / "src/milonga/embedded/base", dtype=torch.float32)
    with Pair.open(trained, [agent]) as pair:
        assert torch.equal(logits_of(theirs), logits_of(policy_of(pair, agent).model))
    assert not torch.equal(logits_of(theirs), logits_of(start)), "it was trained"


def test_the_prompt_on_the_card_gives_the_output_on_the_card(exported: dict[str, Path]) -> None:
    """What the card says is what transformers' own pipeline gives, by the line that the card shows."""
    for folder in exported.values():
        check_card(folder, 64)


def check_card(folder: Path, tokens: int) -> str:
    """Check that the prompt on the card gives the output on the card; return the prompt."""
    card = (folder / "README.md").read_text()
    prompt = ast.literal_eval(card.partition("PROMPT = ")[2].partition("```")[0])
    output = card.partition("What it answers, greedily")[2].partition(":\n\n```\n")[2].partition("\n```")[0]
    ask = pipeline("text-generation", str(folder))
    said = ask(prompt, add_special_tokens=False, return_full_text=False, do_sample=False, max_new_tokens=tokens)
    assert render_fenced(said[0]["generated_text"].rstrip(), "") == f"```\n{output}\n```"
    assert "add_special_tokens=False, return_full_text=False" in card
    return str(prompt)


def test_a_card_has_the_prompt_in_prose_of_problems_without_worked_solutions(tmp_path: Path) -> None:
    rows = [{"question": f"How much is {a} and 2?", "answer": str(a + 2)} for a in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {"dialect": "plain", "task": {"name": "jsonl", "path": str(tmp_path / "rows.jsonl")}, "sampling": {"max_tokens": 8}}
    models = dict.fromkeys(("generator", "verifier"), chat_folder(tmp_path))
    settings = merge(TINY, own | {"options": {"warmup": 0, "n_generator": 1}})
    run("tango", turns=1, out=tmp_path / "run", models=models, settings=settings, quiet=True)
    for agent, tokens in (("generator", 8), ("verifier", 16)):
        export(tmp_path / "run", agent, tmp_path / agent)
        prompt = check_card(tmp_path / agent, tokens)
        assert "How much is " in prompt and ("The answer is " in prompt) == (agent == "verifier")
        assert f"greedily (cut after {tokens} tokens)" in (tmp_path / agent / "README.md").read_text()


def test_the_card_is_filled_from_the_run(trained: Path, exported: dict[str, Path]) -> None:
    card = (exported["verifier"] / "README.md").read_text()
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    last = next(row for row in reversed(rows) if "eval/verifier/f1" in row)
    assert f"| verifier/f1 | {rows[0]['eval/verifier/f1']:.3f} | {last['eval/verifier/f1']:.3f} |" in card
    for said in (
        "# The verifier of a tango run",
        "arXiv 2505.15034",
        "chain (ops=2)",
        f"torch {version('torch')}",  # as installed: torch itself may add of which CUDA it is
        "vllm serve",
    ):
        assert said in card, said
    assert "generator/accuracy" not in card and str(trained.parent) not in card


def test_a_note_lies_beside_what_a_run_keeps_and_what_is_exported(trained: Path, exported: dict[str, Path]) -> None:
    for folder in (trained / "models" / "generator", exported["generator"]):
        assert read_note(str(folder)) == Note(("generator",), "terse", "embedded", "tango", "chain", 2)
    assert (find_dialect("embedded"), find_dialect("a/model"), find_origin("a/model")) == ("terse", "plain", "a/model")


def test_an_exported_folder_starts_another_run_as_it_is(exported: dict[str, Path], tmp_path: Path) -> None:
    models = {agent: str(folder) for agent, folder in exported.items()}
    plan = plan_run("tango", models=models)
    assert plan.config.dialect == "terse" and plan.policies["generator"].learning_rate == 1e-4
    lora = plan_run("tango", models=models | {"verifier": models["generator"]}, settings=[{"binding": "lora"}])
    assert lora.policies["generator"].learning_rate == 5e-4
    assert plan_run(
        "grpo", models={"generator": models["generator"]}, settings=[{"policies": {"generator": {"lr": 1e-3}}}]
    ).policies["generator"].learning_rate == pytest.approx(1e-3)
    settings = TINY | {"options": {"warmup": 1, "n_generator": 1}}
    report = run("tango", turns=1, out=tmp_path / "run", models=models, settings=settings, quiet=True)
    assert report["turns"] == 2
    note = read_note(str(tmp_path / "run" / "models" / "verifier"))
    assert note is not None and note.origin == "embedded" and note.dialect == "terse"


def test_an_exported_model_is_used_without_its_run(exported: dict[str, Path], trained: Path) -> None:
    problems = [make_foreign_problem("a", "3+4%100")]
    with Pair.bare(generator=str(exported["generator"]), verifier=str(exported["verifier"]), device="cpu") as bare:
        solutions = bare.solve(problems, greedy=True)
        verdict = bare.verify(solutions, greedy=True)[0]
    with Pair.open(trained) as pair:
        ours = pair.solve(problems, greedy=True)
        assert [t.text for t in solutions] == [t.text for t in ours]
        assert verdict.checks[0].text == pair.verify(ours, greedy=True)[0].checks[0].text


def test_adapters_are_merged_or_kept(adapted: Path, tmp_path: Path) -> None:
    import peft

    export(adapted, "verifier", tmp_path / "merged")
    export(adapted, "verifier", tmp_path / "kept", adapters=True)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert not any("lora" in name for name, _ in merged.named_parameters())
    with Pair.open(adapted, ["verifier"]) as pair:
        policy = policy_of(pair, "verifier")
        ours = logits_of(policy.model)
        with policy.model.disable_adapter():
            base = logits_of(policy.model)
    assert torch.allclose(logits_of(merged), ours, atol=1e-4) and not torch.allclose(base, ours, atol=1e-3)
    embedded = Path(__file__).parents[1] / "src/milonga/embedded/base"
    start = AutoModelForCausalLM.from_pretrained(embedded, dtype=torch.float32)
    kept = peft.PeftModel.from_pretrained(start, tmp_path / "kept").eval()
    assert torch.equal(logits_of(kept), ours)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").encode("1+1") == AutoTokenizer.from_pretrained(embedded).encode(
        "1+1"
    )
    assert "LoRA of rank 16, merged" in (tmp_path / "merged" / "README.md").read_text()
    assert "PeftModel" in (tmp_path / "kept" / "README.md").read_text()
    with pytest.raises(ConfigError, match=r"is an adapter, not a model: .* 'milonga export'"):
        Pair.bare(generator=str(tmp_path / "kept"), device="cpu")
    with pytest.raises(ConfigError, match=r"is an adapter, not a model: use the run folder .* without --adapters$"):
        Pair.open(tmp_path / "kept")


def test_the_command_says_what_it_wrote_and_refuses_what_is_there(milonga: Command, trained: Path, tmp_path: Path) -> None:
    done = milonga("export", trained, "generator", tmp_path / "out", "--json")
    assert done.code == 0 and done.json["turn"] == 2 and done.json["bytes"] > 7e6
    assert milonga("export", trained, "generator", tmp_path / "out").err.endswith("choose another folder to export to\n")
    with pytest.raises(RunFolderError, match="already exists"):
        export(trained, "generator", tmp_path / "out")
    with pytest.raises(ConfigError, match="no adapter to keep"):
        export(trained, "generator", tmp_path / "other", adapters=True)
    assert not (tmp_path / "other").exists() and not list(tmp_path.glob("*.draft"))


def test_a_recipe_of_the_users_own_is_exported_without_its_place(tmp_path: Path) -> None:
    recipe = write_skeleton("recipe", "short_answers", tmp_path / "mine")["name"]
    run(recipe, turns=1, out=tmp_path / "run", settings=TINY, quiet=True)
    export(tmp_path / "run", "generator", tmp_path / "out")
    card, note = ((tmp_path / "out" / name).read_text() for name in ("README.md", FILE))
    assert "# The generator of a short_answers run" in card and "milonga run recipe.py:ShortAnswers --generator" in card
    assert str(tmp_path) not in card + note


def test_an_export_that_fails_leaves_nothing_and_takes_nothing_away(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out.draft").mkdir()
    (tmp_path / "out.draft" / "mine").write_text("mine")
    with pytest.raises(RunFolderError, match=r"out\.draft' is in the way"):
        export(trained, "generator", tmp_path / "out")
    assert (tmp_path / "out.draft" / "mine").read_text() == "mine"
    monkeypatch.setattr("milonga.using.export.render_card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(trained, "generator", tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["out.draft"]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(RunFolderError, match="the folder that you are in"):
        export(trained, "generator", ".")


def test_a_scorer_says_how_it_is_read(tmp_path: Path) -> None:
    run("lets_verify", turns=1, out=tmp_path / "run", settings=TINY, quiet=True)
    export(tmp_path / "run", "verifier", tmp_path / "out")
    assert (tmp_path / "out" / "value_head.safetensors").exists()
    assert "`value_head.safetensors` (`weight`, `bias`)" in (tmp_path / "out" / "README.md").read_text()


def test_a_damaged_note_is_named(tmp_path: Path) -> None:
    for text in ("", "[]", '{"agents": []}', '{"agents": 3, "x": 1}'):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(ConfigError, match="is not a note that milonga wrote"):
            plan_run("grpo", models={"generator": str(tmp_path)})


def test_what_a_model_wrote_cannot_leave_its_block() -> None:
    text = render_fenced("```\n<script>", "")
    assert text.startswith("````\n") and text.endswith("\n````")


def test_places_of_the_trainers_machine_are_left_out() -> None:
    raw = {"task": {"path": "/home/me/secret/data.jsonl"}, "models": ["~/m", "a/hub-name"], "n": 3}
    assert strip_paths(raw) == {"task": {"path": "data.jsonl"}, "models": ["m", "a/hub-name"], "n": 3}
    assert shorten_path("../x/y.py") == "y.py"
