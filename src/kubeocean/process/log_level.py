"""Log level of a process, set by an annotation of its binding while the process runs.

Without the annotation, or with an unknown level, the level at the start of the process applies.
Changing the level takes the right to change the binding; no port serves the level.
"""

from __future__ import annotations

from typing import Final

from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.runtime import logs
from kubeocean.runtime.logs import get_logger

__all__ = ["LEVELS_BY_ANNOTATION", "LogLevel"]

# Levels as written in the annotation, and their names in `runtime.logs`.
LEVELS_BY_ANNOTATION: Final = {level: level for level in logs.LEVELS} | {"warn": "warning"}

_log = get_logger(__name__)


class LogLevel:
    """Log level of one process; `usual` is the level at its start."""

    def __init__(self, domain: Domain, *, usual: str = "") -> None:
        self._key = domain.log_level
        self._usual = usual or logs.get_level()
        self._annotation = ""

    def follow(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        """Set the log level from the binding's annotation; a handler of the binding's informer."""
        if new is None:
            return
        annotation = new.annotations.get(self._key, "").lower()
        if annotation == self._annotation:
            return
        self._annotation = annotation
        if annotation and annotation not in LEVELS_BY_ANNOTATION:
            _log.warning(
                "Ignored unknown log level", annotation=annotation, known=list(LEVELS_BY_ANNOTATION)
            )
        level = LEVELS_BY_ANNOTATION.get(annotation, self._usual)
        # Logged as a warning, which most levels before and after the change include.
        _log.warning("Changed log level", level=level, before=logs.get_level())
        logs.set_level(level)
