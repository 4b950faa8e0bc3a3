"""Tests that the page of rights is up to date."""

from __future__ import annotations

from pathlib import Path

from kubeocean.install.rights_page import rights_page

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "rights.md"


def test_the_page_of_rights_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == rights_page()  # else run scripts/manifests
