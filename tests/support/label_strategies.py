"""Labels and label selectors as hypothesis strategies: few keys and values, so that they meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import strategies as st

__all__ = ["INTEGERS", "KEYS", "VALUES", "Wish", "labels", "wishes"]

KEYS = ("a", "b", "in", "notin", "example.com/c")
VALUES = ("", "x", "y", "in", "1", "2", "10", "007", "9223372036854775807", "v1.0_z")
INTEGERS = ("0", "1", "2", "9", "10", "007", "9223372036854775807")
OPERATORS = ("=", "==", "!=", "in", "notin", "exists", "!", ">", "<")


@dataclass(frozen=True)
class Wish:
    """Requirement of a label selector, with a naive implementation of its meaning."""

    key: str
    operator: str
    values: tuple[str, ...]
    space: str

    @property
    def text(self) -> str:
        space = self.space
        if self.operator == "exists":
            return f"{space}{self.key}{space}"
        if self.operator == "!":
            return f"!{space}{self.key}"
        if self.operator in ("in", "notin"):
            listed = f"{space},{space}".join(self.values)
            return f"{self.key} {self.operator}{space}({listed})"
        return f"{self.key}{space}{self.operator}{space}{self.values[0]}"

    def met_by(self, labels: Mapping[str, str]) -> bool:
        present, value = self.key in labels, labels.get(self.key, "")
        if self.operator in ("exists", "!"):
            return present is (self.operator == "exists")
        if self.operator in ("<", ">"):
            if not (present and value.isdigit()):
                return False
            bound = int(self.values[0])
            return int(value) > bound if self.operator == ">" else int(value) < bound
        among = present and value in self.values
        return not among if self.operator in ("!=", "notin") else among


@st.composite
def _wishes(draw: st.DrawFn) -> Wish:
    operator = draw(st.sampled_from(OPERATORS))
    values: tuple[str, ...] = ()
    if operator in (">", "<"):
        values = (draw(st.sampled_from(INTEGERS)),)
    elif operator in ("in", "notin"):
        # Unique, because an API server stumbles over several empty values side by side.
        values = tuple(draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=4, unique=True)))
    elif operator in ("=", "==", "!="):
        values = (draw(st.sampled_from(VALUES)),)
    space = draw(st.sampled_from(["", " ", "  ", "\t", "\n"]))
    return Wish(draw(st.sampled_from(KEYS)), operator, values, space)


def wishes() -> st.SearchStrategy[list[Wish]]:
    """Up to four requirements."""
    return st.lists(_wishes(), max_size=4)


def labels() -> st.SearchStrategy[dict[str, str]]:
    """Return a strategy of an object's labels."""
    return st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=5)
