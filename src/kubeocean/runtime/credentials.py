"""Credentials: an Access that follows changes of its source.

An `AccessSource` has a current Access and looks for a newer one on `refresh`. Sources are
kubeconfig files, the files that Kubernetes mounts into a pod, and credential plugins.

After a failure – a file half written, a key that does not match its certificate yet, a plugin that
fails – the last good Access stays in use, and the failure is reported once. As long as nothing
changes, `current()` is the very same object.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from kubeocean.errors import ConfigError
from kubeocean.runtime.access import Access, certificates_problem, split_url, token_problem
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.exec_plugin import Credential, ExecPlugin
from kubeocean.runtime.files import FileSet
from kubeocean.runtime.kubeconfig import Loaded, default_paths, read_kubeconfig
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.redaction import Secret

__all__ = [
    "SERVICE_ACCOUNT_ROOT",
    "AccessSource",
    "FileAccess",
    "InClusterAccess",
    "KubeconfigAccess",
    "StaticAccess",
    "default_access",
]

SERVICE_ACCOUNT_ROOT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_LOOK_S: Final = 10.0  # between two checks of files for changes, each a few stat calls
_TOKEN_S: Final = 60.0  # between two reads of a token file, as in client-go
_NEVER_S: Final = 3600.0
_AGAIN_S: Final = 5.0  # between two runs of a plugin, whatever happens
_EARLY_S: Final = 60.0  # how long before its expiry a plugin's credential is replaced…
_EARLY_SHARE: Final = 0.2  # …but not before this share of its lifetime is left

_Read: TypeAlias = Callable[[Path], bytes]
_log: Final = get_logger(__name__)


class AccessSource(Protocol):
    """Source of the Access of a transport.

    A transport calls `refresh()` for its first request, then every `interval_s`, and with
    `rejected=True` whenever the server answered 401.
    """

    @property
    def interval_s(self) -> float:
        """Seconds until `refresh` should be called again; may differ at each read."""

    @property
    def refresh_first(self) -> bool:
        """Whether requests wait for a due refresh: refreshing is quick, or no Access is valid."""

    def current(self) -> Access:
        """Return the newest known Access, without IO."""

    async def refresh(self, *, rejected: bool = False) -> bool:
        """Look for a newer Access; return whether `current()` has changed.

        Raises ConfigError only while there has never been a usable Access. Any number of tasks may
        call at once; the work is done once. A task whose 401 comes late, after a refresh for
        another task, gets False and compares `current()` with the Access of its request.
        """


class StaticAccess:
    """`AccessSource` whose Access never changes."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @property
    def interval_s(self) -> float:
        return _NEVER_S

    @property
    def refresh_first(self) -> bool:
        return True

    def current(self) -> Access:
        return self._access

    async def refresh(self, *, rejected: bool = False) -> bool:
        return False


class KubeconfigAccess:
    """Access of one context of kubeconfig files, reloaded when any of their files changes.

    The constructor reads the files and raises ConfigError; a plugin runs in `refresh`.
    """

    def __init__(
        self,
        path: str | Path | Iterable[str | Path],
        context: str | None = None,
        *,
        allow_exec: bool = False,
        environ: Mapping[str, str] = os.environ,
        clock: Clock | None = None,
    ) -> None:
        paths = (path,) if isinstance(path, str | Path) else tuple(path)
        self._clock = clock or RealClock()
        self._environ = environ

        def load(read: _Read) -> Loaded:
            return read_kubeconfig(paths, context, allow_exec=allow_exec, read=read)

        self._files = _Reloading(load, self._clock)
        self._access = self._files.loaded.access
        self._complete = self._files.loaded.plugin is None
        self._minter: _Minter | None = None
        self._trouble = _Trouble()
        self._flight = asyncio.Lock()

    @property
    def interval_s(self) -> float:
        if not self._complete:
            return 0.0
        return min(_LOOK_S, self._minter.renew_in()) if self._minter else _LOOK_S

    @property
    def refresh_first(self) -> bool:
        # A plugin may take a minute, and runs in parallel to requests as long as its credential is
        # valid.
        return not self._complete or self._minter is None or self._minter.expired

    def current(self) -> Access:
        return self._access

    async def refresh(self, *, rejected: bool = False) -> bool:
        before = self._access
        # Held while a plugin runs, so that one run serves all tasks, for one state of the files.
        async with self._flight:
            # A task that waited for the lock has the result of another task's refresh already.
            if self._access is before:
                self._files.refresh(force=rejected)
                await self._follow(self._files.loaded, rejected=rejected)
        return self._access is not before

    async def _follow(self, loaded: Loaded, *, rejected: bool) -> None:
        if loaded.plugin is None:
            self._minter = None
            self._use(loaded.access)
            return
        if self._minter is None or self._minter.plugin != loaded.plugin:
            self._minter = _Minter(loaded.plugin, self._environ, self._clock)
        try:
            credential = await self._minter.get(rejected=rejected)
        except ConfigError as error:
            if not self._complete:
                raise
            self._trouble.report(str(error), origin=self._access.origin)
            return
        self._trouble.over(origin=self._access.origin)
        self._use(
            replace(
                loaded.access,
                token=credential.token,
                certificate=credential.certificate,
                private_key=credential.private_key,
            )
        )

    def _use(self, access: Access) -> None:
        self._complete = True
        if access != self._access:
            self._access = access


class FileAccess:
    """Access that `load` builds from files, reloaded when one of them changes.

    `load` gets a function that reads a file, and calls it for every file that it uses. The
    constructor loads, and raises the ConfigError of `load`.
    """

    def __init__(
        self, load: Callable[[Callable[[Path], bytes]], Loaded], *, clock: Clock | None = None
    ) -> None:
        self._files = _Reloading(load, clock or RealClock())

    @property
    def interval_s(self) -> float:
        return _LOOK_S

    @property
    def refresh_first(self) -> bool:
        return True

    def current(self) -> Access:
        return self._files.loaded.access

    async def refresh(self, *, rejected: bool = False) -> bool:
        return self._files.refresh(force=rejected)


class InClusterAccess(FileAccess):
    """Access with the mounted ServiceAccount of this process's pod.

    The constructor reads the files, and raises ConfigError outside a cluster.
    """

    def __init__(
        self,
        root: str | Path = SERVICE_ACCOUNT_ROOT,
        *,
        environ: Mapping[str, str] = os.environ,
        clock: Clock | None = None,
    ) -> None:
        server = _service(environ)
        super().__init__(lambda read: _service_account(server, Path(root), read), clock=clock)


def default_access(
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    allow_exec: bool = False,
    clock: Clock | None = None,
    root: Path = SERVICE_ACCOUNT_ROOT,
) -> AccessSource:
    """Return the first source of access that exists: `kubeconfig`, $KUBECONFIG, the pod's
    ServiceAccount, ~/.kube/config.

    Raises ConfigError if none exists, or if the first one is invalid.
    """
    paths = (Path(kubeconfig),) if kubeconfig else default_paths(environ)
    named = bool(kubeconfig or environ.get("KUBECONFIG", "").strip(os.pathsep))
    # Only a kubeconfig has contexts.
    in_pod = bool(environ.get("KUBERNETES_SERVICE_HOST")) and (root / "token").exists()
    if not named and not context and in_pod:
        return InClusterAccess(root, environ=environ, clock=clock)
    if not named and not paths[0].exists():
        raise ConfigError(
            "no API server is configured: no kubeconfig was given, KUBECONFIG is not set, "
            f"this is not a pod with a ServiceAccount token ({root}/token), "
            f"and there is no {paths[0]}; set KUBECONFIG to the path of a kubeconfig"
        )
    return KubeconfigAccess(paths, context, allow_exec=allow_exec, environ=environ, clock=clock)


class _Trouble:
    """Logs the start and the end of a problem with reloading credentials, each once."""

    def __init__(self) -> None:
        self.message = ""

    def report(self, message: str, *, origin: str) -> None:
        if message != self.message:
            self.message = message
            _log.warning(
                "Could not reload credentials, kept the old ones", origin=origin, error=message
            )

    def over(self, *, origin: str) -> None:
        if self.message:
            self.message = ""
            _log.info("Reloaded credentials after earlier failure", origin=origin)


class _Reloading:
    """Value loaded from files, and reloaded when the files change."""

    def __init__(self, load: Callable[[_Read], Loaded], clock: Clock) -> None:
        self._load = load
        self._clock = clock
        self._trouble = _Trouble()
        self._files = FileSet()
        self._read_at = clock.monotonic()
        self.loaded = load(self._files.read)

    def refresh(self, *, force: bool) -> bool:
        """Reload if a file changed or `force` is set; return whether the value changed."""
        if not (force or self._trouble.message or self._token_due() or self._files.changed()):
            return False
        files = FileSet()
        try:
            loaded = self._load(files.read)
        except ConfigError as error:
            self._trouble.report(str(error), origin=self.loaded.access.origin)
            return False
        self._trouble.over(origin=loaded.access.origin)
        self._files, self._read_at = files, self._clock.monotonic()
        if loaded == self.loaded:
            return False
        self.loaded = loaded
        return True

    def _token_due(self) -> bool:
        age = self._clock.monotonic() - self._read_at
        return self.loaded.token_file is not None and age >= _TOKEN_S


class _Minter:
    """Runs a credential plugin and keeps its last credential; used by one task at a time."""

    def __init__(self, plugin: ExecPlugin, environ: Mapping[str, str], clock: Clock) -> None:
        self.plugin = plugin
        self._environ = environ
        self._clock = clock
        self._ran_at = float("-inf")
        self._last: Credential | ConfigError | None = None
        self._renew_at = self._expires_at = float("inf")

    @property
    def expired(self) -> bool:
        """Whether the last credential is not valid any more."""
        return self._clock.monotonic() >= self._expires_at

    def renew_in(self) -> float:
        """Return the seconds until the plugin should run again."""
        now = self._clock.monotonic()
        return max(self._renew_at - now, self._ran_at + _AGAIN_S - now, 0.0)

    async def get(self, *, rejected: bool) -> Credential:
        """Return a credential that is not about to expire; a new one if the last one was
        rejected."""
        stale = rejected or isinstance(self._last, ConfigError) or self.renew_in() == 0.0
        if self._last is None or (stale and self._clock.monotonic() - self._ran_at >= _AGAIN_S):
            await self._run()
        assert self._last is not None
        if isinstance(self._last, ConfigError):
            raise self._last
        return self._last

    async def _run(self) -> None:
        try:
            credential = await self.plugin.run(clock=self._clock, environ=self._environ)
        except ConfigError as error:
            self._last = error
        else:
            self._last = credential
            self._renew_at = self._expires_at = float("inf")
            if credential.expires is not None:
                life_s = (credential.expires - self._clock.now()).total_seconds()
                self._expires_at = self._clock.monotonic() + life_s
                self._renew_at = self._expires_at - min(_EARLY_S, life_s * _EARLY_SHARE)
        self._ran_at = self._clock.monotonic()


def _service(environ: Mapping[str, str]) -> str:
    """Return the URL of the API server from a pod's environment."""
    host, port = (environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    if not host or not port:
        raise ConfigError(
            "not in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not both set"
        )
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    if split_url(url) is None:
        raise ConfigError(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT do not make a URL", value=url
        )
    return url


def _service_account(server: str, root: Path, read: _Read) -> Loaded:
    token = _mounted(root / "token", read).decode("utf-8", "replace").strip()
    if problem := token_problem(token):
        raise ConfigError(problem, source=str(root / "token"))
    authority = _mounted(root / "ca.crt", read)
    if problem := certificates_problem(authority):
        raise ConfigError(problem, source=str(root / "ca.crt"))
    try:
        namespace = read(root / "namespace").decode("utf-8", "replace").strip()
    except OSError:
        namespace = ""
    access = Access(
        server=server,
        ca=authority,
        token=Secret(token),
        namespace=namespace or "default",
        origin=f"in-cluster {root}",
    )
    return Loaded(access, token_file=root / "token")


def _mounted(path: Path, read: _Read) -> bytes:
    try:
        return read(path)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"cannot be read: {why}", source=str(path)) from None
