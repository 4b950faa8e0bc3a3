"""Presenting: views on stdout, for people and for programs.

Colours are for terminals, and for those who did not ask to be spared (no-color.org).
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.text import Text

    from kubeocean.runtime.objects import Json
    from kubeocean.view.tables import Line

__all__ = ["Style", "StyleOption", "console", "on_terminal", "present", "print_lines", "styled"]


class Style(StrEnum):
    """How a view is printed."""

    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_document(self) -> bool:
        return self in (Style.JSON, Style.YAML)


StyleOption = Annotated[
    Style, typer.Option("--output", "-o", help="Text, or wide, for people; documents for programs.")
]


def on_terminal() -> bool:
    """Whether somebody looks at stdout."""
    return sys.stdout is not None and sys.stdout.isatty()


def present(document: Json, style: Style) -> None:
    """A view for programs."""
    from kubeocean.cli.output import Format, print_document

    print_document(document, Format(style.value))


def print_lines(lines: Iterable[Line]) -> None:
    """A view for people."""
    if not on_terminal():
        from kubeocean.view.tables import plain

        typer.echo(plain(lines), nl=False)
        return
    console().print(styled(lines), soft_wrap=True)


def console() -> Console:
    """The terminal."""
    from rich.console import Console

    return Console(highlight=False, markup=False)


def styled(lines: Iterable[Line]) -> Text:
    """With colours."""
    from rich.text import Text

    from kubeocean.view.tables import clean

    text = Text(overflow="fold")
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for cell in line:
            text.append(clean(cell.text), style=cell.tone.value or None)
    return text
