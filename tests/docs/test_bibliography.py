"""The bibliography: every method has its paper, and a file that doesn't fit the parts is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.pages import bibliography
from tools.pages.markdown import registered


def test_every_method_names_its_paper_and_every_paper_has_an_identifier_or_is_known_to_have_none() -> None:
    papers = bibliography.entries(bibliography.BIB.read_text(encoding="utf-8"))
    baselines = {name for name, method in registered("methods").items() if not method.paper}
    assert baselines == {"central", "local"}
    assert all(method.paper in papers for name, method in registered("methods").items() if name not in baselines)
    without = {name for name, entry in papers.items() if not {"eprint", "doi", "url"} & entry.keys()}
    assert without == {"Krizhevsky 2009", "Pang and Lee 2004"}
    assert all({"title", "year"} <= entry.keys() for entry in papers.values())


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("  shorthand = {McMahan et al. 2017},", "  shorthand = {McMahan 2017},", "method fedavg: .*no entry"),
        ("{tower gru}", "{tower gur}", "Cho et al. 2014: there is no tower gur"),
        ("  keywords = {tower gru},\n", "", "nothing in edgefl comes from Cho et al. 2014"),
        ("  title = {LoRA: ", "  title = LoRA: ", "one field a line"),
    ],
)
def test_what_does_not_fit_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, error: str
) -> None:
    text = bibliography.BIB.read_text(encoding="utf-8")
    assert text.count(old) == 1
    monkeypatch.setattr(bibliography, "BIB", tmp_path / "papers.bib")
    bibliography.BIB.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=error):
        bibliography.bibliography_page()
