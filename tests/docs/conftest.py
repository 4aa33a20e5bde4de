"""The examples of the documentation, written down as the package that they are, and installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.pages import running


@pytest.fixture(scope="module")
def mylab(install: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all files of all pages."""
    folder = tmp_path_factory.mktemp("mylab")
    running.write_package(folder)
    install(folder)
    return folder
