"""The pairs of a run: each once, with its reason, by its ids; rewound and read back with the run, bit for bit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import milonga
from cases import FAST, TINY
from helpers import PROPERTY, make_rollout
from milonga.context import Context
from milonga.objectives import make_objective
from milonga.objectives.losses import Denominators, Rows, TokenTerms, compute_loss, compute_pair_loss
from milonga.patterns.preference_pairs import record_pairs, to_given_rollout
from milonga.preferences import Preference, Preferences, Side
from milonga.runfolder.files import JsonLines
from milonga.runfolder.folder import RunFolder
from milonga.schedule import Cursor, Phase, Schedule, rounds
from milonga.types import Rollouts, TrainBatch
from short import short_loop


def pair(winner: str = "1+1=2", loser: str = "1+1=3", number: int = 0, turn: int = 1, reason: str = "right") -> Preference:
    return Preference(turn, number, "generator", "p", "1+1", Side(winner, (1, 2, 3), 1), Side(loser, (1, 2, 4, 5), 1), reason)


# The book.


def test_a_pair_is_kept_once_in_a_round() -> None:
    book = Preferences()
    assert book.add(pair()) and not book.add(pair(reason="again")) and not book.add(pair(winner=" 1+1=2 \n", turn=2))
    assert book.add(pair(loser="1+1=4")) and book.add(pair(number=1))
    assert [one.reason for one in book.select_round(0)] == ["right", "right"] and len(book.select_round(1)) == 1


def test_sides_that_read_alike_are_no_pair() -> None:
    assert not Preferences().add(pair(winner="A  b", loser="a\nB"))


def test_the_order_of_the_sides_matters() -> None:
    book = Preferences()
    assert book.add(pair("x", "y")) and book.add(pair("y", "x"))


@PROPERTY
@given(st.lists(st.tuples(st.sampled_from("abAB"), st.sampled_from("abc"), st.integers(0, 2)), max_size=30))
def test_whatever_is_added_the_book_has_each_pair_once(added: list[tuple[str, str, int]]) -> None:
    book = Preferences()
    new = [book.add(pair(*one)) for one in added]
    keys = {(won.casefold(), lost, n) for won, lost, n in added if won.casefold() != lost}
    assert sum(new) == len(book.kept) == len(keys)


def test_a_row_reads_back_as_the_pair() -> None:
    one = pair()
    assert Preference.from_json(one.to_json()) == one
    book = Preferences([one.to_json()])
    assert book.kept == [one] and not book.add(one) and book.take_unsaved() == []


def test_each_row_is_handed_out_to_be_saved_once() -> None:
    book = Preferences()
    book.add(pair())
    assert len(book.take_unsaved()) == 1 and book.take_unsaved() == []
    book.add(pair(number=1))
    assert [row["round"] for row in book.take_unsaved()] == [1]


def test_what_is_learned_from_again_has_the_ids_that_were_sampled() -> None:
    rollout = make_rollout(2, 3)
    one = Preference(
        1, 0, "generator", "p", "question", Side.from_rollout(rollout), Side.from_rollout(make_rollout(2, 4)), "because"
    )
    winner, loser = one.to_rollouts("generator")
    assert winner.ids.tolist() == rollout.ids.tolist() and winner.mask.tolist() == rollout.mask.tolist()
    assert (winner.length, loser.length) == (3, 4) and winner.origin == loser.origin == "given"


def test_what_another_version_sampled_is_for_pairs_and_never_for_a_policy_gradient() -> None:
    sampled = make_rollout(2, 3)
    frozen = to_given_rollout(sampled)
    assert frozen.ids is sampled.ids and frozen.mask.tolist() == [False] * 2 + [True] * 3
    with pytest.raises(ValueError, match="given texts cannot enter a policy gradient"):
        TrainBatch("generator", make_objective("grpo").loss, Rollouts([frozen]), advantages=[np.zeros(5)])


# Rounds.


def test_rounds_are_counted_by_the_phases_that_are_alike() -> None:
    one = rounds("generator", 2, "model", "before")
    assert [one.count_rounds(number) for number in range(3)] == [0, 1, 2]
    assert one.advance(Cursor(0, 2), [{}, {}]) == Cursor(1, 0) and one.cycle[0].enter[0].source == "before"
    two = Schedule((Phase("a", 1),), (Phase("b", 1), Phase("c", 1)))
    assert [two.count_rounds(number) for number in range(6)] == [0, 0, 0, 1, 1, 2]
    three = Schedule((Phase("a", 1, name="first"), Phase("a", 1)), (Phase("a", 1),))
    assert [three.count_rounds(number) for number in range(4)] == [0, 0, 1, 2]


# The run folder.


def test_a_rewound_folder_has_the_pairs_up_to_its_turn(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", 1) as folder:
        folder.rewind(3)
        assert not folder.preferences.path.exists(), "a run without pairs has no file of them"
        folder.preferences.append(*(pair(turn=turn, number=turn).to_json() for turn in (1, 2, 2, 3)))
        folder.rewind(2)
        assert [row["turn"] for row in folder.preferences.rows()] == [1, 2, 2]


ROUNDS: dict[str, tuple[int, dict[str, Any]]] = {
    "spin": (5, {"round_turns": 2}),
    "self_rewarding": (4, {"seed_turns": 1, "round_turns": 2, "judge": "oracle"}),
    "v_star": (1, {"rounds": 1, "collect": 4, "train": 1, "rows": 8}),
}
"""Runs that make pairs before and in their fourth turn, and learn from them later."""


@pytest.mark.parametrize("recipe", ROUNDS)
def test_a_run_killed_after_its_pairs_were_written_ends_in_the_same_bits(recipe: str, tmp_path: Path) -> None:
    """The kill comes between the pairs of turn 4 and its metrics row: the pairs are there, the turn is not."""
    turns, options = ROUNDS[recipe]
    settings = TINY | {"keep": {"checkpoint_every": 1, "checkpoints": 9, "rollouts_every": 0}, "batch": {"problems": 8}}
    settings |= {"options": options, "policies": {"generator": FAST}}
    milonga.run(recipe, turns=turns, out=tmp_path / "whole", settings=settings, quiet=True)
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    last = JsonLines(tmp_path / "whole" / "metrics.jsonl").rows()[-1]["turn"]
    for what in ("report.json", "final.json", "models", *(f"checkpoints/turn-{turn:06d}" for turn in range(4, last + 1))):
        path = tmp_path / "run" / what
        shutil.rmtree(path) if path.is_dir() else os.remove(path)
    found, pairs = (JsonLines(tmp_path / "run" / f"{name}.jsonl") for name in ("metrics", "preferences"))
    found.truncate_after(3)
    pairs.truncate_after(4)
    assert min(row["turn"] for row in pairs.rows()) < max(row["turn"] for row in pairs.rows()) == 4
    with pairs.path.open("a") as file:
        file.write('{"turn": 4, "rou')
    milonga.resume(tmp_path / "run", quiet=True)
    for name in ("metrics.jsonl", "preferences.jsonl", "final.json", "models/generator/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("recipe", "reasons"),
    [
        ("spin", {"data against own answer"}),
        ("v_star", {"right against wrong"}),
        ("self_rewarding", {"5 points against 0", "5 points against 2", "2 points against 0"}),
        ("apo", {"people preferred it", "gold against the policy's own answer"}),
    ],
)
def test_preference_recipes_keep_their_pairs_with_reasons(recipe: str, reasons: set[str], tmp_path: Path) -> None:
    with short_loop(recipe, tmp_path / "run", {"batch": {"problems": 8}}) as loop:
        for _ in range(4):
            loop.run_turn()
    rows = loop.folder.preferences.rows()
    assert rows and {row["reason"] for row in rows} <= reasons
    keys = [Preference.from_json(row).key for row in rows]
    assert len(set(keys)) == len(keys) and loop.preferences.kept == Preferences(rows).kept


def test_pairs_that_are_not_new_are_not_learned_from(tmp_path: Path) -> None:
    with short_loop("spin", tmp_path / "run") as loop:
        loop.run_turn()
        one = Context(loop.run_context, 2, "generator", preferences=loop.preferences)
        made = [("why", *kept.to_rollouts("generator")) for kept in loop.preferences.kept]
        assert made and record_pairs(one, made) == []


# The losses of pairs.


def test_the_hinge_by_hand() -> None:
    scores, rows = torch.tensor([2.5, 1.0, 0.2, 0.0]), Rows(torch.ones(4), pairs=torch.tensor([(0, 1), (2, 3)]))
    found = compute_pair_loss(make_objective("dpo", {"pair_loss": "hinge"}).loss, scores, rows, Denominators(4, 4, 2))[0]
    assert float(found) == pytest.approx((0.0 + 0.8) / 2)


def test_imitating_the_winner_too_is_the_mean_over_its_tokens() -> None:
    logp = torch.tensor([-1.0, -3.0, -0.5, -0.5, -4.0])
    rows = Rows(torch.tensor([2, 3]), pairs=torch.tensor([(0, 1)]))
    terms = TokenTerms(logp, torch.zeros(5), logp, torch.tensor([0, 0, 1, 1, 1]), rows, reference=logp)
    found = compute_loss(make_objective("dpo", {"nll_coef": 1.5}).loss, terms, Denominators(5, 2, 1))[0]
    assert float(found) == pytest.approx(np.log(2) + 1.5 * 2.0)
