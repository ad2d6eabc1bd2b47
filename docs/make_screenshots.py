"""The pictures of the README, made anew: docs/images/*.png.

    .venv/bin/python docs/make_screenshots.py onefold-demo/run
    .venv/bin/python docs/make_screenshots.py onefold-demo/run --console http://127.0.0.1:7658

Of a run that is there (``./run`` leaves one), and of a console that is running. Needs chromium.
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from onefold import RunReport  # noqa: E402  # after the path to the tests' browser
from tests.lib.browser import Browser, Page  # noqa: E402

IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 1120, 1010
BYTES_MAX = 150_000


def main() -> int:
    """Take the pictures; 1 if one is too large for a README."""
    words = argparse.ArgumentParser(description="Make the pictures of the README.")
    words.add_argument("run", type=Path, help="the folder of a run")
    words.add_argument("--console", help="the address of a running console")
    given = words.parse_args()
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Browser() as browser, browser.page() as page:
        file = Path(folder) / "report.html"
        file.write_text(RunReport.load(given.run).html(), encoding="utf-8")
        for scheme in ("light", "dark"):
            take(page, file.as_uri(), scheme, IMAGES / f"report-{scheme}.png")
        if given.console:
            take(page, given.console, "light", IMAGES / "console.png")
    large = [path.name for path in IMAGES.glob("*.png") if path.stat().st_size > BYTES_MAX]
    print(f"too large: {', '.join(large)}" if large else f"in {IMAGES}", file=sys.stderr)
    return 1 if large else 0


def take(page: Page, address: str, scheme: str, path: Path) -> None:
    """One picture of the upper end of a page."""
    page.viewport(WIDTH, HEIGHT)
    page.scheme(scheme)
    page.goto(address)
    page.until("!document.querySelector('#views') || document.querySelector('.view .count')?.textContent")
    page.screenshot(path)


if __name__ == "__main__":
    sys.exit(main())
