"""Verbosity: how much the programs of a binding log, as the binding asks while they run.

An annotation of the binding says it; without one, or with one that makes no sense, it is what the
program was started with. Who may change the binding may change this, and no port is open for it.
"""

from __future__ import annotations

from typing import Final

from kubeocean.api.binding import ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.runtime import logs
from kubeocean.runtime.logs import get_logger

__all__ = ["ASKED", "Verbosity"]

# What people write, and what we call it.
ASKED: Final = {level: level for level in logs.LEVELS} | {"warn": "warning"}

_log = get_logger(__name__)


class Verbosity:
    """Follows one binding; `usual` is the level that the program was started with."""

    def __init__(self, domain: Domain, *, usual: str = "") -> None:
        self._key = domain.log_level
        self._usual = usual or logs.get_level()
        self._asked = ""

    def follow(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        """A handler for the informer of the binding."""
        asked = new.annotations.get(self._key, "").lower() if new is not None else self._asked
        if asked == self._asked:
            return
        self._asked = asked
        if asked and asked not in ASKED:
            _log.warning("Ignored log level", asked=asked, known=list(ASKED))
        level = ASKED.get(asked, self._usual)
        # Told at a level that both the old and the new one let through, as far as there is one.
        _log.warning("Changed log level", level=level, before=logs.get_level())
        logs.set_level(level)
