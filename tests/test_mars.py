"""MARS: haystacks, packing, two systems' credit and balance by hand, and who is trained on which tokens."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import milonga
from cases import TINY
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.errors import ConfigError
from milonga.resolve import resolve
from milonga.roles.searcher import Condenser, Note, Request, SearchPlanner, make_document_bin
from milonga.runfolder.files import JsonLines
from milonga.systems.mars.credit import balance_groups, standard_scores, trajectory_weights
from milonga.systems.mars.recipe import AGENTS, FORMAT, get_asker
from milonga.systems.mars.research import Desk, is_request, map_turns_to_ends, pack_first_fit
from milonga.systems.mars.roles import Planner, Reader
from milonga.tasks import make_task
from milonga.tasks.haystack import extract_names, extract_question, extract_thread, join_threads, parse_documents
from milonga.types import Grade, Problem, Rollout, Rollouts, Solution
from scripted import QUICK as SCRIPTED
from scripted import make_chat_model, script_model
from short import SHORT, assert_resumes

HIDDEN = Problem("chain", "37+5*3%100", "26", {"start": 37, "chain": [("+", 5), ("*", 3)], "mod": 100})
HAY = Problem("p", "ba%100\na:r*3tean\nb:3m7+o5n\nc:u-sa4hk", "26", {"inner": HIDDEN})

# The task.


@pytest.mark.parametrize("kinds", ["chain", "letters", "both"])
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_what_the_named_documents_say_is_the_hidden_problem(kinds: str, split: Any) -> None:
    task = make_task({"name": "haystack", "kinds": kinds, "documents": 4, "parts": 3, "ops": 3})
    for index in range(20):
        problem = task.problem(split, index)
        question, documents = extract_question(problem.text), parse_documents(problem.text)
        assert len(documents) == 4 and len({len(text) for text in documents.values()}) == 1
        threads = [extract_thread(documents[name], question.endswith("&")) for name in extract_names(question)]
        assert len(threads) == 3 and join_threads(threads, question) == problem.data["inner"].text
        right, wrong = task.demonstrate(problem, random.Random(0)), task.demonstrate_flawed(problem, random.Random(0))
        assert task.grade(problem, right.answer, right.steps) == Grade(True, right.truth) and all(right.truth)
        assert wrong is not None and task.grade(problem, wrong.answer, wrong.steps).steps == wrong.truth
        assert task.redo_steps(problem, right.steps) == right.checks and task.problem(split, index) == problem


def test_the_example_of_the_task() -> None:
    documents = parse_documents(HAY.text)
    assert [extract_thread(documents[name], False) for name in "ba"] == ["37+5", "*3"]
    assert join_threads(["37+5", "*3"], extract_question(HAY.text)) == "37+5*3%100"
    assert join_threads([extract_thread(documents[name], True) for name in "ba"], "ba&") == "mon rtean"


def test_levels_are_levels_of_noise() -> None:
    task = make_task({"name": "haystack", "min_noise": 2, "noise": 5})
    assert task.levels == (2, 3, 4, 5)

    def letters(level: int) -> int:
        texts = [parse_documents(task.at_level(level).problem("train", n).text).values() for n in range(20)]
        return min(len(extract_thread(document, True)) for some in texts for document in some)

    assert letters(2) == 2 and letters(5) == 5
    harder = task.make_harder()
    assert harder is not None and harder.options.noise == 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parts": 4, "documents": 3}, "more than documents"),
        ({"parts": 3, "ops": 1}, "too few"),
        ({"min_noise": 9}, "larger"),
        ({"kinds": "both", "noise": 1}, "two"),
    ],
)
def test_impossible_haystacks_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_task({"name": "haystack"} | options)


# Packing.


def test_packing_never_overflows_and_keeps_every_text() -> None:
    rng = random.Random(0)
    for _ in range(200):
        room = rng.randint(5, 30)
        lengths = [rng.randint(1, room) for _ in range(rng.randint(0, 12))]
        bins = pack_first_fit(lengths, room)
        assert sorted(n for one in bins for n in one) == list(range(len(lengths)))
        assert all(sum(lengths[n] for n in one) <= room for one in bins)
        # No bin could have been poured into another: at most one is half empty.
        assert sum(2 * sum(lengths[n] for n in one) <= room for one in bins) <= 1


def test_packing_by_hand() -> None:
    assert pack_first_fit([4, 6, 3, 7], 10) == [[0, 1], [2, 3]]
    assert pack_first_fit([5, 5, 5], 10) == [[0, 1], [2]]  # equal texts stay in their order
    assert pack_first_fit([], 10) == []
    with pytest.raises(ValueError, match="does not fit"):
        pack_first_fit([11], 10)


# Credit by hand.


def test_chatty_trajectories_own_the_baseline_unless_each_counts_once() -> None:
    """Two trajectories: one right with one note, one wrong with nine."""
    rewards, ids = np.array([1.0] + [0.0] * 9), ["right"] + ["wrong"] * 9
    groups = ["question"] * 10
    sample = standard_scores(rewards, groups)
    assert sample[0] == pytest.approx(3.0) and sample[1:] == pytest.approx([-1 / 3] * 9)
    assert standard_scores(rewards, groups, trajectory_weights(ids)) == pytest.approx([1.0] + [-1.0] * 9)
    assert standard_scores(np.array([1.0, 0.0]), ["q", "q"]).tolist() == [1.0, -1.0]
    assert standard_scores(np.array([1.0, 0.0]), ["q", "q"], std="sample") == pytest.approx([2**-0.5, -(2**-0.5)])


def test_questions_that_are_all_alike_or_alone_give_nothing() -> None:
    assert standard_scores(np.array([1.0, 1.0, 0.0]), ["a", "a", "b"]).tolist() == [0.0, 0.0, 0.0]
    assert (
        standard_scores(np.zeros(0), []).tolist() == [] and balance_groups(np.zeros(0), [], 4, "weight", random.Random(0)) == []
    )


@pytest.mark.parametrize("count", [1, 3, 8, 20])
def test_drawing_brings_every_question_to_the_same_count(count: int) -> None:
    scores, groups = np.linspace(-1, 1, count), ["q"] * count
    for how in ("uniform", "abs_adv"):
        weights = balance_groups(scores, groups, 8, how, random.Random(1))
        assert sum(weights) == 8 and all(w == int(w) for w in weights)
        assert (max(weights) == 1.0) == (count >= 8) and (count > 8 or min(weights) >= 1.0)
    assert balance_groups(scores, groups, 8, "weight", random.Random(1)) == [min(4.0, 8 / count)] * count
    assert balance_groups(scores, groups, 8, "none", random.Random(1)) == [1.0] * count


def test_large_advantages_are_drawn_first() -> None:
    scores = np.array([0.0] * 10 + [2.0] * 4)
    assert balance_groups(scores, ["q"] * 14, 4, "abs_adv", random.Random(0)) == [0.0] * 10 + [1.0] * 4


# Roles.


@pytest.mark.parametrize("dialect", ["terse", "tagged"])
def test_the_planner_sees_no_document_and_the_reader_no_question(dialect: Any) -> None:
    planner, reader = Planner(dialect), Reader(dialect)
    asked, told = (
        "".join(p.text for p in prompt) for prompt in (planner.prompt(HAY), planner.render_notes(HAY, ["37+5", "*3"]))
    )
    assert (
        "ba%100" in asked
        and "37+5*3%100" in told
        and not any(text in asked + told for text in parse_documents(HAY.text).values())
    )
    talk = Rollout.from_text("t", "generator", HAY, "@ba=", planner.parse("@ba="))
    target = make_document_bin(talk, 0, ["3m7+o5n", "r*3tean"], "=")
    shown = "".join(p.text for p in reader.prompt(HAY, target))
    assert "3m7+o5n\nr*3tean" in shown and "ba%100" not in shown and "u-sa4hk" not in shown
    assert reader.write_exact_note(target) == "37+5\n*3" and reader.parse(reader.write_exact_note(target), target).is_valid
    assert not reader.parse("37+5", target).is_valid and not reader.parse("", target).is_valid
    lost = reader.write_noisy_note(target, 1.0, random.Random(0))
    assert len(lost) == len(reader.write_exact_note(target)) - 1 and lost.count("\n") == 1


def test_requests_are_read_back_and_are_no_answers() -> None:
    planner = Planner("terse")
    value = planner.parse(planner.write("ba", "~")).value
    assert isinstance(value, Request) and (value.names, value.purpose, value.answer) == ("ba", "~", None)
    assert planner.parse("@aab=").value.names == "ab"
    assert not any(planner.parse(text).is_valid for text in ("@", "@=", "@ab", "@a b="))
    assert planner.parse("3+4=7\n#7").value.answer == "7"


# At the context.


@cache
def engine() -> Any:
    return make_engine(plan())


def plan(binding: str = "shared", **options: Any) -> Any:
    task = {"name": "haystack", "noise": 2}
    return resolve([TINY, {"recipe": "mars", "task": task, "binding": binding, "options": {"bin": 9} | options}])


def ctx(p: Any, phase: str = "") -> Context:
    return Context(
        RunContext(engine(), p.task, p.roles, dict.fromkeys(AGENTS, "generator"), p.config.sampling, 0, 4),
        1,
        "generator",
        phase,
    )


def find(talk: Rollout) -> list[str]:
    return Planner("terse").find_documents(make_task({"name": "haystack"}), talk)


def trajectories(p: Any, one: Context, right: Any = lambda place: place % 2) -> Rollouts:
    """Two trajectories of each of two problems, as if the planner had asked: the base never does by itself."""
    problems = one.problems(2)
    requests = one.write(
        "generator",
        [q for q in problems for _ in range(2)],
        [f"@{extract_names(extract_question(q.text))}=" for q in problems for _ in range(2)],
    )
    notes, lines = [], {}
    bins = [b for talk in requests for b in p.recipe.desk.pack_documents(one, talk, find(talk))]
    notes = one.ask("reader", Rollouts(bins))
    talks = p.recipe.desk.reply_with_notes(one, requests, notes, lines)
    for place, talk in enumerate(talks):
        talk.grade = Grade(bool(right(place)), None)
    return Rollouts([*talks, *notes])


def test_notes_are_context_for_the_planner_and_trained_in_the_readers_rows_alone() -> None:
    p = plan()
    rollouts = trajectories(p, ctx(p))
    talks, notes = (rollouts.of(agent) for agent in AGENTS)
    assert len(talks) == 4 and len(notes) == 8  # a bin for each document
    for talk in talks:
        told = talk.segments[-2]
        assert told.producer == "reader" and not told.trained and talk.segments[-1].trained
        mine = [note for note in notes if map_turns_to_ends(talks)[get_asker(note).id] is talk]
        assert len(mine) == 2
        said = engine().policy("generator").codec.decode_ids(talk.ids[told.start : told.end].tolist()).removeprefix("<eos>")
        lines = [line for note in mine for line in note.parsed.value.lines]
        assert said == f">{join_threads(lines, extract_question(talk.problem.text))}\n"
        assert not any(np.array_equal(note.ids, talk.ids) for note in mine)
    (train_batch,) = p.recipe.credit(ctx(p), rollouts)
    assert list(train_batch.rollouts) == [*talks, *notes]
    for rollout, advantage in zip(train_batch.rollouts, train_batch.advantages, strict=True):
        assert not advantage[~rollout.mask].any() and abs(advantage[rollout.mask]) == pytest.approx(
            np.ones(int(rollout.mask.sum()))
        )
    # Four rollouts, four notes for each of two questions: each note counts once.
    assert train_batch.weights == [1.0] * 12
    assert train_batch.notes["reader_samples"] == 8 and train_batch.notes["calls"] == 1.0 and train_batch.notes["usable"] == 1.0


def test_advantages_do_not_depend_on_what_is_drawn() -> None:
    rollouts = trajectories(plan(), ctx(plan()))
    found = {}
    for how in ("weight", "uniform", "abs_adv", "none"):
        p = plan(s1_balance=how)
        p.recipe.group_size = 2
        (train_batch,) = p.recipe.credit(ctx(p), rollouts)
        found[how] = train_batch
        assert all(np.array_equal(a, b) for a, b in zip(train_batch.advantages, found["weight"].advantages, strict=True))
    assert (
        found["weight"].weights[4:] == [0.5] * 8
        and sum(found["uniform"].weights[4:]) == 4
        and found["none"].weights[4:] == [1.0] * 8
    )


def test_with_weights_of_their_own_each_system_has_a_train_batch_and_one_can_stay() -> None:
    rollouts = trajectories(plan(), ctx(plan()))
    train_batches = plan("own").recipe.credit(ctx(plan()), rollouts)
    assert [(train_batch.policy, len(train_batch.rollouts)) for train_batch in train_batches] == [
        ("generator", 4),
        ("reader", 8),
    ]
    for train, policy in (("planner", "generator"), ("reader", "reader")):
        assert [train_batch.policy for train_batch in plan("own", train=train).recipe.credit(ctx(plan()), rollouts)] == [policy]
        with pytest.raises(ConfigError, match="share one model"):
            plan(train=train)


def test_answers_without_a_request_teach_the_planner_alone() -> None:
    p = plan()
    one = ctx(p)
    rollouts = p.recipe.rollout(one)  # the base has never asked for anything
    assert {rollout.agent for rollout in rollouts} == {"generator"} and not any(is_request(rollout) for rollout in rollouts)
    (train_batch,) = p.recipe.credit(one, rollouts)
    assert train_batch.notes["no_call"] == 1.0 and train_batch.notes["reader_samples"] == 0.0
    assert [made.policy for made in plan("own").recipe.credit(one, rollouts)] == ["generator"]


def test_a_request_that_is_the_last_word_is_wrong() -> None:
    one = ctx(plan())
    (talk,) = one.write("generator", one.problems(1), ["@ab="])
    assert talk.correct == 0.0


def test_documents_longer_than_a_bin_are_cut_and_counted() -> None:
    one = ctx(plan())
    (talk,) = one.write("generator", [HAY], ["@bxa="])
    bins = Desk(5, 1).pack_documents(one, talk, find(talk))
    assert [b.text for b in bins] == ["3m7+o", "r*3te"] and sum(one.dropped.values()) == 4
    assert [b.text for b in Desk(14, 1).pack_documents(one, talk, find(talk))] == ["3m7+o5n\nr*3tean"]
    assert Desk(5, 1).pack_documents(one, talk, ["", ""])[0].text == "\n"


def test_a_second_request_adds_to_what_was_read() -> None:
    p = plan()
    one = ctx(p)
    (talk,) = one.write("generator", [HAY], ["@b="])
    lines: dict[str, list[str]] = {}
    notes = one.write("reader", p.recipe.desk.pack_documents(one, talk, find(talk)), ["37+5"])
    (reply,) = p.recipe.desk.reply_with_notes(one, Rollouts([talk]), notes, lines)
    reply.parsed = Planner("terse").parse("@a=")
    more = one.write("reader", p.recipe.desk.pack_documents(one, reply, find(reply)), ["*3"])
    p.recipe.desk.reply_with_notes(one, Rollouts([reply]), more, lines)
    assert lines[reply.id] == ["37+5", "*3"]


def test_the_teacher_shows_requests_solutions_and_notes() -> None:
    p = plan(format_lines=4, format_notes=6, slip=0.0)
    one = ctx(p, FORMAT)
    shown = p.recipe.rollout(one)
    planner, reader = (shown.of(agent) for agent in AGENTS)
    assert [len(t.turn_spans) for t in planner] == [1] * 4 + [2] * 4 and len(reader) == 12
    assert all(is_request(t) for t in planner[:4]) and all(t.text == Reader("terse").write_exact_note(t.target) for t in reader)
    assert all(t.segments[-1].trained and not any(s.trained for s in t.segments[:-1]) for t in planner)
    (train_batch,) = p.recipe.credit(one, shown)
    assert len(train_batch.rollouts) == 20
    assert [made.policy for made in plan("own").recipe.credit(one, shown)] == ["generator", "reader"]


def test_the_recipe_brings_its_task_and_refuses_others_and_other_baselines() -> None:
    assert resolve([{"recipe": "mars"}]).task.name == "haystack"
    with pytest.raises(ConfigError, match="works only with the tasks haystack, search, not with 'chain'"):
        resolve([{"recipe": "mars", "task": "chain"}])
    with pytest.raises(ConfigError, match="use zscore"):
        resolve([{"recipe": "mars", "policies": {"generator": {"objective": {"preset": "rloo"}}}}])


def test_a_run_that_was_cut_ends_in_the_same_bits(tmp_path: Path) -> None:
    assert SHORT["mars"].settings["task"]["name"] == "haystack"
    assert_resumes("mars", tmp_path, after=1)


# On a folder of texts, in words.


def texts(folder: Path) -> dict[str, Any]:
    """A folder of texts and a file of questions about them."""
    (folder / "texts").mkdir()
    text = "Marrow Bridge was built by Clara Venn.\n\nClara Venn was born in Oakhaven.\n\nOakhaven lies at the sea.\n"
    (folder / "texts" / "bridge.txt").write_text(text, encoding="utf-8")
    rows = [json.dumps({"question": f"Where was the builder of bridge {n} born?", "answer": "Oakhaven"}) for n in range(40)]
    (folder / "questions.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return {"name": "search", "path": str(folder / "texts"), "questions": str(folder / "questions.jsonl")}


@pytest.mark.parametrize(
    ("text", "names", "purpose", "answer", "score"),
    [
        ("SEARCH: bridge builder\nPURPOSE: find who built it", "bridge builder", "find who built it", None, 1.0),
        ("I need more.\n\n**Search:** bridge\n\n**Purpose:** *its builder*\n", "bridge", "its builder", None, 1.0),
        ("<think>\nSEARCH: no\n</think>\nsearch query: bridge", "bridge", "bridge", None, 0.5),
        ("SEARCH: bridge\nPURPOSE: its age\nANSWER: 1874", "bridge", "its age", "1874", 0.5),
    ],
)
def test_a_request_in_words_is_a_search_with_a_purpose(
    text: str, names: str, purpose: str, answer: str | None, score: float
) -> None:
    parsed = SearchPlanner("plain").parse(text)
    value = parsed.get(Request)
    assert (value.names, value.purpose, value.answer, parsed.format) == (names, purpose, answer, score) and parsed.is_valid


def test_a_planner_in_words_answers_too_and_notes_are_whatever_follows_the_thought() -> None:
    planner, reader = SearchPlanner("plain"), Condenser("plain")
    assert planner.parse("So it is clear.\nANSWER: **Oakhaven**").value == Solution((), (), "Oakhaven")
    assert not planner.parse("I do not know what to do.").is_valid
    assert reader.parse("<think>hm</think>\n\n- born in Oakhaven\n- in 1839\n").get(Note).lines == (
        "- born in Oakhaven - in 1839",
    )
    assert reader.parse("<think>and so on").invalid == "no note" and reader.parse("").format == 0


def test_where_there_is_a_tool_planner_and_reader_speak_in_words(tmp_path: Path) -> None:
    task = texts(tmp_path)
    with pytest.raises(ConfigError, match="whom task 'search' does not have: name a model"):
        resolve([{"recipe": "mars", "task": task}])
    with pytest.raises(ConfigError, match="the embedded model cannot write: name a model with --generator"):
        resolve([{"recipe": "mars", "task": task, "options": {"formats": 0}}])
    model = {"policies": {"generator": {"model": make_chat_model(tmp_path / "model")}}}
    p = resolve([{"recipe": "mars", "task": task} | model])
    planner, reader = p.roles["generator"], p.roles["reader"]
    assert isinstance(planner, SearchPlanner) and isinstance(reader, Condenser)
    assert "at most 4 times" in planner.prompt(p.task.problem("train", 0))[0].text
    talk = Rollout.from_text("t", "generator", HAY, "", planner.parse("SEARCH: builder bridge\nPURPOSE: who built it"))
    found = planner.find_documents(p.task, talk)
    assert found[0] == "Marrow Bridge was built by Clara Venn."
    shown = "".join(part.text for part in reader.prompt(HAY, make_document_bin(talk, 0, found[:1], "who built it")))
    assert "no other: who built it\n" in shown and shown.endswith(f"Documents:\n[1] {found[0]}\n") and HAY.text not in shown
    published = resolve([{"recipe": "mars", "task": task, "published": True} | model]).config
    assert published.batch.rollouts == 16 and published.options["calls"] == 10 and published.options["s1_balance"] == "uniform"


def test_a_turn_on_a_folder_of_texts_pays_both_and_moves_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def says(so_far: str, number: int) -> str:
        if "for this purpose" in so_far:
            return "They say nothing." if "[1] \n" in so_far else f"The builder was born in Oakhaven ({number})."
        if "RESULTS:" in so_far:
            return "ANSWER: Oakhaven" if number % 2 and "born in Oakhaven" in so_far else "ANSWER: nowhere"
        return "SEARCH: Clara Venn born\nPURPOSE: find out where she was born"

    seen = script_model(monkeypatch, says)
    settings = SCRIPTED | {
        "task": texts(tmp_path),
        "options": {"measured": 2, "calls": 2},
        "policies": {"generator": {"lr": 1e-2}},
    }
    out = tmp_path / "run"
    model = make_chat_model(tmp_path / "model")
    milonga.run("mars", model=model, problems=2, rollouts=4, turns=1, out=out, settings=settings, quiet=True)
    start, row = JsonLines(out / "metrics.jsonl").rows()
    assert row["learn/generator/grad_norm"] > 0 and row["credit/generator/reader_samples"] == 8
    assert row["credit/generator/calls"] == 1 and row["credit/generator/usable"] == 1
    assert start["eval/generator/blank_accuracy"] == 0 and start["eval/generator/calls"] == 1
    assert any("RESULTS:\n[1] The builder was born in Oakhaven" in text for text in seen)
    assert not any("You can ask no more" in text for text in seen), "one request of two"
    assert not any("Documents:" in text and "Where was the builder" in text for text in seen), "the reader sees no question"
