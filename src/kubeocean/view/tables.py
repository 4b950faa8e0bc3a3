"""Tables: rows of words in columns, each word with a tone that a terminal may show as a colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

__all__ = ["Cell", "Line", "Tone", "clean", "line", "plain", "table"]

_GAP = "   "


class Tone(StrEnum):
    """How something is meant; the values are styles of rich."""

    PLAIN = ""
    HEAD = "bold"
    GOOD = "green"
    BAD = "bold red"
    WARN = "yellow"
    DIM = "dim"


class Cell(NamedTuple):
    """A word or some, and how they are meant."""

    text: str
    tone: Tone = Tone.PLAIN


Line: TypeAlias = tuple[Cell, ...]


def line(text: str, tone: Tone = Tone.PLAIN) -> Line:
    """A line of its own."""
    return (Cell(text, tone),)


def clean(text: str) -> str:
    """Without what a terminal would obey: much of what is shown was written by others."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def plain(shown: Iterable[Line]) -> str:
    """The text, as any file can hold it."""
    lines = (clean("".join(cell.text for cell in each)).rstrip() for each in shown)
    return "".join(f"{each}\n" for each in lines)


def table(head: Sequence[str], rows: Iterable[Sequence[Cell | str]]) -> list[Line]:
    """Rows below their heads; every column as wide as its widest word."""
    cells = [tuple(Cell(name, Tone.HEAD) for name in head)]
    cells += [tuple(each if isinstance(each, Cell) else Cell(each) for each in row) for row in rows]
    widths = [max(len(cell.text) for cell in column) for column in zip(*cells, strict=True)]
    return [_padded(row, widths) for row in cells]


def _padded(row: Sequence[Cell], widths: Sequence[int]) -> Line:
    last = len(row) - 1
    return tuple(
        cell if at == last else Cell(f"{cell.text:<{width}}{_GAP}", cell.tone)
        for at, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
