"""python -m clients.screenshot SITE OUT.png [--text TEXT] [--scheme light]

Opens the demo page of a filled folder in headless Chromium, types a text, waits for the answer and takes a picture.
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
    """Takes a picture of the demo page."""

    site: Annotated[Path, tyro.conf.Positional]
    """Folder that examples/browser/fill.py and npm filled."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT.png")]
    """The picture to write."""
    text: str = ""
    """To type; empty leaves the page's first example."""
    scheme: Literal["light", "dark"] = "light"
    """Colours of the page."""
    width: Count = 820
    """Of the window, in pixels."""
    height: Count = 940
    """Likewise."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _picture(parse(ScreenshotConfig, argv, "python -m clients.screenshot")))


def _picture(config: ScreenshotConfig) -> int:
    from clients import chromium, site
    from clients.browser import answered, typed
    from clients.outcome import NotRunError

    if not (config.site / "index.html").is_file():
        raise InputError(f"{config.site}: expected a folder with the demo page, got one without")
    try:
        with site.served(config.site) as address, chromium.opened(["--hide-scrollbars"]) as tab:
            tab.open(address)
            tab.wait_for(answered())
            if config.text:
                tab.evaluate(typed(config.text))
                tab.wait_for(answered())
            tab.evaluate("document.activeElement.blur()")
            tab.screenshot(config.out, config.width, config.height, config.scheme)
    except (NotRunError, chromium.BrowserError) as error:
        logger.info(f"error: {error}")
        return FAILED
    print(config.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
