"""Steps and proofs on a file of worked problems, with an ordinary chat model: GAR, GenRM, APRM and DeepSeekMath-V2 in prose.

The model is random, but its tokens are phrases: some of what it writes is a solution, a verdict, a score. So batches are made
of what was really read, and weights must move.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import milonga
from milonga.runfolder.files import JsonLines
from phrases import model_of_phrases

pytest.importorskip("math_verify", reason="answers are graded by math-verify, which is not installed")
SOLVED = ["2 + 2 = 4.\n\n", "3 + 1 = 4.\n\n", "2 + 2 = 5.\n\n", "So it is \\boxed{4}.\n\n", "So it is \\boxed{5}.\n\n"]
JUDGED = ["It adds up.\n", "Verdict: YES\n", "Verdict: NO\n"]
CHECKED = ["Verification: Is the answer correct (Yes/No)?", " Yes", " No", "\n"]
GRADED = [f"Evaluation:\n{found}\nOverall score: \\boxed{{{score}}}\n" for found, score in (
    ("Issue: step 1: no.", "0"), ("Issue: it ends too soon.", "0.5"), ("No issues.", "1"))]  # fmt: skip
PROVED = [*(f"So it is \\boxed{{{answer}}}.\n\n{graded}" for answer in (4, 5) for graded in GRADED), *GRADED]
PHASES = {f"options__{key}": value for key, value in (
    ("n_score", 1), ("n_quality", 1), ("n_verifier", 1), ("n_generator", 1), ("auto_n", 3), ("auto_m", 1), ("auto_k", 1),
    ("audit", 4))}  # fmt: skip
QUICK = {
    "probe": "off",
    "lr": 1e-2,
    "eval.problems": 2,
    "eval.samples": 1,
    "eval.greedy": False,
    "eval.bench": 0,
    "eval.checks": 1,
}


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "problems.jsonl"
    rows = [{"question": f"{n}: what is 2 + 2?", "answer": "4", "solution": "One adds.\n2 + 2 = 4."} for n in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def run(
    recipe: str, phrases: list[str], problems: str, folder: Path, turns: int, **settings: Any
) -> tuple[list[Any], set[str]]:
    """Run a recipe; return its rows of metrics, and the policies whose weights have moved."""
    model = model_of_phrases(folder / "model", phrases)
    settings = QUICK | {key.replace("__", "."): value for key, value in settings.items()}
    sizes = {"problems": 4, "rollouts": 4, "max_tokens": 8, "turns": turns, "quiet": True, "seed": 0}
    milonga.run(recipe, model=model, data=problems, out=folder / "run", settings=settings, **sizes)
    start = load_file(f"{model}/model.safetensors")
    kept = {path.parent.name: load_file(path) for path in (folder / "run" / "models").glob("*/model.safetensors")}
    moved = {name for name, end in kept.items() if any(not start[key].equal(end[key]) for key in start if key in end)}
    return JsonLines(folder / "run" / "metrics.jsonl").rows(), moved


def test_gar_tells_slices_of_worked_solutions_from_its_own(problems: str, tmp_path: Path) -> None:
    options = {"options__sft": 1, "options__disc_group": 2, "options__slice_steps": 1}
    rows, moved = run("gar", SOLVED + JUDGED, problems, tmp_path, 1, task__fields__solution="solution", **options)
    stage_1, game = rows[1], rows[2]
    assert moved == {"generator", "verifier"}
    assert stage_1["learner"] == "verifier" and 0 < stage_1["credit/verifier/kept"] < 1
    assert 0 < game["credit/verifier/yes_on_reference"] < 1 and 0 < game["credit/verifier/yes_on_wrong_answers"] < 1
    assert game["eval/yes_on_right"] is None, "nobody knows which steps are right"
    assert game["rollouts/verifier/invalid_rate"] < 0.8


def test_genrm_learns_from_an_annotator_who_sees_the_reference(problems: str, tmp_path: Path) -> None:
    options = {"options__rationales": 2, "options__per_solution": 2, "options__balance": "batch"}
    rows, moved = run("genrm", SOLVED + CHECKED, problems, tmp_path, 1, **options)
    assert moved == {"verifier"}, "neither the generator nor the annotator learns"
    assert 0 < rows[1]["credit/verifier/kept"] < 1 and rows[1]["flow/demonstrations>verifier"] > 0
    assert rows[1]["rollouts/annotator/invalid_rate"] < 1


def test_aprm_labels_rewritten_steps_by_the_answers_they_lead_to(problems: str, tmp_path: Path) -> None:
    options = {"options__warmup": 1, "options__completions": 2, "options__measured": 6}
    rows, moved = run("aprm", SOLVED, problems, tmp_path, 3, **options)
    assert moved == {"corruptor", "verifier"}
    assert rows[1]["learner"] == "verifier" and rows[1]["flow/answers>verifier"] == 1.0
    game = rows[-1]
    assert game["flow/answers>corruptor"] == 0.5 and 0 <= game["credit/verifier/invalid_rate"] <= 1
    assert any(row.get("eval/accuracy_on_digit") is not None for row in rows)


def test_deepseek_math_v2_labels_proofs_by_votes(problems: str, tmp_path: Path) -> None:
    rows, moved = run("deepseek_math_v2", PROVED, problems, tmp_path, 3, **PHASES)
    assert moved == {"generator", "verifier", "meta_verifier"}
    assert [row["learner"] for row in rows[1:]] == ["verifier", "meta_verifier", "verifier", "generator", "verifier"]
    assert rows[1]["flow/votes>verifier"] == 1.0 and rows[2]["flow/votes>meta_verifier"] == 1.0
    assert rows[4]["flow/verifier>generator"] == pytest.approx(0.88)
    assert all(0 < row[f"credit/{row['learner']}/reward"] < 1 for row in rows[1:])
    assert rows[-1]["eval/verifier/score_on_wrong"] is not None


def test_a_file_of_statements_needs_no_answers(problems: str, tmp_path: Path) -> None:
    rows, moved = run("deepseek_math_v2", PROVED, problems, tmp_path, 1, task__fields__answer="", **PHASES)
    assert moved == {"verifier"} and 0 < rows[1]["credit/verifier/reward"] < 1
    assert rows[-1]["eval/verifier/score_on_wrong"] is None, "nobody knows which are wrong"
