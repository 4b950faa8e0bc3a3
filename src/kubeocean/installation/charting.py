"""Charting: from objects to the text of a Helm template.

`Marks` hands out marks, which are put into objects where a value belongs, and replaced when the
objects have become text. What looks like a template already, such as our templates for the manager,
is kept from Helm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kubeocean.installation.templates import text
from kubeocean.runtime.objects import Json

__all__ = ["Marks"]

# Letters and digits, so that a mark can be a name, and never needs quotes.
_MARK: Final = re.compile(r"zzhelm(\d+)zz")
_FOREIGN: Final = re.compile(r"\{\{.*?\}\}")
_ENTRY: Final = re.compile(r"^(?P<indent>\s*)(?:- )?'?(?P<mark>zzhelm\d+zz)'?(?:: ?'?'?)?$")
_VALUE: Final = re.compile(r"^(?P<indent>\s*)(?P<key>[\w-]+): (?P<mark>zzhelm\d+zz)$")


class Marks:
    """Places in objects, and what is to stand there."""

    def __init__(self) -> None:
        self._inline: dict[str, str] = {}
        self._lines: dict[str, str] = {}
        self._trees: dict[str, str] = {}

    def value(self, expression: str) -> str:
        """A mark for a value that is a part of a line."""
        return self._new(self._inline, f"{{{{ {expression} }}}}")

    def tree(self, expression: str) -> str:
        """A mark for a value that is a mapping or a list, of the key that it is put at."""
        return self._new(self._trees, expression)

    def line(self, lines: str) -> str:
        """A mark that is a whole entry of a list, or a key; `\\t` is replaced by its indent."""
        return self._new(self._lines, lines)

    def text(self, objects: Iterable[Json], *, condition: str = "") -> str:
        """A template file."""
        body = "---\n".join(self._one(each) for each in objects)
        return f"{{{{- if {condition} }}}}\n{body}{{{{- end }}}}\n" if condition else body

    def _new(self, table: dict[str, str], content: str) -> str:
        number = len(self._inline) + len(self._lines) + len(self._trees)
        mark = f"zzhelm{number}zz"
        table[mark] = content
        return mark

    def _one(self, body: Json) -> str:
        written = _FOREIGN.sub(lambda found: f"{{{{ `{found[0]}` }}}}", text(body))
        return "".join(f"{self._replaced(line)}\n" for line in written.splitlines())

    def _replaced(self, line: str) -> str:
        entry = _ENTRY.match(line)
        if entry is not None and entry["mark"] in self._lines:
            return self._lines[entry["mark"]].replace("\t", entry["indent"])
        value = _VALUE.match(line)
        if value is not None and value["mark"] in self._trees:
            depth = len(value["indent"]) + 2
            expression = self._trees[value["mark"]]
            return f"{value['indent']}{value['key']}: {{{{- {expression} | nindent {depth} }}}}"
        return _MARK.sub(lambda found: self._inline[found[0]], line)
