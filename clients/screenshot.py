"""python -m clients.screenshot SITE OUT.png [--text TEXT] [--scheme light]

Opens the demo page of a site folder in headless Chromium, types a text, waits for the prediction and saves a
screenshot.
"""  # noqa: D415

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from kmha.errors import InputError
from training.cli.bounds import Count
from training.cli.parser import FAILED, parse, run

logger = logging.getLogger("kmha")


@dataclass(frozen=True)
class ScreenshotConfig:
    """Takes a screenshot of the demo page."""

    site: Annotated[Path, tyro.conf.Positional]
    """Folder filled by examples/browser/fill.py and npm."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT.png")]
    """Output file."""
    text: str = ""
    """Text to type; default: the first example of the page."""
    scheme: Literal["light", "dark"] = "light"
    """Color scheme of the page."""
    width: Count = 820
    """Window width in pixels."""
    height: Count = 940
    """Window height in pixels."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _take_screenshot(parse(ScreenshotConfig, argv, "python -m clients.screenshot")))


def _take_screenshot(config: ScreenshotConfig) -> int:
    from clients import chromium
    from clients.browser import has_prediction_script, type_text_script
    from clients.comparison import ClientUnavailableError

    if not (config.site / "index.html").is_file():
        raise InputError(f"{config.site}: expected a folder with the demo page, got one without index.html")
    try:
        with (
            chromium.serve_folder(config.site) as address,
            chromium.open_browser(["--hide-scrollbars"]) as tab,
        ):
            tab.open(address)
            tab.wait_for(has_prediction_script())
            if config.text:
                tab.evaluate(type_text_script(config.text))
                tab.wait_for(has_prediction_script())
            tab.evaluate("document.activeElement.blur()")
            tab.screenshot(config.out, config.width, config.height, config.scheme)
    except (ClientUnavailableError, chromium.BrowserError) as error:
        logger.info(f"error: {error}")
        return FAILED
    print(config.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
