"""Recipes on the forms of data that users bring, in prose: batches are made, and weights move.

The embedded model cannot read prose; what it writes is short, ends, and is as good as any to learn from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import milonga
from cases import QUICK
from engine_helpers import model_folder
from hidden import same_after_a_cut
from milonga.errors import ConfigError, RunFolderError, UserError
from milonga.loading import name_object
from milonga.resolve import resolve
from milonga.runfolder.files import JsonLines
from milonga.tasks import make_task

pytest.importorskip("math_verify", reason="answers are graded by math-verify, which is not installed")
WORDS = ("one", "two", "three", "four", "five", "six", "seven")
SMALL: dict[str, Any] = {
    key: QUICK[key] | more if (more := {"eval": {"problems": 4, "samples": 1, "bench": 4}}.get(key)) else value
    for key, value in QUICK.items()
    if key not in ("task", "batch")
}
SETTINGS = SMALL | {
    "dialect": "plain",
    "batch": {"problems": 4, "rollouts": 4},
    "sampling": {"max_tokens": 24},
}
REPLIES = [{"prompt": f"{n}+{n}%100", "completion": f"It is {2 * n % 100}."} for n in range(60)]
PAIRS = [{"prompt": row["prompt"], "chosen": row["completion"], "rejected": "I do not know."} for row in REPLIES]
STEPS = [
    {"problem": f"{n}+{n}", "steps": [f"{n}+{n}={2 * n}", f"So\n\nit is {2 * n + n % 2}."], "label": 1 if n % 2 else -1}
    for n in range(60)
]
TEXTS = [{"text": " ".join(WORDS[(n + k) % 7] for k in range(10)) + f" {n}"} for n in range(60)]
LEVELS = [{"question": f"{n}+{n}", "answer": str(2 * n), "level": f"Level {1 + n % 3}"} for n in range(60)]


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A random model with a chat template and room for long prompts, as the generator."""
    folder = model_folder(tmp_path_factory.mktemp("models"), kind="chat")
    config = Path(folder) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 2048}))
    return {"generator": {"model": folder}}


def write(folder: Path, rows: list[dict[str, Any]]) -> str:
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder / "data.jsonl")


def run(recipe: str, folder: Path, rows: list[dict[str, Any]], task: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    """Run two turns of the lead agent and return the rows of its metrics."""
    task = {"name": "jsonl", "path": write(folder, rows), "dev": 8, "test": 8, **task}
    named = {"generator": {"model": "embedded"}} | settings.pop("policies", {})
    milonga.run(
        recipe, turns=2, out=folder / "run", settings=SETTINGS | {"task": task, "policies": named} | settings, quiet=True
    )
    return JsonLines(folder / "run" / "metrics.jsonl").rows()


def moved(rows: list[dict[str, Any]], policy: str) -> bool:
    norms = [row.get(f"learn/{policy}/grad_norm") for row in rows]
    return any(norm and norm > 0 for norm in norms)


def test_spin_learns_from_a_file_of_replies(tmp_path: Path) -> None:
    rows = run("spin", tmp_path, REPLIES, {"form": "sft"})
    pairs = JsonLines(tmp_path / "run" / "preferences.jsonl").rows()
    known = {row["prompt"]: row["completion"] for row in REPLIES}
    assert moved(rows, "generator") and pairs
    assert all(known[pair["question"]] == pair["winner"] != pair["loser"] for pair in pairs)
    ends = {pair[ids][-1] for pair in pairs for ids in ("winner_ids", "loser_ids")}
    assert len(ends) == 1, "one side has an end that the other lacks: a free cue"


def test_sft_imitates_replies_of_which_no_answer_is_known(chat: dict[str, Any], tmp_path: Path) -> None:
    rows = run("sft", tmp_path, REPLIES, {"form": "sft"}, policies=chat, options={"n_verifier": 0})
    assert moved(rows, "generator") and rows[-1]["credit/generator/kept"] == 1.0


def test_apo_learns_from_preferences_whose_chosen_side_is_gold(tmp_path: Path) -> None:
    rows = run("apo", tmp_path, PAIRS, {"form": "preferences"}, options={"rm_turns": 2})
    pairs = JsonLines(tmp_path / "run" / "preferences.jsonl").rows()
    known = {row["prompt"]: row for row in PAIRS}
    human = [pair for pair in pairs if pair["reason"] == "people preferred it"]
    own = [pair for pair in pairs if pair["reason"].startswith("gold")]
    assert human and own and moved(rows, "verifier") and moved(rows, "generator")
    assert all(pair["winner"] == known[pair["question"]]["chosen"] for pair in pairs)
    assert all(pair["loser"] == known[pair["question"]]["rejected"] for pair in human)
    assert rows[-1]["eval/verifier/human_accuracy"] is not None and rows[-1]["eval/generator/late_errors"] is None


def test_apo_learns_from_replies_without_pairs_of_people_and_refuses_what_needs_them(tmp_path: Path) -> None:
    rows = run("apo", tmp_path, REPLIES, {"form": "sft"}, options={"rm_turns": 1})
    assert moved(rows, "verifier") and moved(rows, "generator")
    learned = next(row for row in rows if row["learner"] == "verifier")
    assert learned["flow/answers>verifier"] == 0.0 and learned["flow/demonstrations>verifier"] == 1.0
    layers = {"recipe": "apo", "task": {"name": "jsonl", "path": str(tmp_path / "data.jsonl"), "form": "sft"}}
    with pytest.raises(ConfigError, match="needs pairs that people preferred, which task 'jsonl' does not have"):
        resolve([layers, {"options": {"rm": "human"}, "policies": {"generator": {"model": "embedded"}}}])


def test_lets_verify_learns_labels_where_the_file_says_that_steps_end(tmp_path: Path) -> None:
    """A step with a blank line in it is one step: a reader of prose would have found two, and no label would fit."""
    rows = run("lets_verify", tmp_path, STEPS, {"form": "steps"}, options={"label_budget": 2})
    assert [row["credit/verifier/labels"] for row in rows[1:]] == [16.0, 16.0] and moved(rows, "verifier")
    assert rows[-1]["eval/verifier/bench_invalid_rate"] == 0.0 and rows[-1]["eval/verifier/f1"] is not None
    assert rows[-1]["learn/verifier/steps"] == 4 and "learn/generator/loss" not in rows[-1]


def test_rlp_thinks_about_plain_text(tmp_path: Path) -> None:
    options = {"format_turns": 0, "measured": 2, "next_token": "also"}
    brief = {"generator": {"model": "embedded", "example": False}}
    rows = run("rlp", tmp_path, TEXTS, {"form": "text"}, options=options, policies=brief, sampling={"max_tokens": 8})
    assert moved(rows, "generator") and rows[-1]["eval/generator/ce_thought"] > 0
    assert rows[-1]["credit/generator/reward_spread"] > 0 and "eval/generator/accuracy" not in rows[-1]


def test_the_curriculum_draws_levels_of_a_file(chat: dict[str, Any], tmp_path: Path) -> None:
    options = {"warmup": 0, "n_verifier": 0, "formats": 1, "explore": 0.5}
    rows = run("curriculum", tmp_path, LEVELS, {}, policies=chat, options=options)
    assert rows[-1]["eval/readable_choices"] is not None and moved(rows, "proposer")
    task = make_task({"name": "jsonl", "path": str(tmp_path / "data.jsonl"), "dev": 8, "test": 8})
    assert task.levels == (1, 2, 3)
    assert all(int(problem.text.split("+")[0]) % 3 == 1 for problem in task.at_level(2).draw_problems("train", 0, 9))


# Pass rates.


CHOSEN = SMALL | {
    "recipe": "grpo",
    "task": {"name": "chain", "ops": 4, "pass_rate": [0.1, 0.9], "pass_rate_samples": 4, "pass_rate_problems": 24},
    "batch": {"problems": 4, "rollouts": 4},
    "keep": {"checkpoint_every": 1, "rollouts_every": 1},
    "turns": 2,
}


def test_problems_are_chosen_by_pass_rate_and_a_resumed_run_keeps_them_to_the_byte(tmp_path: Path) -> None:
    settings = {key: value for key, value in CHOSEN.items() if key != "recipe"}
    assert same_after_a_cut("grpo", 2, settings, tmp_path / "run")
    rates = dict(json.loads((tmp_path / "run" / "pass_rates.json").read_text())["rates"])
    kept = [index for index, rate in rates.items() if 0.1 <= rate <= 0.9]
    assert len(rates) == 24 and 4 < len(kept) < 24
    rows = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "run" / "checkpoints")  # killed before the first one: all of it begins again, the measuring too
    milonga.resume(tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == rows
    shutil.rmtree(sorted((tmp_path / "run" / "checkpoints").iterdir())[-1])
    (tmp_path / "run" / "pass_rates.json").unlink()
    with pytest.raises(RunFolderError, match=r"pass_rates\.json: missing"):
        milonga.resume(tmp_path / "run", quiet=True)
    with pytest.raises(RunFolderError, match="is missing: the pass rates"):
        milonga.resume(tmp_path / "run", quiet=True, accept_loss=True)


def test_only_train_problems_are_chosen_and_they_wrap_around() -> None:
    task = make_task({"name": "chain", "ops": 2, "pass_rate": [0, 1]})
    whole = [task.problem("train", index) for index in range(6)]
    held_out = task.draw_problems("dev", 0, 6)
    task.kept = {1: 0.5, 4: 0.25}
    assert task.draw_problems("train", 0, 5) == [whole[1], whole[4], whole[1], whole[4], whole[1]]
    assert task.draw_problems("dev", 0, 6) == held_out
    again = make_task({"name": name_object(task)})
    assert again is task and again.draw_problems("train", 0, 6) == whole, "another run chooses anew"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": {"pass_rate": [0.9, 0.1]}}, r"pass_rate=\[0\.9, 0\.1\] is not a range of shares"),
        ({"task": {"pass_rate_samples": 4}}, r"'task\.pass_rate' is missing"),
        ({"recipe": "rlp", "task": {"pass_rate": [0, 1]}}, "has no agent that solves the task's problems"),
        ({"recipe": "curriculum", "task": {"pass_rate": [0, 1]}}, r"or choose by it: options\.levels=pass_rate"),
        ({"recipe": "curriculum", "options": {"levels": "pass_rate"}}, r"set task\.pass_rate=\[0,1\]"),
    ],
)
def test_a_pass_rate_that_cannot_be_used_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve([{"recipe": "grpo", "task": {"name": "chain"}}, settings])


def test_a_run_without_a_problem_left_says_so_in_one_line(tmp_path: Path) -> None:
    config = CHOSEN | {
        "task": {"name": "chain", "ops": 12, "pass_rate": [0.9, 0.95], "pass_rate_problems": 4, "pass_rate_samples": 1}
    }
    with pytest.raises(UserError, match=r"none of 4 train problems has a pass rate within task\.pass_rate=\[0\.9,0\.95\]"):
        milonga.run(str(config.pop("recipe")), out=tmp_path / "run", settings=config, quiet=True)


def test_the_curriculum_chooses_among_pass_rates(tmp_path: Path) -> None:
    options = {"warmup": 0, "n_verifier": 0, "formats": 0, "levels": "pass_rate", "choose": "fixed"}
    task = CHOSEN["task"] | {"pass_rate": [0, 1]}
    settings = SMALL | {"task": task, "batch": {"problems": 4, "rollouts": 2}, "options": options}
    milonga.run("curriculum", turns=1, out=tmp_path / "run", settings=settings, quiet=True)
    assert JsonLines(tmp_path / "run" / "metrics.jsonl").rows()[-1]["learn/generator/version"] == 1
