"""Bars: a promised number beside the measured number."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

from kubeocean.runtime.objects import Json

__all__ = ["Bar", "Figures", "document", "show"]

Figures = dict[str, dict[str, float]]
_HOLDS = {"≤": operator.le, "<": operator.lt, "≥": operator.ge}


@dataclass(frozen=True)
class Bar:
    """Limit that a measured number must not exceed, or must reach; `go` is the number of the Go
    implementation."""

    name: str
    value: float
    limit: float
    unit: str
    sign: Literal["≤", "<", "≥"] = "≤"
    go: str = ""

    @property
    def held(self) -> bool:
        return bool(_HOLDS[self.sign](self.value, self.limit))


def show(figures: Figures, bars: Iterable[Bar]) -> None:
    """Return both tables as text."""
    console = Console(soft_wrap=True)
    raw = Table("subject", "figure", "value", title="measured (CPU unless another unit is named)")
    for name, values in figures.items():
        for key, value in values.items():
            raw.add_row(name, key, f"{value:,.2f}")
    console.print(raw)
    table = Table("figure", "ours", "bar", "held", "Go", title="bars")
    for bar in bars:
        limit = f"{bar.sign} {bar.limit:g} {bar.unit}"
        held = "yes" if bar.held else "NO"
        table.add_row(bar.name, f"{bar.value:,.2f} {bar.unit}", limit, held, bar.go)
    console.print(table)


def document(figures: Figures, bars: Iterable[Bar]) -> Json:
    """Return numbers and bars as JSON."""
    return {"figures": figures, "bars": [asdict(bar) | {"held": bar.held} for bar in bars]}
