import pytest

from tests.lib.browser import Browser


@pytest.fixture(scope="session")
def browser():
    """One browser for all pages: to start it costs more than most of their tests."""
    with Browser() as browser:
        yield browser
