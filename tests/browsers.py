"""What a test needs that opens a page."""

import shutil

import pytest

from clients import chromium

# A browser is no Python package: machines without one run everything else.
needs_chromium = pytest.mark.skipif(
    not any(map(shutil.which, chromium.NAMES)), reason="no Chromium is installed"
)
