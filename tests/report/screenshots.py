"""The pages as a browser shows them: pictures in every width and theme, and what it asks the net.

``python -m tests.report.screenshots AUDIT.json FOLDER`` renders both pages of an audit and takes
pictures at 1,280 and 390 pixels, light, dark and as printed; with ``--readme`` the one of README.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from privpipe.report.release_page import render_public_page, render_release_page

__all__ = ["find_browser", "list_requests", "take_picture"]

QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)

THEMES = {
    "light": ("--blink-settings=preferredColorScheme=1",),
    "dark": ("--blink-settings=preferredColorScheme=0",),
}

WIDTHS = {1280: 2600, 390: 3600}
"""Heights by width, in pixels."""


def find_browser() -> str | None:
    """The command of a Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


def _browse(page: Path, *options: str) -> None:
    browser = find_browser()
    assert browser is not None, "look with `find_browser` first"
    with tempfile.TemporaryDirectory(prefix="browser-") as home:
        subprocess.run(
            [browser, *QUIET, f"--user-data-dir={home}", *options, page.resolve().as_uri()],
            check=True,
            capture_output=True,
            timeout=120,
        )


def take_picture(page: Path, picture: Path, width: int, height: int, *options: str) -> None:
    """The page in a window of this size, as PNG."""
    _browse(page, f"--window-size={width},{height}", f"--screenshot={picture.resolve()}", *options)


def list_requests(page: Path) -> set[str]:
    """Addresses beyond this machine that the browser asks for while it shows the page."""
    with tempfile.TemporaryDirectory(prefix="netlog-") as folder:
        log = Path(folder, "net.json")
        _browse(page, f"--log-net-log={log}", "--dump-dom")
        found = set(re.findall(r'"url":"((?:https?|wss?|ftp)://[^"]+)"', log.read_text()))
    # The browser itself looks for its own updates, whatever it is told; no page sees these.
    return {url for url in found if not re.match(r"https?://[a-z0-9.-]*google(apis)?\.com/", url)}


def main(audit: str, folder: str) -> None:
    """Both pages in every width and theme, and as PDF."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    findings = json.loads(Path(audit).read_text())
    for name, render in (("report", render_release_page), ("public", render_public_page)):
        page = place / f"{name}.html"
        page.write_text(render(findings))
        for width, height in WIDTHS.items():
            for theme, options in THEMES.items():
                picture = place / f"{name}-{width}-{theme}.png"
                take_picture(page, picture, width, height, *options)
        _browse(page, f"--print-to-pdf={(place / name).resolve()}.pdf", "--no-pdf-header-footer")


def make_readme_picture(audit: str, picture: str) -> None:
    """The top of the report, small."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        page.write_text(render_release_page(json.loads(Path(audit).read_text())))
        take_picture(page, Path(picture), 1180, 1000, "--force-device-scale-factor=0.7")


if __name__ == "__main__":
    if sys.argv[1] == "--readme":
        make_readme_picture(sys.argv[2], sys.argv[3])
    else:
        main(sys.argv[1], sys.argv[2])
