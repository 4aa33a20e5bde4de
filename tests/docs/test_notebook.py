"""The notebook of the documentation runs, shows tables and figures, and holds the code that it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "guides" / "notebook.ipynb"


@pytest.mark.slow(smaller="test_what_a_page_shows_is_what_happens")
@pytest.mark.filterwarnings("ignore")  # jupyter's packages warn of each other
def test_the_notebook_runs_and_shows_tables_and_figures(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}

    def html(start: str) -> str:
        (outputs,) = [outputs for source, outputs in shown.items() if source.startswith(start)]
        return "".join(output.data.get("text/html", "") for output in outputs if "data" in output)

    profile = html("edgefl.profile")
    assert profile.count("<tr>") == 1 + 2 * 2 and "data:image/png;base64," in profile  # two kinds by two stages
    assert html("edgefl.sweep").count("<tr>") == 1 + 3
    assert "<td>as it stands</td>" in html("edgefl.fit")
    assert "<td>layerwise</td>" in html("run = edgefl.run") and "data:image/png" in html("run = edgefl.run")
    bar = str([outputs for source, outputs in shown.items() if source.startswith("run = edgefl.run")])
    assert "100%" in bar
    assert any("image/png" in output.get("data", {}) for output in shown[next(s for s in shown if "plot" in s)])
    assert "compute" in html("import pandas")
    assert (tmp_path / "runs" / "notebook" / "result.json").exists()
    assert (tmp_path / "runs" / "halfway" / "result.json").exists()
