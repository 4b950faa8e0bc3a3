"""Text of status, top, explain and doctor: times, amounts, lists and tables.

Documents for programs hold exact values; the functions of this module are for people. Names and
messages come from other people's clusters, so `plain` and `clean` remove the control characters
that a terminal would interpret.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from kubeocean.leasing.amounts import PODS, Amounts
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.quantity import Format, Quantity

if TYPE_CHECKING:
    from kubeocean.inspect.status.model import Edge
    from kubeocean.runtime.kinds import Taint

__all__ = [
    "Cell",
    "Line",
    "Tone",
    "age",
    "ago",
    "amount",
    "amounts",
    "brief",
    "clean",
    "edge",
    "few",
    "in_order",
    "line",
    "moment",
    "plain",
    "span",
    "table",
    "taint_text",
    "used_of",
    "zone_name",
]

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
_FAR: Final = timedelta(days=6)  # later than this, a day of the week alone would be ambiguous
_FIRST: Final = ("cpu", "memory")


# Times


def span(time: timedelta) -> str:
    """Return a duration in its two largest units: `3d4h`, `5h12m`, `12m30s`, `40s`."""
    left = max(int(time.total_seconds()), 0)
    for position, (unit, seconds) in enumerate(_UNITS):
        if left >= seconds:
            count, rest = divmod(left, seconds)
            smaller = _UNITS[position + 1] if position + 1 < len(_UNITS) else None
            more = rest // smaller[1] if smaller else 0
            return f"{count}{unit}{more}{smaller[0]}" if smaller and more else f"{count}{unit}"
    return "0s"


def ago(since: datetime | None, now: datetime) -> str:
    """Return the time since `since` as a span; empty if `since` is not known."""
    return "" if since is None else span(now - since)


def age(instant: datetime, now: datetime) -> str:
    """Return the age of a time: `4 s ago (2026-11-16T06:42:50Z)`, in its largest useful unit."""
    seconds = max(0, round((now - instant) / timedelta(seconds=1)))
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago ({text_of(instant)})"
    return f"{seconds} s ago ({text_of(instant)})"


def moment(instant: datetime, zone: tzinfo = UTC) -> str:
    """Return an instant as the wall clock of a zone shows it."""
    local = instant.astimezone(zone)
    return f"{local:%a %Y-%m-%d %H:%M:%S} {zone_name(zone)}"


def zone_name(zone: tzinfo) -> str:
    """Return the IANA name of a zone."""
    return "UTC" if zone is UTC else str(zone)


def edge(next_: Edge | None, now: datetime) -> str:
    """Return the next edge of a window: `closes Tue 06:01 Europe/Berlin, in 5h12m`; `-` if none."""
    if next_ is None:
        return "-"
    form = "%a %H:%M" if next_.time - now < _FAR else "%a %d %b %H:%M"
    verb = "opens" if next_.opens else "closes"
    when = f"{verb} {next_.local:{form}} {next_.zone}".rstrip()
    return f"{when}, in {span(next_.time - now)}" if next_.time > now else f"{when}, overdue"


# Amounts


def amount(resource: str, quantity: Quantity | None) -> str:
    """Return an amount of a resource: `3.5` cores, `15.6Gi`, `110`; `-` if it is not known."""
    if quantity is None:
        return "-"
    if resource == "memory" or quantity.format is Format.BINARY_SI:
        return _bytes(quantity)
    return _decimal(quantity.milli_value() / 1000)


def used_of(resource: str, used: Amounts, lent: Amounts) -> str:
    """Return used and lent amount of a resource: `1.5 of 4`."""
    whole = amount(resource, lent.get(resource))
    return f"{amount(resource, used.get(resource))} of {whole}" if used else whole


def amounts(quantities: Amounts) -> str:
    """Return the amounts of all resources but pods: `cpu 2, memory 4Gi`."""
    named = (name for name in in_order(quantities) if name != PODS and quantities[name])
    return ", ".join(f"{name} {quantities[name]}" for name in named) or "nothing"


def in_order(resources: Iterable[str]) -> list[str]:
    """Sort names of resources: cpu and memory first, then the others by name."""
    return sorted(resources, key=lambda name: (name not in _FIRST, name))


def _bytes(quantity: Quantity) -> str:
    whole = quantity.value()
    power = min(max(abs(whole).bit_length() - 1, 0) // 10, len(_BINARY) - 1)
    return f"{_decimal(whole / 1024**power, places=1)}{_BINARY[power]}"


def _decimal(number: float, *, places: int = 3) -> str:
    """Round to `places`, or to one place from 100 on, without trailing zeros."""
    shown = f"{number:.{places if abs(number) < 100 else 1}f}"
    return shown.rstrip("0").rstrip(".")


# Lists and taints


def few(names: Iterable[str], *, shown: int = 5, separator: str = ", ") -> str:
    """Return the first names as text, and how many more there are."""
    known = list(names)
    joined = separator.join(known[:shown])
    if len(known) <= shown:
        return joined
    before = " " if separator == ", " else separator
    return f"{joined}{before}and {len(known) - shown} more"


def taint_text(taint: Taint) -> str:
    """Return a taint as kubectl writes it."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


# Lines and tables


class Tone(StrEnum):
    """The style in which a terminal shows a cell; the values are styles of rich."""

    PLAIN = ""
    HEAD = "bold"
    GOOD = "green"
    BAD = "bold red"
    WARN = "yellow"
    DIM = "dim"


class Cell(NamedTuple):
    """A piece of a line: text with a tone."""

    text: str
    tone: Tone = Tone.PLAIN


Line: TypeAlias = tuple[Cell, ...]


def line(text: str, tone: Tone = Tone.PLAIN) -> Line:
    """Return a line that consists of one cell."""
    return (Cell(text, tone),)


def clean(text: str) -> str:
    """Replace each character that cannot be printed by a space."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def brief(text: str, longest: int) -> str:
    """Return a text that another program wrote, cut to `longest` characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def plain(lines: Iterable[Line]) -> str:
    """Return lines as text without tones, control characters and trailing spaces."""
    texts = (clean("".join(cell.text for cell in each)).rstrip() for each in lines)
    return "".join(f"{text}\n" for text in texts)


def table(
    head: Sequence[str], rows: Iterable[Sequence[Cell | str]], *, gap: str = "   "
) -> list[Line]:
    """Return a table's head and rows as lines, each column as wide as its widest cell."""
    cells = [tuple(Cell(name, Tone.HEAD) for name in head)]
    cells += [tuple(each if isinstance(each, Cell) else Cell(each) for each in row) for row in rows]
    widths = [max(len(cell.text) for cell in column) for column in zip(*cells, strict=True)]
    return [_padded(row, widths, gap) for row in cells]


def _padded(row: Sequence[Cell], widths: Sequence[int], gap: str) -> Line:
    last = len(row) - 1
    return tuple(
        cell if position == last else Cell(f"{cell.text:<{width}}{gap}", cell.tone)
        for position, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
