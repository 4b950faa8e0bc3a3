"""Credentials: an Access that keeps up with the files behind it.

An `AccessSource` always has a current Access and looks for a newer one when asked. What is broken
on the way – a file half written, a key that does not match its certificate yet – keeps the last
good Access in use and is reported once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol

import structlog

from kubeocean.errors import ConfigError
from kubeocean.runtime.access import Access
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.files import FileSet
from kubeocean.runtime.kubeconfig import Loaded, read_kubeconfig

__all__ = ["AccessSource", "KubeconfigAccess", "StaticAccess"]

_LOOK_S: Final = 10.0  # how often files are looked at; a look is a few stat calls
_TOKEN_S: Final = 60.0  # how often a token file is read whatever it looks like, as in client-go
_NEVER_S: Final = 3600.0


class AccessSource(Protocol):
    """Where a transport gets its Access from.

    A transport awaits `refresh()` once before its first request, then every `interval_s`, and with
    `rejected=True` whenever the server answered 401.
    """

    @property
    def interval_s(self) -> float:
        """Seconds until `refresh` should be called again; may differ each time it is read."""

    def current(self) -> Access:
        """The newest Access known; no IO."""

    async def refresh(self, *, rejected: bool = False) -> bool:
        """Look for a newer Access; whether `current()` is different from before the call.

        Raises ConfigError only while there has never been a usable Access. Safe to call from many
        tasks at once.
        """


class StaticAccess:
    """An Access that never changes."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @property
    def interval_s(self) -> float:
        return _NEVER_S

    def current(self) -> Access:
        return self._access

    async def refresh(self, *, rejected: bool = False) -> bool:
        return False


class _Reloading:
    """What was last loaded from some files, and loaded again when they change."""

    def __init__(self, load: Callable[[Callable[[Path], bytes]], Loaded], clock: Clock) -> None:
        self._load = load
        self._clock = clock
        self._complaint = ""
        self._files = FileSet()
        self._read_at = clock.monotonic()
        self.loaded = load(self._files.read)

    def refresh(self, *, force: bool) -> bool:
        """Load again if there is a reason to; whether what is loaded changed."""
        if not (force or self._complaint or self._token_due() or self._files.changed()):
            return False
        files = FileSet()
        try:
            loaded = self._load(files.read)
        except ConfigError as error:
            self._complain(str(error))
            return False
        self._files, self._read_at = files, self._clock.monotonic()
        if self._complaint:
            self._complaint = ""
            _log().info("Recovered credentials", origin=loaded.access.origin)
        if loaded == self.loaded:
            return False  # and `current()` stays the very same object
        self.loaded = loaded
        return True

    def _token_due(self) -> bool:
        age = self._clock.monotonic() - self._read_at
        return self.loaded.token_file is not None and age >= _TOKEN_S

    def _complain(self, message: str) -> None:
        """Say it once, not every few seconds until somebody repairs the file."""
        if message != self._complaint:
            self._complaint = message
            origin = self.loaded.access.origin
            _log().warning("Kept old credentials", origin=origin, error=message)


class KubeconfigAccess:
    """One context of one or more kubeconfig files, read again when any file behind it changes.

    The constructor reads; it raises ConfigError.
    """

    def __init__(
        self,
        path: str | Path | Iterable[str | Path],
        context: str | None = None,
        *,
        allow_exec: bool = False,
        clock: Clock | None = None,
    ) -> None:
        paths = (path,) if isinstance(path, str | Path) else tuple(path)
        self._allow_exec = allow_exec

        def load(read: Callable[[Path], bytes]) -> Loaded:
            loaded = read_kubeconfig(paths, context, read=read)
            if loaded.plugin is not None and not allow_exec:
                raise loaded.plugin.refusal()
            return loaded

        self._files = _Reloading(load, clock or RealClock())

    @property
    def interval_s(self) -> float:
        return _LOOK_S

    def current(self) -> Access:
        return self._files.loaded.access

    async def refresh(self, *, rejected: bool = False) -> bool:
        return self._files.refresh(force=rejected)


def _log() -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
    return logger
