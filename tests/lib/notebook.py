"""The notebook of examples/, run from its first cell to its last in a kernel of its own.

``python -m tests.lib.notebook`` runs it and writes down what it shows; the test compares that with another run.
"""

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "duplicates.ipynb"


def executed(folder: Path) -> Any:
    """The notebook with what its cells show when it runs in this folder, free of the folder's name."""
    notebook = nbformat.read(NOTEBOOK, 4)
    ours = {name: text for name, text in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_", "COLUMNS"))}
    # Without frozen modules the kernel's debugger has nothing to warn of.
    with mock.patch.dict(os.environ, {**ours, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}, clear=True):
        client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}})
        client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type == "code":
            cell.outputs = [nbformat.from_dict(output) for output in shown(cell.outputs, str(folder))]
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def shown(outputs: list[Any], folder: str) -> list[dict[str, Any]]:
    """What a cell shows: its text in one piece, and of a picture or a table what every reader can draw."""
    text = "".join(output["text"] for output in outputs if output["output_type"] == "stream").replace(f"{folder}/", "")
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    streams = [{"output_type": "stream", "name": "stderr", "text": text}] if text else []
    return [*streams, *(dict(output) for output in outputs if output["output_type"] != "stream")]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        nbformat.write(executed(Path(place)), NOTEBOOK)
