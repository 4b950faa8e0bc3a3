"""Words: times and amounts as people read them; documents have them exact."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from kubeocean.leasing.amounts import Amounts
from kubeocean.runtime.quantity import Format, Quantity
from kubeocean.view.model import Edge

__all__ = ["ago", "amount", "edge", "span", "used_of"]

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
_FAR: Final = timedelta(days=6)  # beyond it the day of the week could be mistaken


def span(time: timedelta) -> str:
    """`3d4h`, `5h12m`, `12m30s`, `40s`: the two largest units."""
    left = max(int(time.total_seconds()), 0)
    for position, (unit, seconds) in enumerate(_UNITS):
        if left >= seconds:
            count, rest = divmod(left, seconds)
            smaller = _UNITS[position + 1] if position + 1 < len(_UNITS) else None
            more = rest // smaller[1] if smaller else 0
            return f"{count}{unit}{more}{smaller[0]}" if smaller and more else f"{count}{unit}"
    return "0s"


def ago(since: datetime | None, now: datetime) -> str:
    """How long something is so; nothing, if nobody knows."""
    return "" if since is None else span(now - since)


def edge(next_: Edge | None, now: datetime) -> str:
    """`closes Tue 06:01 Europe/Berlin, in 5h12m`."""
    if next_ is None:
        return "-"
    form = "%a %H:%M" if next_.time - now < _FAR else "%a %d %b %H:%M"
    verb = "opens" if next_.opens else "closes"
    when = f"{verb} {next_.local:{form}} {next_.zone}".rstrip()
    return f"{when}, in {span(next_.time - now)}" if next_.time > now else f"{when}, overdue"


def amount(resource: str, quantity: Quantity | None) -> str:
    """`3.5` cores, `15.6Gi`, `110`; `-` if nobody knows."""
    if quantity is None:
        return "-"
    if resource == "memory" or quantity.format is Format.BINARY_SI:
        return _bytes(quantity)
    return _decimal(quantity.milli_value() / 1000)


def used_of(resource: str, used: Amounts, lent: Amounts) -> str:
    """`1.5 of 4`."""
    whole = amount(resource, lent.get(resource))
    return f"{amount(resource, used.get(resource))} of {whole}" if used else whole


def _bytes(quantity: Quantity) -> str:
    whole = quantity.value()
    power = min(max(abs(whole).bit_length() - 1, 0) // 10, len(_BINARY) - 1)
    return f"{_decimal(whole / 1024**power, places=1)}{_BINARY[power]}"


def _decimal(number: float, *, places: int = 3) -> str:
    """With as many places as matter; large numbers have none."""
    shown = f"{number:.{places if abs(number) < 100 else 1}f}"
    return shown.rstrip("0").rstrip(".")
