"""The board in a real browser: it lives, it can be used, and nothing that a model or a file says is more than text."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pytest

from board_helpers import checked, row, solved, write_run
from cases import TINY
from milonga.config import to_toml
from milonga.probing import Probe
from milonga.probing.advice import Advice
from milonga.probing.figures import SolverFigures
from milonga.probing.probe import Example
from milonga.resolve import resolve
from milonga.runfolder.rollouts import write_rollouts
from milonga.types import Parsed, Problem, Solution
from server_attacks import CLOSE, HOST, MALFORMED, exchange, list_statuses, write_head

pytest.importorskip("nicegui")
webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs a browser: apt-get install chromium chromium-driver (Debian)"
)

EVIL = "<script>window.pwned=1</script><img src=x onerror=window.pwned=2>`${window.pwned=3}`</script>{{window.pwned=4}}"
STEERING = "\x1b[2J\x07\u202eevil\u2066"
LONG = "word" * 20_000
KEPT = Path(__file__).parent.parent / "docs" / "results" / "tango" / "easy.json"
"""A comparison of five seeds."""
WIDE, NARROW = (1200, 900), (390, 800)


def until(found: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.05)
    raise AssertionError(f"did not come: {what}")


class Server:
    """`milonga board` as a user starts it."""

    def __init__(self, folder: Path, **environment: str) -> None:
        command = [sys.executable, "-m", "milonga", "board", str(folder), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=os.environ | environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http://127.0.0.1:" in line, line
        self.url = line.split(": ")[1].split("  ")[0].rstrip("/")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


class Browser:
    """Chromium, with what it asked for and what it complained of."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self.driver.set_script_timeout(20)

    def open(self, url: str, size: tuple[int, int] = WIDE, theme: str = "light") -> None:
        wide, high = size
        metrics = {"width": wide, "height": high, "deviceScaleFactor": 1, "mobile": wide < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self.driver.get(url)
        self.wait("document.querySelector('.main')")

    def run(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def wait(self, script: str) -> Any:
        return until(lambda: self.run(script), script)

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))

    def click(self, selector: str) -> None:
        self.wait(f"document.querySelector({json.dumps(selector)})")
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(keys).perform()

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def asked(self) -> set[str]:
        """Hosts of all requests and sockets since the last time."""
        hosts = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            found = message["params"].get("request", message["params"]).get("url", "")
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated") and found[:5] not in (
                "data:",
                "blob:",
            ):
                hosts.add(urlsplit(found).hostname or found)
        return hosts


def make_matrix(split: str, turns: list[int]) -> dict[str, Any]:
    """What `milonga eval RUN matrix` writes."""
    counts = {"solutions": 8, "right": 4, "wrong": 4, "unknown": 0, "share_right": 0.5}
    ends = ("", "_low", "_high")
    figures = {f"{name}{end}": 0.75 for name in ("soft_auroc", "balanced_accuracy") for end in ends}
    figures |= dict.fromkeys(("positive_rate", "unparsed_rate", "accuracy_on_right", "accuracy_on_wrong"), 0.5)
    pairs = [(wrote, judged) for wrote in turns for judged in turns]
    rows = [{"generator": wrote, "verifier": judged, **counts, **figures} for wrote, judged in pairs]
    rows[0] |= {"soft_auroc": None, "soft_auroc_low": None, "soft_auroc_high": None}
    options = {"split": split, "problems": 4, "checkpoints": len(turns), "samples": 2}
    return {"run": split, "turn": turns[-1], "options": options, "split": split, "problems": 4, "samples": 2,
            "turns": turns, "kept": turns, "rows": rows}  # fmt: skip


def write_evil(folder: Path) -> None:
    """A finished run in which everything that can be named is hostile."""
    metrics = [
        row(t, 0.2 * t, **{"eval/verifier/f1": 0.3, "eval/hacking_gap": 0.1, EVIL: 1.0, f"flow/{EVIL}>{EVIL}": 1.0})
        for t in (0, 1)
    ]
    write_run(folder, metrics)
    (folder / "timing.jsonl").write_text('{"turn": 1, "learn_s": 2.0, "sample_s": 1.0}\n')
    (folder / "report.json").write_text("{}")
    solver = SolverFigures(EVIL, EVIL, "outcomes", 8, 4, 0.5, 0.5, 0.0, 4.0, 4.0, None, 0.25, 0.5, 0.5, 0.75, 0.61, None)
    example = Example(EVIL, f"{EVIL}{STEERING}", f"{EVIL}\n{STEERING}{LONG}")
    Probe(EVIL, EVIL, 32, 4, solver, None, 1.0, 1.0, (Advice(f"{EVIL}{STEERING}", EVIL),), (example,)).write(folder)
    (folder / "report.html").write_text(f"{EVIL}<script>window.pwned=5</script>")
    (folder / "machine.jsonl").write_text(json.dumps({"turn": 0, "command": f"milonga run {EVIL}{STEERING}"}) + "\n")
    with (folder / "config.toml").open("a") as file:
        file.write(f"[policies.generator]\nmodel = {json.dumps(EVIL)}\n# {EVIL}\n")
    (folder / "matrix.json").write_text(json.dumps(make_matrix(EVIL, [0, 1])))
    problem = Problem(f"{EVIL}/0", f"{EVIL}{STEERING}{LONG}", "a")
    texts = [f"{EVIL}\n{STEERING}\n#{LONG}", "a\nc\n#e"]
    rollouts = []
    for at, text in enumerate(texts):
        ends = (text.index("\n") + 1, text.index("\n#") + 1)
        parsed = Parsed(Solution(("a", "b"), ends, EVIL), 1.0, EVIL if at == 0 else None)
        solution = replace(solved(f"1/{EVIL}/{at}", "p", at == 1), problem=problem, text=text, parsed=parsed)
        check = replace(checked(f"1/v/{at}", solution, (True, True), True), text=f"{EVIL}\n{STEERING}\n=+")
        rollouts += [solution, replace(check, parsed=replace(check.parsed, value=replace(check.parsed.value, ends=ends)))]
    plain = solved("1/plain", "plain", True)
    credit = {rollout.id: np.linspace(-1, 1, len(rollout.ids)) for rollout in rollouts}
    write_rollouts(folder / "rollouts" / "turn-000001.parquet", [*rollouts, plain], credit)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of runs: one that is alive, by the real command; a hostile one; and what is left of a broken one."""
    folder = tmp_path_factory.mktemp("runs")
    settings = folder / "tiny.toml"
    settings.write_text(to_toml(TINY | {"keep": {"rollouts_every": 1, "checkpoint_every": 100}}))
    command = [sys.executable, "-m", "milonga", "run", "tango", "--turns", "2000", "--config", str(settings)]
    with (folder / "log.txt").open("w") as log:
        alive = subprocess.Popen([*command, "--out", str(folder / "alive")], stderr=log, stdout=log)
    write_evil(folder / "evil<b>&amp;\"'")
    (folder / "broken").mkdir()
    (folder / "broken" / "config.toml").write_text("recipe = ")
    (folder / "broken" / "metrics.jsonl").write_bytes(b"\x00\xff{not json\n")
    (folder / "broken" / "probe.json").write_text("[]")
    (folder / "broken" / "rollouts").mkdir()
    (folder / "broken" / "rollouts" / "turn-000003.parquet").write_bytes(b"PAR1")
    yield folder
    alive.kill()
    alive.wait(20)


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[Server]:
    server = Server(runs)
    yield server
    server.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.driver.quit()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """After every test: no complaint of the page, and not a request to anywhere else."""
    chromium.complaints(), chromium.asked()
    yield chromium
    assert chromium.complaints() == []
    assert chromium.asked() <= {"127.0.0.1"}


EVIL_NAME = quote("evil<b>&amp;\"'")
EVIL_PROBLEM = f"problem/{EVIL_NAME}?turn=1&problem={quote(EVIL + '/0', safe='')}"


def test_a_click_opens_a_transcript(browser: Browser, server: Server) -> None:
    browser.open(f"{server.url}/rollouts/{EVIL_NAME}?flag=fooled")
    assert browser.run("[...document.querySelectorAll('.group')].length") == 1, "the plain problem is filtered out"
    browser.click(".group")
    browser.wait("document.querySelectorAll('.rollout').length == 2")
    steps = "[...document.querySelectorAll('.rollout:nth-of-type(1) .step')]"
    assert browser.run(f"{steps}.map(s => s.querySelector('.mark').textContent)") == ["✓", "✓", "✓"]
    assert browser.run(f"{steps}.map(s => s.querySelector('.truth').textContent)") == ["✓ true", "✗ false", "✗ false"]
    assert browser.run(f"{steps}.map(s => s.querySelectorAll('summary .strip').length)") == [1, 1, 1]
    assert browser.run(f"{steps}[0].querySelector('.strip').style.background").count("rgba") > 1, "a colour for each token"
    assert not browser.run(f"{steps}[1].querySelector('.note-line').checkVisibility()"), "verifications are folded"
    browser.run(f"{steps}[1].querySelector('summary').click()")
    browser.wait(f"{steps}[1].querySelector('.note-line').checkVisibility()")


def test_hostile_text_stays_text(browser: Browser, server: Server) -> None:
    pages = ("", f"run/{EVIL_NAME}?metric={quote(EVIL)}", f"rollouts/{EVIL_NAME}", EVIL_PROBLEM, f"side?run={EVIL_NAME}",
             f"run/{quote(EVIL, safe='')}", f"rollouts/{EVIL_NAME}?q={quote(EVIL)}", f"probe/{EVIL_NAME}",
             f"?sort={quote(EVIL)}&open={quote(EVIL)}")  # fmt: skip
    for page in pages:
        browser.open(f"{server.url}/{page}")
        browser.wait("document.querySelector('.main').children.length")
        assert browser.run("window.pwned === undefined"), page
        assert browser.run("document.querySelectorAll('.main script, .main img, .main b').length") == 0, page
    (complaint,) = browser.complaints()
    assert "/run/%3Cscript%3E" in complaint and "404" in complaint, "of the page that is not there, and of no other"
    browser.open(f"{server.url}/run/{EVIL_NAME}?metric={quote(EVIL)}")
    browser.wait("document.querySelectorAll('svg.chart').length > 3")
    assert EVIL in browser.text(".models") and EVIL in browser.text(".config pre")
    assert browser.text("pre.command") == f"milonga run {EVIL}\\x1b[2J\\x07\\u202eevil\\u2066"
    probed = browser.text(".probe")
    assert "groups with both outcomes61 %" in probed and f"{EVIL}\\x1b[2J" in probed and f"--set {EVIL}" in probed
    assert browser.run("[...document.querySelectorAll('svg.chart text')].some(e => e.textContent.startsWith('<script>'))")
    cells = "[...document.querySelectorAll('svg .cell + text')].map(e => e.textContent)"
    assert browser.run(cells) == ["–", *["0.750"] * 7], "two figures of verifiers on generators of two turns"
    browser.open(f"{server.url}/probe/{EVIL_NAME}")
    example = browser.text(".example pre")
    assert example.startswith(f"{EVIL}\n\\x1b[2J") and "more characters" in example
    browser.open(f"{server.url}/{EVIL_PROBLEM}")
    question = browser.text("p.question")
    assert EVIL in question and "\\x1b[2J\\x07\\u202eevil\\u2066" in question
    assert "more characters" in question and len(question) < 30_000
    assert browser.run("[...document.querySelectorAll('.text')].some(e => e.textContent.includes('<script>'))")
    assert not any(c in browser.run("document.body.textContent") for c in "\x1b\x07\u202e\u2066")


def test_the_report_is_made_anew_and_the_file_in_the_folder_never_served(browser: Browser, server: Server, runs: Path) -> None:
    """A folder of somebody else may hold a page with a program in it."""
    browser.open(f"{server.url}/run/{EVIL_NAME}")
    assert browser.run("document.querySelector('[data-item=report]').getAttribute('href')") == f"/report/{EVIL_NAME}"
    browser.driver.get(f"{server.url}/report/{EVIL_NAME}")
    assert browser.run("window.pwned === undefined && document.querySelectorAll('script, img').length == 0")
    shown = browser.run("document.body.textContent")
    assert "In short" in shown and EVIL in shown and "\\x1b[2J" in shown
    assert not any(c in shown for c in "\x1b\x07\u202e\u2066")
    write_run(runs / "plain", [row(0, 0.1), row(5, 0.2)])
    config = to_toml(resolve([{"recipe": "grpo", "task": {"name": "chain"}}]).config.model_dump(mode="json"))
    (runs / "plain" / "config.toml").write_text(config)
    (runs / "plain" / "report.html").write_text("<script>window.pwned=5</script>")
    browser.driver.get(f"{server.url}/report/plain")
    assert "held-out accuracy 0.100 → 0.200" in browser.text(".verdict")
    assert browser.run("window.pwned === undefined && document.querySelectorAll('script').length == 0")
    assert browser.run("document.querySelectorAll('svg.chart').length") == 1, "the accuracy is all that was measured"


def test_the_list_is_sorted_and_a_comparison_opens(browser: Browser, server: Server, runs: Path) -> None:
    """The heads of columns are links; what is open stands in the address; health, models and curves are on the rows."""
    from selenium.webdriver.common.keys import Keys

    for seed, end in enumerate((0.4, 0.9)):
        lost = {"rollouts/generator/invalid_rate": 1.0}
        run = write_run(runs / "pair" / "tango" / f"seed-{seed}", [row(0, 0.1), row(1, 0.2, **lost), row(5, end, **lost)], seed)
        with (run / "config.toml").open("a") as file:
            file.write('[policies.generator]\nmodel = "org/Small-1B"\n')
    (runs / "pair" / "compare.toml").write_text("")
    browser.open(f"{server.url}/?sort=-accuracy")
    names = "[...document.querySelectorAll('.runs > .row a.name, .runs > .set > .row a.name')].map(e => e.textContent)"
    browser.wait(f"{names}.includes('pair')")
    assert browser.run(names)[0] == "pair", "0.9 is the best"
    assert browser.text("[data-item='set pair'] .what") == "comparison (not finished): 1 arm, 2 runs"
    assert browser.text("[data-item='set pair'] .accuracy") == "0.400 – 0.900"
    inner = "document.querySelector(\"[data-item='pair/tango/seed-1']\")"
    assert not browser.run(f"{inner}.checkVisibility()")
    browser.run("document.querySelector(\"[data-item='set pair'] summary .fold\").click()")
    browser.wait(f"{inner}.checkVisibility() && location.search.includes('open=pair')")
    assert browser.run(f"{inner}.querySelector('.model').textContent") == "Small-1B"
    assert "unreadable" in browser.run(f"{inner}.querySelector('.health').textContent")
    assert browser.run(f"{inner}.querySelectorAll('.spark svg .line').length") == 1
    write_run(runs / "newer", [row(0, 0.95), row(1, 0.95)])
    browser.wait(f"{names}[0] == 'newer'")
    assert browser.run(f"{inner}.checkVisibility()"), "what was opened stays open when rows are built anew"
    browser.click(".runs .head a.accuracy")
    browser.wait(f"location.search == '?sort=accuracy' && {names}.indexOf('newer') > {names}.indexOf('pair')")
    assert browser.run("document.querySelector('.head a.accuracy').getAttribute('aria-sort')") == "ascending"
    browser.open(f"{server.url}/?sort=-accuracy")
    browser.wait(f"{names}[1] == 'pair'")
    browser.press("jj" + Keys.ENTER)
    browser.wait(f"{inner}.checkVisibility()")
    browser.open(f"{server.url}/?open=pair")
    browser.wait(f"{inner}?.checkVisibility()")
    browser.open(f"{server.url}/run/{quote('pair/tango/seed-1')}")
    browser.wait("document.querySelector('.finding')")
    assert browser.text(".finding .badge") == "✗ unreadable" and "policies.generator.prompt" in browser.text(".findings")
    colour = "getComputedStyle(document.querySelector('.finding .badge')).backgroundColor"
    alone = browser.run(colour)
    browser.open(f"{server.url}/comparison/pair")
    browser.wait("document.querySelector('.finding')")
    assert browser.text(".finding .badge") == "✗ unreadable" and browser.run(colour) == alone, "as on the page of a run"
    assert "tango, 2 of 2 runs; in seed 0 " in browser.text(".finding .words")
    assert browser.run("document.querySelector('.findings').compareDocumentPosition(document.querySelector('.grid'))") == 4
    assert browser.run("document.querySelectorAll('.findings').length") == 1


def test_a_report_has_heads_that_do_not_overlap_and_prints(browser: Browser, server: Server, runs: Path) -> None:
    """On paper: no dark page, no chart that is cut, all of it within a few pages."""
    (runs / "kept").mkdir()
    (runs / "kept" / "compare.toml").write_text("")
    shutil.copy(KEPT, runs / "kept" / "compare.json")
    browser.open(f"{server.url}/comparison/kept")
    browser.wait("document.querySelector('p.verdict').textContent.startsWith('Against ')")
    browser.open(f"{server.url}/comparison/kept", NARROW)
    assert browser.run("document.documentElement.scrollWidth") <= NARROW[0]
    browser.driver.get(f"{server.url}/report/kept")
    boxes = "[...document.querySelectorAll('.sheet th')].map(e => [e.scrollWidth, e.clientWidth, e.textContent])"
    heads = browser.run(boxes)
    assert len(heads) > 10 and all(inner <= outer for inner, outer, _ in heads), heads
    media = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("getComputedStyle(document.querySelector('.chart .name')).fill") == "rgb(31, 35, 40)"
    kept = "[...document.querySelectorAll('figure')].map(e => getComputedStyle(e).breakInside)"
    assert set(browser.run(kept)) == {"avoid"}
    printed = base64.b64decode(
        browser.driver.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})["data"]
    )
    pages = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert printed.startswith(b"%PDF") and 2 <= pages <= 12, f"{pages} pages"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_tiny_advantages_are_said_to_be_tiny(browser: Browser, server: Server, runs: Path) -> None:
    """Colours are relative to the largest advantage of the page; where that is next to nothing, the page says so."""
    folder = write_run(runs / "tiny", [row(1, 0.5)])
    solution = solved("1/a", "p", True)
    for turn, size in ((1, 0.0003), (2, 0.0), (3, 1.5)):
        credit = {solution.id: size * np.linspace(-1, 1, len(solution.ids))}
        write_rollouts(folder / "rollouts" / f"turn-{turn:06d}.parquet", [solution], credit)
    told = {}
    for turn in (1, 2, 3):
        browser.open(f"{server.url}/problem/tiny?turn={turn}&problem=p")
        browser.wait("document.querySelector('.credit .mean')")
        told[turn] = (
            browser.text(".legend"),
            browser.run("[...document.querySelectorAll('.credit .mean')].map(e => e.textContent)"),
        )
    assert "colours are relative to the largest here" in told[1][0] and "+0.00" not in "".join(told[1][1])
    assert "every advantage here is zero" in told[2][0]
    assert "relative" not in told[3][0] and all(len(text) == 5 for text in told[3][1])


def test_narrow_screens_do_not_scroll_sideways(browser: Browser, server: Server) -> None:
    pages = ("", f"run/{EVIL_NAME}", "run/alive", f"rollouts/{EVIL_NAME}", EVIL_PROBLEM, f"side?run={EVIL_NAME}&run=alive",
             f"probe/{EVIL_NAME}", "?open=pair", "comparison/pair")  # fmt: skip
    for page in pages:
        browser.open(f"{server.url}/{page}", NARROW)
        browser.wait("document.querySelector('.main').children.length")
        assert browser.run("document.documentElement.scrollWidth") <= NARROW[0], page


def test_light_and_dark(browser: Browser, server: Server) -> None:
    def brightness() -> float:
        colour = browser.run("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour[4:-1].split(",")) / 765

    browser.open(f"{server.url}/{EVIL_PROBLEM}", theme="light")
    assert brightness() > 0.9
    browser.open(f"{server.url}/{EVIL_PROBLEM}", theme="dark")
    assert brightness() < 0.2
    colours = "['.mark.right', '.mark.wrong'].map(s => getComputedStyle(document.querySelector(s)).color)"
    assert len(set(browser.run(colours))) == 2
    browser.press("t")
    assert brightness() > 0.9, "the key turns it"
    browser.open(f"{server.url}/run/{EVIL_NAME}", theme="dark")
    line = "getComputedStyle(document.querySelector('svg.chart .line')).stroke"
    browser.wait("document.querySelector('svg.chart .line')")
    chosen = browser.run(line)
    browser.press("t")
    assert browser.run(line) != chosen, "charts follow the page, not the system"
    browser.press("t")
    browser.open(f"{server.url}/", theme="dark")
    assert brightness() > 0.9, "and it stays turned on other pages"
    browser.click("[data-act=theme]")
    assert brightness() < 0.2
    browser.run("localStorage.clear()")


def test_keys(browser: Browser, server: Server) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(f"{server.url}/rollouts/{EVIL_NAME}")
    browser.press("?")
    assert browser.run("document.getElementById('help').open")
    assert "next, previous" in browser.text("#help")
    browser.press(Keys.ESCAPE)
    assert not browser.run("document.getElementById('help').open")
    browser.press("jjk")
    assert browser.run("document.querySelector('.at') === document.querySelector('.group')")
    browser.press(Keys.ENTER)
    browser.wait("location.pathname.startsWith('/problem/')")
    browser.wait("document.querySelectorAll('.rollout').length == 2")
    browser.press("j" + Keys.ENTER)
    browser.wait("!document.querySelector('#r0').open")
    browser.press("o")
    browser.wait("[...document.querySelectorAll('details.step:not(.bare)')].every(d => d.open)")
    browser.press(Keys.ESCAPE + Keys.ESCAPE)
    browser.wait("location.pathname.startsWith('/rollouts/')")
    browser.wait("document.querySelector('input[type=search]')")
    browser.press("/plain" + Keys.ENTER)
    browser.wait("location.search.includes('q=plain') && document.querySelectorAll('.group').length == 1")


def test_a_link_shows_another_the_same(browser: Browser, server: Server) -> None:
    browser.open(f"{server.url}/rollouts/{EVIL_NAME}")
    browser.click(".chip[title^='the verifier']")
    browser.wait("location.search == '?flag=fooled' && document.querySelectorAll('.group').length == 1")
    browser.click(".group")
    browser.wait("document.querySelectorAll('.rollout').length == 2")
    opened = "[...document.querySelectorAll('details[data-key][open]')].map(d => d.dataset.key).join()"
    assert browser.run(opened) == "0,1"
    browser.run("document.querySelector('#r0 > summary').click()")
    browser.run("document.querySelector('#r1 .step summary').click()")
    browser.wait("location.search.includes('open=1%2C1.0')")
    shared = browser.run("location.href")
    browser.driver.switch_to.new_window("tab")
    browser.open(shared)
    assert browser.run(opened) == "1,1.0"
    assert browser.run("document.querySelector('a[rel=up]').search") == "?flag=fooled", "the way up keeps the filter"
    browser.driver.close()
    browser.driver.switch_to.window(browser.driver.window_handles[0])


def test_what_is_broken_is_shown_as_what_it_is(browser: Browser, server: Server, runs: Path) -> None:
    browser.open(f"{server.url}/")
    assert "broken" in browser.text("[data-item=broken] .state")
    assert "config.toml cannot be read" in browser.text("[data-item=broken] .why")
    browser.open(f"{server.url}/run/broken")
    browser.wait("document.body.textContent.includes('no rows, and are left out: 1')")
    assert "probe.json' cannot be read" in browser.text(".probe")
    browser.open(f"{server.url}/rollouts/broken")
    assert "turn-000003.parquet cannot be read" in browser.text(".ending")
    browser.open(f"{server.url}/problem/broken?turn=3&problem=p")
    assert "cannot be read" in browser.text(".main")
    browser.open(f"{server.url}/problem/{EVIL_NAME}?turn=99&problem=p")
    assert "There is no problem 'p'" in browser.text(".main")
    assert not (runs / ".nicegui").exists(), "nothing is written where it is started"


def test_a_comparison_that_is_not_finished_has_intervals_and_then_its_verdicts(
    browser: Browser, server: Server, runs: Path
) -> None:
    for arm, ends in (("tango", (0.4, 0.6)), ("grpo", (0.3, 0.3))):
        for seed, end in enumerate(ends):
            write_run(runs / "cmp" / arm / f"seed-{seed}", [row(0, 0.1), row(5, end)], seed)
    (runs / "cmp" / "compare.toml").write_text("")
    browser.open(f"{server.url}/")
    browser.wait("document.querySelector('a[href=\"/comparison/cmp\"]')")
    browser.click("a[href='/comparison/cmp']")
    browser.wait("document.querySelector('.table')")
    cells = browser.run("[...document.querySelectorAll('.table tr')].map(r => r.children[2].textContent)")
    assert cells == ["generator: held-out accuracy", "0.300 [0.300, 0.300]", "0.500 [0.000, 1.000]"]
    browser.wait("document.querySelectorAll('svg.chart path').length > 4")
    (runs / "cmp" / "compare.json").write_text("{")
    until(lambda: "compare.json cannot be read" in browser.text(".main"), "what is wrong with its end")


def test_with_a_token_the_link_that_carries_it_opens_the_page(browser: Browser, tmp_path: Path) -> None:
    token = "a-token-for-this-test"
    write_run(tmp_path / "a", [row(0, 0.5)])
    server = Server(tmp_path, MILONGA_TOKEN=token)
    try:
        browser.driver.get(f"{server.url}/")
        assert "needs its token" in browser.run("document.body.textContent")
        browser.open(f"{server.url}/?token={token}")
        assert browser.run("location.href") == f"{server.url}/"
        browser.wait("window.did_handshake")
        with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row(7, 0.9)) + "\n")
        until(lambda: "0.900" in browser.text("[data-item=a]"), "news through a socket that the token lets in")
    finally:
        browser.driver.get("about:blank")
        server.close()
    assert all("401" in text for text in browser.complaints())


def test_what_is_not_there_is_answered_so(server: Server) -> None:
    port = int(server.url.rpartition(":")[2])
    absent = [f"{page}/nosuch" for page in ("run", "comparison", "probe", "rollouts", "problem", "report")]
    for path in (*absent, "", f"run/{EVIL_NAME}"):
        head = write_head(b"GET", f"/{path}".encode(), HOST, CLOSE)
        assert list_statuses(exchange(port, head)) == (404 if path in absent else 200,), path


def test_hostile_requests_are_refused(server: Server) -> None:
    port = int(server.url.rpartition(":")[2])
    for attack in MALFORMED:
        assert list_statuses(exchange(port, attack.data)) == attack.statuses, attack.name
    for origin, status in ((b"http://[", 403), (b"http://localhost", 200)):
        head = write_head(b"GET", b"/", HOST, CLOSE, b"Origin: " + origin + b"\r\n")
        assert list_statuses(exchange(port, head)) == (status,)


def test_the_page_shows_a_live_run(browser: Browser, server: Server, runs: Path) -> None:
    browser.open(f"{server.url}/")
    mine = "[data-item=alive] "
    until(lambda: "running" in browser.text(f"{mine}.state"), "the run on the page")
    until(lambda: browser.text(f"{mine}.turn")[:1].isdigit(), "its first turn", 60)
    seen = browser.text(f"{mine}.turn")
    until(lambda: browser.text(f"{mine}.turn") != seen, "its next turn, without loading the page again", 60)
    browser.click(f"{mine}a")
    browser.wait("document.querySelectorAll('svg.chart path').length > 20")
    assert browser.run("document.querySelectorAll('svg.chart').length") >= 6
    assert re.match(r"accuracy: [\d.]+ at \d", browser.text("svg.chart circle title")), "the value of a point is its tooltip"
    figures = "[...document.querySelectorAll('.figure')].map(f => f.innerHTML).join()"
    seen, drawn = browser.text(".facts"), browser.run(figures)
    until(lambda: browser.text(".facts") != seen, "news on the page of the run")
    until(lambda: browser.run(figures) != drawn, "charts that are drawn anew")
    browser.click("a.button[href^='/rollouts/']")
    browser.wait("document.querySelector('.group')")
    browser.click(".group")
    browser.wait("document.querySelectorAll('.rollout .step').length > 1")
    assert browser.run("document.querySelectorAll('.rollout .mark').length") > 1
