"""Printing of views for people, with colours where stdout is a terminal.

The environment variable NO_COLOR turns colours off (no-color.org).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.text import Text

    from kubeocean.inspect.format import Line

__all__ = ["console", "on_terminal", "print_lines", "print_page", "styled"]

_LONGEST_LINE: Final = 4000  # characters


def on_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines, with colours on a terminal."""
    if not on_terminal():
        from kubeocean.inspect.format import plain

        typer.echo(plain(lines), nl=False)
        return
    console().print(styled(lines), soft_wrap=True)


def print_page(lines: Iterable[str]) -> None:
    """Print lines of text without control characters, and without the end of very long ones.

    Programs of other clusters wrote parts of them.
    """
    from kubeocean.inspect.format import brief, clean

    for line in lines:
        typer.echo(clean(brief(line, _LONGEST_LINE)))


def console() -> Console:
    """Return a console that writes to stdout with colours."""
    from rich.console import Console

    return Console(highlight=False, markup=False)


def styled(lines: Iterable[Line]) -> Text:
    """Return lines as text with colours, one for each tone."""
    from rich.text import Text

    from kubeocean.inspect.format import clean

    text = Text(overflow="fold")
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for cell in line:
            text.append(clean(cell.text), style=cell.tone.value or None)
    return text
