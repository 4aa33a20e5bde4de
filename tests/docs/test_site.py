"""The settings of the documentation's site that follow from the project's address, and what its hooks do to pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import edgefl
from tools.pages import site

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = "https://github.com/Owner/edgefl"
SETTINGS = {"docs_dir": str(DOCS), "repo_url": None, "repo_name": None, "edit_uri": None, "site_url": None}


def settings(source: str, **given: Any) -> Any:
    return site.on_config({**SETTINGS, **given, "extra": {"source": source}})


def test_all_addresses_follow_from_one_value() -> None:
    found = settings(SOURCE)
    assert found["repo_url"] == SOURCE and found["repo_name"] == "Owner/edgefl"
    assert found["edit_uri"] == "edit/main/docs/" and found["site_url"] == "https://owner.github.io/edgefl/"
    elsewhere = settings("https://code.example.org/lab/edgefl", site_url="https://example.org/")
    assert elsewhere["repo_url"] == "https://code.example.org/lab/edgefl"
    assert elsewhere["site_url"] == "https://example.org/"


def test_without_an_address_the_site_has_none() -> None:
    found = settings("")
    assert not any(found[name] for name in ("repo_url", "edit_uri", "site_url"))
    assert found["copyright"] == f"edgefl {edgefl.__version__}"
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.search(r'^  source: "(https://[^"]+)?"$', text, re.MULTILINE)


@pytest.mark.parametrize("source", ["", SOURCE])
def test_links_out_of_the_folder_lead_to_pages_or_to_the_source(source: str) -> None:
    text = (
        "[a](../LICENSE) [b](data.md#partitions) [c](../nowhere.md) [d](https://a.b/c) [e\nf](../scenarios/tour.yaml)"
    )
    found = site.with_links_inside(text, DOCS, DOCS / "page.md", source)
    tour = f"[e\nf]({SOURCE}/blob/main/scenarios/tour.yaml)" if source else "e\nf"
    assert found == f"[a](project/licence.md) [b](data.md#partitions) [c](../nowhere.md) [d](https://a.b/c) {tour}"


def test_the_site_has_the_files_of_the_repository_with_links_that_lead_somewhere() -> None:
    for file, page in site.PAGES_OF_FILES.items():
        path = DOCS / page
        text = path.read_text(encoding="utf-8")
        found = site.with_links_inside(site.with_files(text, path), DOCS, path)
        if "<!-- file: " in text:
            whole = (ROOT / file).read_text(encoding="utf-8")
            assert re.findall("^## .*", whole, re.MULTILINE) == re.findall("^## .*", found, re.MULTILINE)
        for _, target, _ in site.LINK.findall(re.sub(r"`[^`]*`", "", found)):
            assert (path.parent / target).resolve().is_relative_to(DOCS), f"{page}: {target}"


def test_a_search_finds_both_spellings() -> None:
    found = set(site.other_spellings("<p>Quantise a centralised model; optimizer, behaviour, license: otherwise size"))
    assert found == {"quantize", "centralized", "optimiser", "behavior"}
    assert site.other_spellings("optimizer and optimiser") == []
    assert site.other_spellings("analysed quantisation licence") == ["analyzed", "license", "quantization"]


def test_the_version_to_cite_is_the_installed_one() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == edgefl.__version__
    page = (DOCS / "project/cite.md").read_text(encoding="utf-8")
    assert f"version = {{{edgefl.__version__}}}" in page and citation["license"] in page
