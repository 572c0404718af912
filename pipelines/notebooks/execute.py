"""Execute a notebook without Jupyter: run its cells, and store what they print, return and plot.

    TABLES=build/demo-spark .venv-spark/bin/python pipelines/notebooks/execute.py pipelines/notebooks/tables.ipynb

The notebook is written back with its outputs.
"""

import argparse
import ast
import base64
import io
import json
import os
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "agg")

import matplotlib.pyplot as plt


def execute(book: dict[str, Any]) -> dict[str, Any]:
    """Run all code cells, and store their outputs in `book`. Return the variables that the cells define."""
    names: dict[str, Any] = {}
    number = 0
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            cell["execution_count"] = number
            cell["outputs"] = run_cell("".join(cell["source"]), cell["id"], number, names)
    return names


def run_cell(source: str, name: str, number: int, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one cell. Return its outputs in notebook format: printed text, figures, and the value of its last
    expression.
    """
    tree, last = ast.parse(source, name), None
    if tree.body and isinstance(ending := tree.body[-1], ast.Expr):
        last = ast.Expression(ending.value)
        del tree.body[-1]
    printed, before = io.StringIO(), set(plt.get_fignums())
    with redirect_stdout(printed):
        exec(compile(tree, name, "exec"), names)
        value = None if last is None else eval(compile(last, name, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}
        )
    if value is not None and not hasattr(value, "figure"):
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": number,
                "metadata": {},
                "data": shown(value),
            }
        )
    outputs += [drawn(figure) for figure in plt.get_fignums() if figure not in before]
    return outputs


def shown(value: Any) -> dict[str, list[str]]:
    """Return a value as text and, if it supports that, also as HTML."""
    found = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        found["text/html"] = value._repr_html_().splitlines(keepends=True)
    return found


def drawn(number: int) -> dict[str, Any]:
    """Return a figure as a PNG."""
    image = io.BytesIO()
    plt.figure(number).savefig(image, format="png", dpi=80, bbox_inches="tight")
    data = base64.b64encode(image.getvalue()).decode()
    return {"output_type": "display_data", "metadata": {}, "data": {"image/png": data}}


def dump(book: dict[str, Any]) -> str:
    """Return a notebook as text, formatted as Jupyter does."""
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("notebook", type=Path)
    file: Path = parser.parse_args().notebook
    book = json.loads(file.read_text())
    execute(book)
    file.write_text(dump(book))


if __name__ == "__main__":
    main()
