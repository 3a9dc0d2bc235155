"""Marks tests that need a browser."""

import shutil

import pytest

from clients import chromium

# A browser is not a Python package, so it may be missing.
needs_chromium = pytest.mark.skipif(
    not any(map(shutil.which, chromium.NAMES)), reason="Chromium is not installed"
)
