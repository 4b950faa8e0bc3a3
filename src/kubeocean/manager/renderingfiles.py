"""Template files: two directories, read together and again when they change.

A directory is usually a mounted ConfigMap, whose files change all at once when a link is swapped.
Looking costs one `stat` per file. What cannot be read is a side without files, and why; what was
rolled out from it before stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kubeocean.manager.rendering import (
    OBJECT_FILES,
    PLAIN_FILES,
    Component,
    Files,
    required_files,
)
from kubeocean.runtime.files import FileSet

__all__ = ["Directory", "TemplateFiles"]

_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class Directory:
    """What a directory held; if something is wrong with it, `problem` says so."""

    files: Files = field(default_factory=dict)
    problem: str = ""


class TemplateFiles:
    """The directories of both sides."""

    def __init__(self, directories: Mapping[Component, Path]) -> None:
        self._directories = dict(directories)
        self._seen: FileSet | None = None
        self._found: dict[Component, Directory] = {}
        self.revision = 0  # counts the changes of what is written there

    def __getitem__(self, component: Component) -> Directory:
        return self._found.get(component, Directory(problem="the templates were not read yet"))

    def refresh(self) -> bool:
        """Look, and read what is different; whether anything was."""
        if self._seen is not None and not self._seen.changed():
            return False
        for _ in range(_ATTEMPTS):
            self._seen = FileSet()
            found = {each: _read(self._seen, at) for each, at in self._directories.items()}
            if not self._seen.changed():
                break  # else a link was swapped between two files
        wrong = {each: _missing(each, at, found[each]) for each, at in self._directories.items()}
        told = {each: Directory(found[each], wrong[each]) for each in found}
        if told == self._found:
            return False
        self._found = told
        self.revision += 1
        return True


def _read(seen: FileSet, directory: Path) -> Files:
    found = {}
    for name in (*OBJECT_FILES, *PLAIN_FILES):
        try:
            found[name] = seen.read(directory / name).decode()
        except (OSError, UnicodeDecodeError):
            continue
    return found


def _missing(component: Component, directory: Path, files: Files) -> str:
    absent = [name for name in required_files(component) if name not in files]
    return f"cannot read {', '.join(str(directory / name) for name in absent)}" if absent else ""
