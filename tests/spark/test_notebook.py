"""The notebook runs as it stands, and shows what is written down in it."""

import nbformat

from tests.lib.notebook import NOTEBOOK, executed


def lines(cell):
    """Its source, and what it shows, line by line: so a failure names the line."""
    text = nbformat.writes(nbformat.v4.new_notebook(cells=[cell]))
    return text.replace("\\n", "\n").splitlines()


def test_the_notebook_shows_what_is_written_down_in_it(tmp_path):
    written = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(written)
    shown = executed(tmp_path)
    for cell, again in zip(written.cells, shown.cells, strict=True):
        assert lines(again) == lines(cell), "if that is meant: python -m tests.lib.notebook"
