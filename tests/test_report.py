"""Reports of real runs and of a real comparison: the numbers are those of the folder, and text stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import milonga
from helpers import PROPERTY
from milonga.cli import main
from milonga.config import parse_config, read_toml
from milonga.errors import UserError
from milonga.health import Finding
from milonga.report import build_report, write_report, write_report_safely
from milonga.report.blocks import (
    Chapter,
    Code,
    Facts,
    Findings,
    Folded,
    Points,
    Report,
    Section,
    Sheet,
    Talk,
    Talks,
    Text,
    Verdict,
)
from milonga.report.curves import TITLES
from milonga.report.html import to_html
from milonga.report.markdown import to_markdown
from milonga.report.verdicts import describe_comparison, describe_run, estimate_chance
from milonga.runfolder.files import JsonLines, to_json
from milonga.runfolder.record import read_record
from milonga.runfolder.rollouts import read_rollouts, write_rollouts
from milonga.runfolder.transcripts import Step, Transcript, read_transcripts, select_transcripts
from milonga.systems.index import CLAIMS
from milonga.text import format_number
from milonga.types import Grade, Parsed, Problem, Rollout, Solution, Verification

TINY: dict[str, Any] = {
    "device": "cpu",
    "threads": 1,
    "task": {"name": "chain", "ops": 2},
    "batch": {"problems": 4, "rollouts": 2},
    "eval": {"problems": 4, "samples": 2, "bench": 4, "greedy": False, "checks": 1, "every": 1},
    "options": {"warmup": 1, "n_generator": 1},
    "keep": {"rollouts_every": 1},
}
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202e| `````` [a](javascript:x)"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tango"
    milonga.run("tango", turns=1, seed=3, out=folder, settings=TINY, quiet=True)
    return folder


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compare") / "two"
    arms = ["frozen", "grpo"]
    plain = {key: value for key, value in TINY.items() if key != "options"}
    milonga.compare(arms, seeds=2, turns=1, match="turns", out=out, settings=plain, jobs=1, quiet=True)
    return out


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """The run, to be spoilt."""
    return Path(shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints", "models")))


class Reader(HTMLParser):
    """What a browser would make of a page: its elements, their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.cells: list[str] = []
        self.words: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.inside = tag in ("td", "th")
        if self.inside:
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.inside:
            self.cells[-1] += data


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """What `milonga` exits with and prints."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["milonga", *arguments])
        with pytest.raises(SystemExit) as exit:
            main()
    out, err = capsys.readouterr()
    return int(exit.value.code or 0), out, err


def page_of(*folders: Path) -> str:
    return to_html(build_report(folders))


def test_a_run_ends_with_a_page_that_says_what_its_metrics_say(run: Path) -> None:
    page = Reader((run / "report.html").read_text(encoding="utf-8"))
    rows = JsonLines(run / "metrics.jsonl").rows()
    for metric in ("eval/generator/accuracy", "eval/verifier/f1", "eval/hacking_gap", "rollouts/verifier/length"):
        known = [row[metric] for row in rows if row.get(metric) is not None]
        at = page.cells.index(metric)
        change = f"{known[-1] - known[0]:+.3f}"
        assert page.cells[at + 1 : at + 4] == [format_number(known[0]), format_number(known[-1]), change]
    names = {key for row in rows for key, value in row.items() if "/" in key and isinstance(value, float)}
    assert names <= set(page.cells), "every metric is there"


def test_a_page_begins_with_what_came_out_and_ends_with_facts(run: Path, comparison: Path) -> None:
    (chapter,) = build_report([run]).chapters
    titles = [section.title for section in chapter.sections]
    assert titles[:3] == ["In short", "Curves", "From start to end"]
    assert titles[-3:] == ["What was run", "All measurements", "How to reproduce it"]
    values = read_record(run).get_curve("eval/generator/accuracy")[1]
    verdict = chapter.sections[0].blocks[0]
    assert isinstance(verdict, Verdict) and f"held-out accuracy {values[0]:.3f} → {values[-1]:.3f}" in verdict.text
    assert "turn of the generator" in verdict.text and "tokens" in verdict.text and "FLOPs" in verdict.text
    (chapter,) = build_report([comparison]).chapters
    assert [section.title for section in chapter.sections[:3]] == ["In short", "Curves", "Outcomes"]
    verdict = chapter.sections[0].blocks[0]
    assert isinstance(verdict, Verdict) and "Against frozen" not in verdict.text and "cannot be told" in verdict.text
    assert to_markdown(build_report([comparison])).count("cannot be told") == 1


def test_how_far_chance_alone_may_move_an_accuracy() -> None:
    """By hand: two solved and two failed problems are added to each; 16 of 32 stay a half, of 36."""
    assert estimate_chance(0.5, 0.5, 32) == pytest.approx(1.96 * (0.5 / 36) ** 0.5)
    # None and all of 16 become 2 and 18 of 20: twice 0.09 over 20.
    assert estimate_chance(0.0, 1.0, 16) == pytest.approx(1.96 * 0.009**0.5)
    # 5 and 10 of 25 become 7 and 12 of 29.
    assert estimate_chance(0.2, 0.4, 25) == pytest.approx(1.96 * ((7 * 22 + 12 * 17) / 29**3) ** 0.5)


@PROPERTY
@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 10_000))
def test_chance_is_never_nothing_and_more_problems_leave_less_of_it(start: float, end: float, problems: int) -> None:
    assert 0 < estimate_chance(start, end, 4 * problems) < 1.96 * (0.5 / (4 * problems + 4)) ** 0.5 + 1e-12
    assert estimate_chance(0.0, 0.0, 4 * problems) < estimate_chance(0.0, 0.0, problems)


@pytest.mark.parametrize(
    ("ends", "f1", "said"),
    [
        ((0.10, 0.90), None, "The generator got better: held-out accuracy 0.100 → 0.900 (+0.800;"),
        ((0.90, 0.10), None, "The generator got worse: held-out accuracy 0.900 → 0.100 (-0.800;"),
        ((0.50, 0.55), None, "The generator changed by no more than chance can explain: held-out accuracy 0.500 → 0.550"),
        (
            (0.50, 0.55),
            (0.2, 0.5, 0.4, 0.6),
            "; the verifier got better: F1 on first errors 0.200 → 0.500 [0.400, 0.600], after",
        ),
        ((0.50, 0.55), (0.7, 0.5, 0.4, 0.6), "; the verifier got worse: F1"),
        ((0.50, 0.55), (0.45, 0.5, 0.4, 0.6), "; the verifier cannot be told from its start: F1"),
        ((0.00, 0.03), None, "The generator changed by no more than chance can explain: held-out accuracy 0.000 → 0.030"),
    ],
)
def test_the_verdict_of_a_run(
    copy: Path, ends: tuple[float, float], f1: tuple[float, float, float, float] | None, said: str
) -> None:
    rows: list[dict[str, Any]] = [
        {"turn": 0, "learner": None, "eval/generator/accuracy": ends[0]},
        {"turn": 1, "learner": "generator", "eval/generator/accuracy": ends[1], "compute/tokens": 2000.0},
    ]
    if f1 is not None:
        rows[0]["eval/verifier/f1"] = f1[0]
        rows[1] |= {"eval/verifier/f1": f1[1], "eval/verifier/f1_low": f1[2], "eval/verifier/f1_high": f1[3]}
        rows[1] |= {"learn/verifier/loss": 0.5}
    (copy / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(re.sub(r"(?m)(\[eval\][^\[]*?problems = )\d+", r"\g<1>64", config))
    verdict = describe_run(read_record(copy))
    assert said in verdict and "after 1 turn of the generator (2k tokens, " in verdict
    (copy / "report.json").unlink()
    assert describe_run(read_record(copy)).startswith("So far, the generator")
    (copy / "metrics.jsonl").write_text(to_json(rows[0]) + "\n")
    start = describe_run(read_record(copy))
    assert start.startswith("Nothing has learned yet; at the start, the generator's held-out accuracy is ")


def describe(
    copy: Path, learner: str, problems: int, start: dict[str, float], end: dict[str, float], recipe: str = "tango"
) -> str:
    """The verdict of a run with these figures before and after one turn of an agent."""
    rows = [{"turn": 0, "learner": None, **start}, {"turn": 1, "learner": learner, f"learn/{learner}/loss": 0.1, **end}]
    (copy / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    record = read_record(copy)
    small = record.config.eval.model_copy(update={"problems": problems})
    return describe_run(replace(record, config=record.config.model_copy(update={"eval": small, "recipe": recipe})))


def test_the_verdict_of_a_run_is_of_who_was_trained(copy: Path) -> None:
    generator, f1, balanced, soft = (
        f"eval/{name}" for name in ("generator/accuracy", "verifier/f1", "verifier/balanced_accuracy", "verifier/soft_auroc")
    )
    verifier_alone = describe(copy, "verifier", 64, {generator: 0.562, f1: 0.2}, {generator: 0.562, f1: 0.5})
    assert verifier_alone.startswith(
        "The generator was not trained: held-out accuracy 0.562; the verifier's F1 on first errors went 0.200 → 0.500, after"
    )
    generator_alone = describe(copy, "generator", 64, {generator: 0.1, f1: 0.2}, {generator: 0.9, f1: 0.5})
    assert "; the verifier was not trained: F1 on first errors 0.200 → 0.500, after" in generator_alone
    # Where there is no F1, another figure of the verifier is told.
    told = describe(copy, "verifier", 64, {balanced: 0.5, soft: 0.4}, {balanced: 0.75, soft: 0.5})
    assert told.startswith("The verifier's balanced accuracy went 0.500 → 0.750, after")
    assert describe(copy, "verifier", 64, {soft: 0.4}, {soft: 0.5}).startswith(
        "The verifier's area under ROC of the soft verdict"
    )


def test_the_verdict_of_a_run_that_measures_other_things(copy: Path) -> None:
    """Nothing was measured only where nothing was: of each agent its first metric is told, the recipe's own before others."""
    start = {"eval/generator/success": 0.25, "eval/generator/length": 9.0, "eval/critic/pair_accuracy": 0.5}
    end = start | {"eval/generator/success": 0.5}
    said = "The generator's success went 0.250 → 0.500; the critic's pair_accuracy is 0.500, after 1 turn"
    assert describe(copy, "generator", 64, start, end, "sweet_rl").startswith(said)
    human = {"eval/verifier/invalid_rate": 0.1, "eval/verifier/human_accuracy": 0.5}
    told = describe(copy, "verifier", 64, human, human | {"eval/verifier/human_accuracy": 0.75}, "apo")
    assert told.startswith("The verifier's human_accuracy went 0.500 → 0.750, after")
    assert describe(copy, "generator", 64, {"eval/reached": 0.5}, {"eval/reached": 0.5}).startswith("Reached is 0.500, after")
    assert describe(copy, "generator", 64, {}, {}).endswith("nothing was measured on held-out problems.")
    # Beside what is always told, only of agents that learned.
    both = {"eval/generator/accuracy": 0.5, "eval/tester/accuracy": 0.5, "eval/choice/mean": 0.5}
    assert "; the tester's accuracy is 0.500, after" in (of_tester := describe(copy, "tester", 64, both, both))
    assert "choice" not in of_tester


def test_few_problems_tell_nothing_of_a_change(copy: Path) -> None:
    accuracy = "eval/generator/accuracy"
    said = "Whether the generator changed cannot be told: held-out accuracy 0.000 → 1.000 (+1.000; 15 problems are too few)"
    assert describe(copy, "generator", 15, {accuracy: 0.0}, {accuracy: 1.0}).startswith(said)
    assert describe(copy, "generator", 16, {accuracy: 0.0}, {accuracy: 1.0}).startswith("The generator got better")


def test_a_value_that_is_advised_can_be_copied(copy: Path) -> None:
    row = {
        "turn": 1,
        "learner": "generator",
        "rollouts/generator/invalid_rate": 0.5,
        "learn/generator/entropy": 1.0,
        "learn/generator/kl": 2.0,
        "learn/generator/lr": 4e-5,
    }
    (copy / "metrics.jsonl").write_text(to_json(row) + "\n")
    (remarks,) = (block for block in build_report([copy]).chapters[0].sections[0].blocks if isinstance(block, Points))
    assert any(re.search(r": --set policies\.generator\.lr=[-\de.]*\d$", one) for one in remarks.texts)
    assert any(one.endswith("(policies.generator.prompt).") for one in remarks.texts)


def test_the_verdict_of_a_comparison() -> None:
    def differ(arm: str, mean: float, verdict: str, seen: float | None = None) -> dict[str, Any]:
        known: dict[str, Any] = {"seeds": [1, 2, 3]}
        known |= {"interval": [mean - 0.1, mean + 0.1], "problems": [mean - 0.2, mean + 0.2], "smallest_effect": seen}
        return {"arm": arm, "metric": "eval/generator/accuracy", "mean": mean, "verdict": verdict, **known}

    result = {
        "metric": "eval/generator/accuracy", "baseline": "grpo", "arms": dict.fromkeys(("grpo", "tango", "prime", "frozen")),
        "seeds": [1, 2, 3], "match": "tokens", "split": "test", "axis": "compute/tokens",
        "differences": [
            differ("tango", 0.25, "higher"), differ("prime", 0.02, "undecided", 0.165), differ("frozen", -0.3, "lower"),
        ],
    }  # fmt: skip
    assert describe_comparison(result) == (
        "Against grpo, in the generator’s held-out accuracy on test (3 seeds, tokens matched): "
        "tango is better by +0.250 [+0.150, +0.350]; whether prime differs cannot be told (+0.020 [-0.080, +0.120]; 0.165 "
        "could have been seen); frozen is worse by -0.300 [-0.400, -0.200]."
    )
    # A seed of one arm failed, all of another.
    tango, prime, _ = result["differences"]
    found = describe_comparison(result | {"differences": [tango, prime | {"seeds": [2]}]})
    assert "on test (tokens matched): tango is better by +0.250 [+0.150, +0.350], 3 seeds; whether prime differs" in found
    assert found.endswith("could have been seen), 1 seed; frozen has no pair with the baseline.")
    assert "(1 seed, tokens matched): whether" in describe_comparison(result | {"differences": [prime | {"seeds": [2]}]})
    # An interval beside zero may be undecided all the same: the sentence has the reason.
    beside = prime | {"mean": -0.2, "interval": [-0.3, -0.1], "guard": "fewer than 3 seeds decide nothing"}
    found = describe_comparison(result | {"differences": [beside]})
    assert "cannot be told (-0.200 [-0.300, -0.100]; fewer than 3 seeds decide nothing)" in found
    gap = [{**result["differences"][0], "metric": "eval/hacking_gap"}]
    assert "tango is higher by +0.250" in describe_comparison(result | {"metric": "eval/hacking_gap", "differences": gap})
    assert describe_comparison(result | {"differences": []}).startswith("Nothing can be told")


def test_the_metric_of_every_claim_has_its_place_in_the_sentence() -> None:
    """What is compared is a thing that an arm can be better in: a noun, of an agent or with its article."""
    result = {"baseline": "grpo", "arms": {"grpo": {}}, "split": "test", "differences": []}
    nouns = {"accuracy", "F1", "area", "gap", "gain", "share", "precision", "recall", "reward"}
    names = {metric: describe_comparison(result | {"metric": metric}) for metric in [*TITLES, "eval/own/metric"]}
    assert {CLAIMS.get(name).metric for name in CLAIMS} <= names.keys()
    for metric, said in names.items():
        found = re.fullmatch(r"Nothing can be told in (.+) on test: no arm and the baseline grpo have a seed in common\.", said)
        assert found is not None
        if metric in TITLES:
            head = re.fullmatch(
                r"the (?:\w+’s )?([\w -]+?)(?: (?:of|on|with|for|under|between|while|above|whose) .+)?", found[1]
            )
            assert head is not None and head[1].split()[-1] in nouns, found[1]
        else:
            assert found[1] == metric
    assert "in the hacking gap on test" in names["eval/hacking_gap"]
    assert "in the verifier’s accuracy on pairs on test" in names["eval/verifier/pair_accuracy"]


def test_a_page_tells_what_was_run_and_how_to_run_it_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = " ".join(Reader(page_of(run)).words)
    for said in ("arXiv 2505.15034", "generator (solver)", "embedded, generative", "torch 2", "cores", "FLOPs", "seed 3"):
        assert said in words
    config = run / "config.toml"
    assert f"milonga run tango --config {config} --out NEW" in words
    code, out, _ = command(capsys, "run", "tango", "--config", str(config), "--dry-run", "--json")
    again = json.loads(out.splitlines()[-1])["config"]
    assert code == 0 and parse_config(again) == parse_config(read_toml(config))


def test_a_page_needs_nothing_but_itself(run: Path, comparison: Path) -> None:
    for page in (page_of(run), page_of(comparison), page_of(run, comparison, run)):
        read = Reader(page)
        assert not {"script", "link", "img", "iframe", "object", "embed", "form", "base"} & set(read.tags)
        assert all(value.startswith("#") for name, value in read.attributes if name in ("href", "src", "action", "xlink:href"))
        assert not [name for name, _ in read.attributes if name.startswith("on") or name == "style"]
        assert set(re.findall(r"[a-z]+://[^\"' <]*", page)) == {"http://www.w3.org/2000/svg"}, "a name, not an address"
        style = page.partition("<style>")[2].partition("</style>")[0]
        checksum = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        policy = next(value for _, value in read.attributes if value.startswith("default-src"))
        assert policy.startswith(f"default-src 'none'; style-src 'sha256-{checksum}'") and "url(" not in style


def test_hostile_text_stays_text(copy: Path) -> None:
    read = Parsed(Solution((HOSTILE,), (1,), HOSTILE), 1.0)
    text = f"{HOSTILE}\n#{HOSTILE}"
    solution = Rollout.from_text(HOSTILE, "generator", Problem("p", HOSTILE, "7"), text, read, Grade(False, (False,)))
    said = Parsed(Verification((True,), True), 1.0)
    check = Rollout.from_text("check", "verifier", solution.problem, HOSTILE, said)
    check.targets = (solution,)
    write_rollouts(copy / "rollouts" / "turn-000099.parquet", [solution, check])
    report = build_report([copy])
    page, text = to_html(report), to_markdown(report)
    assert not {"script", "img"} & set(Reader(page).tags) and page.count("&lt;script&gt;") >= 4
    for form in (page, text):
        assert "\x1b" not in form and "\u202e" not in form and "\\u202e" in form
    outside = re.sub(r"^(`{3,})text\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "<script>" not in outside.replace("\\<", "") and "[a](" not in outside


def page_with(text: str) -> str:
    """A page in which every kind of block says this."""
    one = Transcript(text, 1, text, text, text, text, [Step(text, True, False)], text, False, text, True, True, text)
    bare = replace(one, steps=[])
    sheet = Sheet(text, (text, text), [(text, text)])
    wrong = [Finding("no signal", text, text, severe=True), Finding("gap", text, f"--set {text}"), Finding("gap", text)]
    blocks = [Text(text), Verdict(text), Code(text), Points([text]), Facts([(text, text)]), sheet, Folded(text, Code(text))]
    section = Section(text, [*blocks, Findings(wrong), Talks([Talk(text, one), Talk(text, bare)])])
    return to_html(Report(text, [Chapter(text, text, [section])]))


@PROPERTY
@given(st.text(max_size=30), st.sampled_from(["", "<b>", "</pre>", '" onload="x', "</style><script>", "&lt;", "<!--"]))
def test_no_text_changes_the_elements_of_a_page(text: str, more: str) -> None:
    page, harmless = page_with(f"x{text}{more}"), page_with("x")
    assert Reader(page).tags == Reader(harmless).tags
    assert [name for name, _ in Reader(page).attributes] == [name for name, _ in Reader(harmless).attributes]
    assert all(c.isprintable() or c == "\n" for c in page)


def test_a_comparison_ends_with_a_page_of_its_tables(comparison: Path) -> None:
    result = json.loads((comparison / "compare.json").read_text())
    page = Reader((comparison / "report.html").read_text(encoding="utf-8"))
    difference = next(d for d in result["differences"] if d["metric"] == "eval/generator/accuracy")
    low, high = difference["interval"]
    assert f"{difference['mean']:+.3f} [{low:+.3f}, {high:+.3f}]" in page.cells and "undecided" in page.cells
    for arm in result["arms"].values():
        for run in arm["runs"]:
            assert f"{arm['folder']}/seed-{run['seed']}" in page.cells
            assert (comparison / arm["folder"] / f"seed-{run['seed']}" / "report.html").exists()
    assert "compare.toml" in page.words


def test_what_is_wrong_with_arms_stands_under_the_verdict_with_a_badge(comparison: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(comparison, tmp_path / "ill", ignore=shutil.ignore_patterns("frozen", "grpo")))
    result = json.loads((folder / "compare.json").read_text())
    warning = {"arm": "frozen", **Finding("gap", "the gap is wide", "more turns of it").to_json(), "seeds": [101], "runs": 2}
    helps = "--set policies.generator.prompt=x"
    severe = {"arm": "grpo", **Finding("unreadable", "all is lost", helps, severe=True).to_json(), "seeds": [100], "runs": 1}
    (folder / "compare.json").write_text(json.dumps(result | {"health": [warning, severe]}))
    report = build_report([folder])
    short = report.chapters[0].sections[0]
    assert short.title == "In short" and isinstance(short.blocks[0], Verdict) and isinstance(short.blocks[1], Findings)
    said = [(one.badge, one.text) for one in short.blocks[1].findings]
    assert said == [
        ("unreadable", "grpo, its run; in seed 100 all is lost"),
        ("gap", "frozen, 1 of 2 runs; in seed 101 the gap is wide"),
    ], "what is severe comes first"
    page, text = to_html(report), to_markdown(report)
    assert '<span class="badge severe">✗ unreadable</span>' in page and '<span class="badge warning">! gap</span>' in page
    assert f'<span class="code">{helps}</span>' in page and '<span class="help">more turns of it</span>' in page
    assert page.count("all is lost") == text.count("all is lost") == 1 and text.index("all is lost") < text.index("## Curves")
    without = build_report([comparison]).chapters[0].sections[0].blocks
    assert not any(isinstance(block, Findings) and not block.findings for block in without)


def test_a_claim_is_said_with_its_verdict(comparison: Path, tmp_path: Path) -> None:
    from milonga.claims import summarise_claim
    from milonga.systems.index import CLAIMS

    folder = Path(shutil.copytree(comparison, tmp_path / "claim", ignore=shutil.ignore_patterns("frozen", "grpo")))
    found = summarise_claim(CLAIMS.get("prime"), json.loads((folder / "compare.json").read_text()), "met")
    (folder / "claim.json").write_text(to_json(found))
    words = " ".join(Reader(page_of(folder)).words)
    assert found["says"] in words and f"Verdict: {found['verdict']}" in words


def test_several_folders_stand_side_by_side(run: Path, copy: Path, comparison: Path) -> None:
    config = (copy / "config.toml").read_text().replace("seed = 3", "seed = 4")
    (copy / "config.toml").write_text(config)
    report = build_report([run, copy, comparison])
    assert report.chapters[0].title == "Side by side" and len(report.chapters) == 4
    page = Reader(to_html(report))
    at = page.cells.index("setting")
    assert page.cells[at : at + 6] == ["setting", "tango", "run", "seed", "3", "4"], "nothing else differs"
    many = build_report([run] * 20)
    assert len(many.chapters) == 1 and len(to_html(many)) < 2e6


def test_markdown_has_the_same_numbers(run: Path, tmp_path: Path) -> None:
    written = write_report([run], tmp_path / "sub" / "page.html", markdown=True)
    assert [path.name for path in written] == ["page.html", "page.md"]
    text = written[1].read_text()
    for row in Reader(written[0].read_text()).cells:
        if re.fullmatch(r"-?\d+\.\d{3}", row):
            assert row in text
    table = re.search(r"\| generator accuracy \(sampled\) \|.*", text)
    values = read_record(run).get_curve("eval/generator/accuracy")[1]
    assert table is not None and f"| {format_number(values[0])} | {format_number(values[-1])} |" in table[0]


def test_a_long_run_gives_a_small_page(copy: Path) -> None:
    rows = JsonLines(copy / "metrics.jsonl").rows()
    timing = JsonLines(copy / "timing.jsonl").rows()
    long = [rows[1 + at % (len(rows) - 1)] | {"turn": at} for at in range(2_000)]
    (copy / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in long))
    (copy / "timing.jsonl").write_text("".join(to_json(timing[-1] | {"turn": at}) + "\n" for at in range(2_000)))
    assert len(page_of(copy)) < 500_000


def spoil_config(run: Path) -> None:
    (run / "config.toml").write_text("recipe = [")


def spoil_metrics(run: Path) -> None:
    (run / "metrics.jsonl").write_text("[1, 2]\n")


def spoil_half(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"turn": 0, "eval/gen')


def spoil_rollouts(run: Path) -> None:
    sorted((run / "rollouts").iterdir())[-1].write_bytes(b"PAR1 and no more")


def spoil_summary(run: Path) -> None:
    (run / "report.json").write_text("{")


def spoil_all(run: Path) -> None:
    for path in run.iterdir():
        if path.is_file():
            path.unlink()


SPOILT = {
    spoil_config: "config",
    spoil_metrics: "line 1",
    spoil_half: "no metrics yet",
    spoil_rollouts: "parquet",
    spoil_summary: "report.json",
    spoil_all: "not a run folder",
}


@pytest.mark.parametrize("spoil", list(SPOILT), ids=lambda one: one.__name__)
def test_a_broken_folder_is_one_line(spoil: Any, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(copy)
    code, _, error = command(capsys, "report", str(copy), "--out", str(copy / "page.html"))
    assert code == 2 and len(error.splitlines()) == 1 and SPOILT[spoil] in error and not (copy / "page.html").exists()


def test_a_broken_comparison_is_one_line(comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "compare"
    folder.mkdir()
    shutil.copy(comparison / "compare.toml", folder)
    code, _, error = command(capsys, "report", str(folder))
    assert code == 2 and "goes on with it" in error and len(error.splitlines()) == 1
    (folder / "compare.json").write_text('{"arms": {"a": 1}}')
    code, _, error = command(capsys, "report", str(folder))
    assert code == 2 and "is not what 'milonga compare' writes" in error and len(error.splitlines()) == 1


def test_a_run_in_progress_can_be_reported(copy: Path) -> None:
    (copy / "report.json").unlink()
    rows = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(rows[:2]) + rows[2][:40])
    assert "not finished: turn 1" in page_of(copy)


def test_what_goes_wrong_while_leaving_a_report_is_said_and_nothing_more(copy: Path) -> None:
    spoil_rollouts(copy)
    said: list[str] = []
    write_report_safely(copy, said.append)
    assert len(said) == 1 and said[0].startswith("no report.html was written") and "milonga report" in said[0]


def transcript(id: str, correct: bool | None, says: bool | None, steps: list[tuple[bool | None, bool | None]]) -> Transcript:
    made = [Step("s", verdict, truth) for verdict, truth in steps]
    return Transcript(id, 1, "generator", "p", "q", "t", made, "7", correct, None, says is not None, says)


def test_transcripts_are_chosen_for_what_they_show() -> None:
    fine = transcript("fine", True, True, [(True, True)])
    fooled = transcript("fooled", False, True, [(True, True), (True, False)])
    strict = transcript("strict", True, False, [(False, True), (False, True)])
    torn = transcript("torn", True, True, [(False, False), (True, True)])
    wrong = transcript("wrong", False, False, [(False, False)])
    chosen = select_transcripts([fine, fooled, strict, torn, wrong, wrong], 1)
    assert [one.id for _, one in chosen] == ["fooled", "strict", "torn", "wrong"]
    assert select_transcripts([fine], 3) == [] and select_transcripts([], 3) == []


def test_transcripts_are_those_of_the_rollouts(run: Path) -> None:
    record = read_record(run)
    found = read_transcripts(run, record.config)
    rows = {row["id"]: row for row in read_rollouts(sorted((run / "rollouts").iterdir())[-1])}
    assert found and all(rows[one.id]["correct"] == one.correct for one in found)
    for one in found:
        checks = [row for row in rows.values() if one.id in row["targets"]]
        assert one.agreeing == (sum(row["final_verdict"] is True for row in checks), len(checks))
        assert [step.truth for step in one.steps] == rows[one.id]["step_truth"]
        verdicts = [step.verdict for step in one.steps]
        assert any(verdicts == (row["step_verdicts"] or [None] * len(verdicts)) for row in checks)


def test_of_a_large_dump_whole_problems_are_read(run: Path) -> None:
    path = sorted((run / "rollouts").iterdir())[-1]
    rows = read_rollouts(path)
    some = read_rollouts(path, most=len(rows) - 1)
    kept = {row["problem"] for row in some}
    assert 0 < len(some) < len(rows) and some == [row for row in rows if row["problem"] in kept]


def test_a_page_is_written_to_an_html_file_only(run: Path, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "page.md"):
        with pytest.raises(UserError, match="names the HTML file"):
            write_report([run], place)
