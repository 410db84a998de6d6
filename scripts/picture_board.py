"""Pictures of the board for the docs: real runs, made where they are missing, seen in Chromium.

    python scripts/picture_board.py runs/pictures                      # writes docs/images/board-*.png
    python scripts/picture_board.py runs/pictures --out pictures --only runs

The runs are small ones of the embedded models, a quarter of an hour on two cores. Each picture is a page as a reader sees it at
first, cut at a height; one of more than 200 kB is an error.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milonga.board.browse import Filters, Rollouts
from milonga.board.pages.parts import make_url

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
MOST_BYTES = 200_000
SETTINGS = ("batch.problems=16", "eval.problems=32", "eval.samples=2", "eval.bench=32", "eval.greedy=false", "eval.every=2")
SMALL = tuple(word for setting in (*SETTINGS, "keep.rollouts_every=5", "device=cpu") for word in ("--set", setting))
STUDY = """[common]
turns = 6
device = "cpu"
task = { name = "chain" }
batch = { problems = 16, rollouts = 8 }
eval = { problems = 32, samples = 2, bench = 32, greedy = false, every = 2 }
[[runs]]
name = "rates"
recipe = ["grpo"]
seeds = [0, 1]
grid = { lr = [1e-5, 1e-4] }
"""
RUNS = {
    "tango": ("run", "tango", "--turns", "16", "--probe", *SMALL, "--set", "options.warmup=4"),
    "grpo-letters": ("run", "grpo", "--task", "last_letter", "--turns", "8", *SMALL),
    "tango-or-grpo": ("compare", "grpo", "tango", "frozen", "--seeds", "3", "--turns", "8", *SMALL),
    "rates": ("sweep", "study.toml"),
}
"""Folder -> the command that makes it."""


@dataclass(frozen=True)
class Picture:
    """A page and how it is looked at."""

    url: str
    width: int = 1240
    height: int = 1000
    """Where the picture is cut; a shorter page is shown whole."""
    theme: str = "light"


def make_runs(folder: Path) -> None:
    """Make the runs that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text(STUDY)
    for name, command in RUNS.items():
        if not (folder / name).exists():
            subprocess.run([sys.executable, "-m", "milonga", *command, "--out", name], cwd=folder, check=True)


def list_pictures(folder: Path) -> dict[str, Picture]:
    turn, problem = find_problem(folder / "tango" / "rollouts")
    return {
        "runs": Picture(make_url("", open="tango-or-grpo"), height=860),
        "run": Picture(make_url("run", "tango"), height=945),
        "comparison": Picture(make_url("comparison", "tango-or-grpo"), height=1015, theme="dark"),
        "transcript": Picture(make_url("problem", "tango", turn=turn, problem=problem), height=852),
    }


def find_problem(folder: Path) -> tuple[int, str]:
    """Find the newest problem that some of its rollouts solved, and others not."""
    rollouts = Rollouts(folder, terse=True)
    groups = (one for turn in rollouts.list_turns() for one in rollouts.list_problems(Filters(turn=turn)).groups)
    return next((one.turn, one.problem) for one in groups if 0 < one.solved < one.graded)


@contextmanager
def serve_board(folder: Path) -> Iterator[str]:
    """Start the board as a user does; yield its address."""
    command = [sys.executable, "-m", "milonga", "board", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"MILONGA_TOKEN": ""})
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split(": ")[1].split("  ")[0].rstrip("/")
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def open_chromium() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or sys.exit("no chromium: make browser")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def take_picture(driver: Any, address: str, picture: Picture, out: Path) -> None:
    features = [{"name": "prefers-color-scheme", "value": picture.theme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    resize(driver, picture, picture.height)
    driver.get(f"{address}{picture.url}")
    until = time.monotonic() + 20
    while time.monotonic() < until and not driver.execute_script(
        "return window.did_handshake && document.querySelector('.main')"
    ):
        time.sleep(0.1)
    time.sleep(1)  # charts are drawn by then
    whole = int(driver.execute_script("return document.querySelector('.main').getBoundingClientRect().bottom"))
    resize(driver, picture, min(picture.height, whole))
    time.sleep(0.3)
    driver.save_screenshot(str(out))
    if out.stat().st_size > MOST_BYTES:
        sys.exit(f"{out} has {out.stat().st_size:,} bytes: cut it lower")


def resize(driver: Any, picture: Picture, height: int) -> None:
    size = {"width": picture.width, "height": height, "deviceScaleFactor": 1, "mobile": picture.width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the runs are, or will be")
    parser.add_argument("--out", type=Path, default=IMAGES)
    parser.add_argument("--only", nargs="+", default=[], help="names of pictures")
    args = parser.parse_args()
    make_runs(args.folder)
    args.out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as place,
        serve_board(link_runs(args.folder, Path(place))) as address,
        open_chromium() as driver,
    ):
        for name, picture in list_pictures(args.folder).items():
            if not args.only or name in args.only:
                take_picture(driver, address, picture, args.out / f"board-{name}.png")


def link_runs(folder: Path, place: Path) -> Path:
    """Make a folder `runs` with the runs of the pictures, so that nobody's path is on them."""
    (place / "runs").mkdir()
    for name in RUNS:
        (place / "runs" / name).symlink_to(folder.resolve() / name)
    return place / "runs"


if __name__ == "__main__":
    main()
