"""What is kept of conversations: the same tokens with it and without; it does not outlive weights, bounds or the talk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine_helpers import ARCHITECTURES, engine_of, model_folder, prompts, requests, sample_rollouts, train_batch
from milonga.engine import Completion, Decoding, History, Request
from milonga.engine.base import Ledger
from milonga.engine.local import LocalEngine, sampler
from milonga.engine.local.history import PAGE, LocalHistory, hash_pages

LOOSE = 2e-5
"""As far as sampling may lie from a fresh pass, twice: two samplings may lie on either side of it."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def engines(root: Path) -> dict[str, LocalEngine]:
    return {arch: remembering(model_folder(root, arch)) for arch in ARCHITECTURES}


def remembering(model: str, rows: int = 512, **options: object) -> LocalEngine:
    engine = engine_of(model, rows, **options)
    engine.history_gib = 1.0
    return engine


def kept_by(engine: LocalEngine) -> LocalHistory:
    history = engine.open_history()
    assert isinstance(history, LocalHistory)
    return history


def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of prompts that each later prefill pads its rows to: what is computed of them, and not taken from pages."""
    counts: list[int] = []
    prefill = sampler._Batch._prefill
    monkeypatch.setattr(
        sampler._Batch,
        "_prefill",
        lambda self: counts.append(self.longest - self.past) or prefill(self),  # type: ignore[func-returns-value]
    )
    return counts


def following(asked: list[Request], done: list[Completion], seed: int, shortest: int = 2) -> list[Request]:
    """The next turn: ids appended to what was asked and answered."""
    said = prompts(len(asked), seed, shortest, 9)
    return requests([np.concatenate([r.context, d.ids, s]) for r, d, s in zip(asked, done, said, strict=True)], seed)


def talk(engine: LocalEngine, history: History | None, turns: int = 3, decoding: Decoding | None = None) -> list[Completion]:
    """Conversations of rows of different lengths, three of each prompt, some of them shorter than a page."""
    asked = requests([context for context in prompts(5, seed=4, longest=30) for _ in range(3)])
    out: list[Completion] = []
    for turn in range(turns):
        done = engine.sample("p", asked, decoding or Decoding(9), history=history)
        out += done
        asked = following(asked, done, turn + 1)
    return out


def check_equal(left: list[Completion], right: list[Completion]) -> None:
    assert [d.ids.tolist() for d in left] == [d.ids.tolist() for d in right]
    assert [(d.finish, d.text) for d in left] == [(d.finish, d.text) for d in right]
    assert max(float(np.abs(a.logprobs - b.logprobs).max()) for a, b in zip(left, right, strict=True)) < LOOSE


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("rows", [512, 4])
def test_turns_are_the_same_with_and_without_what_is_kept(
    engines: dict[str, LocalEngine], arch: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines[arch]
    monkeypatch.setattr(engine, "rows", rows)
    monkeypatch.setattr(engine.policy("p"), "eos", [2, *range(40, 60)])  # rows end, and leave the batch, at different times
    engine.ledger = Ledger()
    without = talk(engine, None)
    books, engine.ledger = engine.ledger.to_json(), Ledger()
    history = kept_by(engine)
    check_equal(without, talk(engine, history))
    assert engine.ledger.to_json() == books, "the books are of the conversation, not of what was kept"
    assert bool(history.kept) == (arch != "gemma2"), "a layer that looks back a few tokens only has no pages"


@pytest.mark.parametrize("decoding", [Decoding(9, greedy=True), Decoding(9, 0.7, stop=("e", "th"))], ids=["greedy", "stops"])
def test_every_way_of_decoding_goes_on_from_pages(engines: dict[str, LocalEngine], decoding: Decoding) -> None:
    engine = engines["qwen2"]
    check_equal(talk(engine, None, decoding=decoding), talk(engine, engine.open_history(), decoding=decoding))


def test_adapters_go_on_from_pages_of_their_own(root: Path) -> None:
    engine = remembering(model_folder(root), lora={"rank": 2, "alpha": 4})
    engine.policy("p").assign([parameter + 0.1 for parameter in engine.policy("p").parameters])
    check_equal(talk(engine, None), talk(engine, engine.open_history()))


def test_a_turn_reads_only_what_is_new(engines: dict[str, LocalEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, history = engines["llama"], engines["llama"].open_history()
    counts = read(monkeypatch)
    asked = requests(prompts(4, shortest=40, longest=50))
    done = engine.sample("p", asked, Decoding(12), history=history)
    again = following(asked, done, 1)
    engine.sample("p", again, Decoding(4), history=history)
    engine.sample("p", again, Decoding(4))
    _, with_it, without = counts
    assert with_it <= 9 + 1 + PAGE - 1 < without, "what was said, the token before it, and less than a page"


def test_rows_of_a_group_share_the_pages_of_their_prompt(engines: dict[str, LocalEngine]) -> None:
    history = kept_by(engines["llama"])
    prompt = prompts(1, shortest=PAGE * 3, longest=PAGE * 3)[0]
    done = engines["llama"].sample("p", requests([prompt] * 6), Decoding(PAGE + 1), history=history)
    whole = {names[3] for d in done if len(names := hash_pages(np.concatenate([prompt, d.ids[:-1]]))) > 3}
    assert len(whole) > 1 and len(history.kept) == 3 + len(whole)


def test_two_branches_go_on_from_the_same_history(engines: dict[str, LocalEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, history = engines["llama"], engines["llama"].open_history()
    asked = requests(prompts(3, shortest=40, longest=50))
    done = engine.sample("p", asked, Decoding(12), history=history)
    branches = [*following(asked, done, 1), *following(asked, done, 2)]
    without = engine.sample("p", branches, Decoding(8))
    counts = read(monkeypatch)
    check_equal(without, engine.sample("p", branches, Decoding(8), history=history))
    one = engine.sample("p", branches[:3], Decoding(8), history=history)
    other = engine.sample("p", branches[3:], Decoding(8), history=history)
    check_equal(without, [*one, *other])
    assert max(counts) <= 9 + 1 + PAGE - 1


def test_learning_ends_what_was_kept(root: Path) -> None:
    engine = remembering(model_folder(root))
    history = kept_by(engine)
    asked = requests(prompts(4, shortest=40, longest=50))
    done = engine.sample("p", asked, Decoding(12), history=history)
    engine.sample("p", asked, Decoding(2), "ref", history=history)
    asked = following(asked, done, 1)
    rollouts = sample_rollouts(engine)
    engine.learn(train_batch(rollouts, [(-1.0) ** i for i in range(len(rollouts))]))
    engine.publish("p")
    before = set(history.kept)
    fresh = engine.sample("p", asked, Decoding(8))
    check_equal(fresh, engine.sample("p", asked, Decoding(8), history=history))
    now = hash_pages(asked[0].context, "p@live")
    assert now[0] in before and now[0] in history.kept, "the same ids, computed anew"
    assert not any(name in history.kept for name in hash_pages(asked[0].context, "p@ref")), "old pages are gone"


def test_versions_of_a_policy_do_not_share_pages(root: Path) -> None:
    engine = remembering(model_folder(root))
    engine.policy("p").assign([p * 1.1 for p in engine.policy("p").parameters])
    history = engine.open_history()
    asked = requests(prompts(4, shortest=40, longest=50))
    for tag in ("live", "ref", "live", "ref"):
        check_equal(engine.sample("p", asked, Decoding(6), tag), engine.sample("p", asked, Decoding(6), tag, history))


@pytest.mark.parametrize("pages", [0, 1, 7])
def test_what_is_kept_stays_within_its_bound(engines: dict[str, LocalEngine], pages: int) -> None:
    engine = engines["llama"]
    each = 2 * 2 * PAGE * 32 * 4  # keys and values, two layers, 32 numbers
    history = LocalHistory(pages * each + each // 2)
    check_equal(talk(engine, None), talk(engine, history))
    assert len(history.kept) == pages and history.size == pages * each == sum(p.nbytes for p in history.kept.values())


def test_the_oldest_pages_leave_first_and_later_ones_before_earlier_ones(engines: dict[str, LocalEngine]) -> None:
    engine = engines["llama"]
    history = LocalHistory(5 * 2 * 2 * PAGE * 32 * 4)
    old, new = prompts(2, shortest=3 * PAGE + 1, longest=3 * PAGE + 1)
    for context in (old, new):
        engine.sample("p", requests([context]), Decoding(1), history=history)
    assert [name in history.kept for name in hash_pages(old, "p@live")] == [True, True, False]
    assert [name in history.kept for name in hash_pages(new, "p@live")] == [True, True, True]


def test_closing_gives_everything_back(engines: dict[str, LocalEngine]) -> None:
    history = kept_by(engines["llama"])
    talk(engines["llama"], history, 1)
    assert history.kept and history.size
    history.close()
    assert not history.kept and not history.size


def test_zero_switches_it_off(root: Path) -> None:
    engine = engine_of(model_folder(root))
    assert engine.history_gib == 0 and type(engine.open_history()) is History
    check_equal(talk(engine, None), talk(engine, engine.open_history()))
