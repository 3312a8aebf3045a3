"""Fixtures for the tests of grammars."""

from pathlib import Path

import pytest

from tests.worker.grammar.walk import Vocabulary


@pytest.fixture(scope="session")
def vocabulary(demo_folder: Path) -> Vocabulary:
    return Vocabulary(demo_folder)
