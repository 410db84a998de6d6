"""A report as PDF, printed by a browser that is installed. No other part of Milonga needs one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from milonga.errors import UserError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
HINT = "install chromium, or open the HTML file in any browser and print it"
LIMIT_S = 120


def find_browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise UserError(f"--pdf needs a browser that prints ({', '.join(BROWSERS[:3])}), and none is installed: {HINT}")
    return found


def print_pdf(page: Path, out: Path, browser: str) -> None:
    """The page holds no script and may load nothing, so that printing it runs nothing of anybody's."""
    with tempfile.TemporaryDirectory() as profile:
        draft = Path(profile) / "report.pdf"
        command = [browser, "--headless", "--disable-gpu", f"--user-data-dir={profile}/profile", "--no-pdf-header-footer"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.append("--no-sandbox")  # chromium has no sandbox for root
        try:
            subprocess.run(
                [*command, f"--print-to-pdf={draft}", page.resolve().as_uri()],
                check=True,
                capture_output=True,
                timeout=LIMIT_S,
            )
            shutil.copyfile(draft, out)
        except (subprocess.SubprocessError, OSError) as error:
            raise UserError(f"'{browser}' could not print '{out}' ({type(error).__name__}): {HINT}") from None
