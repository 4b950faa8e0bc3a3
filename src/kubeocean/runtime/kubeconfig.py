"""Kubeconfig: from the files that kubectl reads to an `Access`.

Several files are merged as in kubectl: the first to name a cluster, a user, a context or the
current context wins, whole entries at a time, and a relative file name starts at its own file. Then
one context is chosen and all files that it names are read and checked: the result is usable, or a
ConfigError names context, file and field.

Over plain HTTP no credentials are sent, as in client-go; credentials are then not read either.
Nothing is run here: a credential plugin is returned as data.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kubeocean.errors import ConfigError
from kubeocean.runtime.access import (
    Access,
    Impersonation,
    certificates_problem,
    key_problem,
    split_url,
    token_problem,
)
from kubeocean.runtime.documents import Fields, parse_yaml
from kubeocean.runtime.exec_plugin import ExecPlugin
from kubeocean.runtime.files import FileSet
from kubeocean.runtime.redaction import Secret

__all__ = [
    "Access",
    "Impersonation",
    "Loaded",
    "default_paths",
    "load_kubeconfig",
    "read_kubeconfig",
]

_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_HEADER_VALUE = re.compile(r"[^\x00-\x1f\x7f]*")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Access of one context in kubeconfig files, and its credential plugin."""

    access: Access  # without the credential of `plugin`
    plugin: ExecPlugin | None = None
    token_file: Path | None = None


def default_paths(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the files that kubectl would read: those in KUBECONFIG, else `~/.kube/config`."""
    listed = dict.fromkeys(environ.get("KUBECONFIG", "").split(os.pathsep))
    named = tuple(Path(name) for name in listed if name)
    home = environ.get("HOME") or os.path.expanduser("~")
    return named or (Path(home) / ".kube" / "config",)


def load_kubeconfig(paths: str | Path | Iterable[str | Path], context: str | None = None) -> Access:
    """Return the Access of one context (the current one by default) in kubeconfig files.

    Raises ConfigError, also if a credential plugin would have to run.
    """
    return read_kubeconfig(paths, context).access


def read_kubeconfig(
    paths: str | Path | Iterable[str | Path],
    context: str | None = None,
    *,
    allow_exec: bool = False,
    read: Callable[[Path], bytes] | None = None,
) -> Loaded:
    """Load one context of kubeconfig files; `read` is called for every file in use. Raises
    ConfigError."""
    files = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    source = ", ".join(map(str, files))
    read = read or FileSet().read
    documents = [document for file in files if (document := _open(file, read)) is not None]
    if not documents:
        raise ConfigError("there is no such file", source=source)
    chosen = _Merged.of(documents).choose(context, source)
    return _Chosen(*chosen, read, allow_exec).load()


def _open(file: Path, read: Callable[[Path], bytes]) -> Fields | None:
    """Parse one kubeconfig file; None if the file is absent, since KUBECONFIG may name others."""
    try:
        content = read(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot be read: {_why(error)}", source=str(file)) from None
    document = Fields.of(parse_yaml(content, source=str(file)), file)
    for field, expected in (("apiVersion", "v1"), ("kind", "Config")):
        if document.text(field) not in ("", expected):
            raise document.error(field, f"must be {expected}: this is not a kubeconfig")
    return document


@dataclass(frozen=True, slots=True)
class _Merged:
    """Content of all kubeconfig files, merged."""

    contexts: dict[str, Fields]
    clusters: dict[str, Fields]
    users: dict[str, Fields]
    current: str

    @classmethod
    def of(cls, documents: list[Fields]) -> _Merged:
        contexts: dict[str, Fields] = {}
        clusters: dict[str, Fields] = {}
        users: dict[str, Fields] = {}
        for document in documents:
            contexts = document.named("contexts", "context") | contexts
            clusters = document.named("clusters", "cluster") | clusters
            users = document.named("users", "user") | users
        current = next(filter(None, (d.text("current-context") for d in documents)), "")
        return cls(contexts, clusters, users, current)

    def choose(self, wanted: str | None, source: str) -> tuple[Fields, Fields, Fields]:
        """Return a context, its cluster and its user: `wanted`, or the current context."""
        name = wanted or self.current
        known = ", ".join(sorted(self.contexts)) or "none"
        if not name:
            raise ConfigError(
                f"is not set, and no context was given; choose one of: {known}",
                field="current-context",
                source=source,
            )
        if name not in self.contexts:
            field = "" if wanted else "current-context"
            raise ConfigError(
                f"there is no context named {name!r}; known contexts: {known}",
                field=field,
                source=source,
            )
        context = self.contexts[name].within(name)
        cluster = _referred(context, "cluster", self.clusters).within(name)
        user = _referred(context, "user", self.users).within(name)
        return context, cluster, user


def _referred(context: Fields, what: str, entries: dict[str, Fields]) -> Fields:
    name = context.text(what)
    if not name:
        raise context.error(what, f"does not name a {what}")
    if name not in entries:
        raise context.error(what, f"there is no {what} named {name!r}")
    return entries[name]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A context with its cluster and its user, and the function that reads files which they
    name."""

    context: Fields
    cluster: Fields
    user: Fields
    read: Callable[[Path], bytes]
    allow_exec: bool

    def load(self) -> Loaded:
        server = _server(self.cluster)
        access = Access(
            server=server,
            proxy_url=_proxy_url(self.cluster),
            impersonate=_impersonation(self.user),
            namespace=_namespace(self.context),
            origin=self.context.source,
        )
        return self._secured(access) if server.startswith("https:") else Loaded(access)

    def _secured(self, access: Access) -> Loaded:
        """Return the access with trust and credentials added."""
        user, cluster = self.user, self.cluster
        if user.has("auth-provider"):
            raise user.error(
                "auth-provider",
                "is not supported; use a credential plugin (exec), a token or a certificate",
            )
        access = replace(
            access,
            ca=self._authority(),
            insecure=cluster.flag("insecure-skip-tls-verify"),
            tls_server_name=cluster.text("tls-server-name") or None,
        )
        certificate, private_key = self._pair()
        token = self._token()
        username, password = _basic(user)
        if token is not None and username is not None:
            raise user.error("", "has both a token and a username or password; keep one of them")
        if certificate is None and token is None and username is None and user.has("exec"):
            return Loaded(access, self._plugin(access))
        access = replace(
            access,
            certificate=certificate,
            private_key=private_key,
            token=token,
            username=username,
            password=password,
        )
        return Loaded(access, token_file=user.file_path("tokenFile"))

    def _plugin(self, access: Access) -> ExecPlugin:
        # Refused before any other field is read.
        if not self.allow_exec:
            raise self.user.error(
                "exec",
                f"the credential plugin {self.user.section('exec').text('command')!r} must not be "
                "run; use a token or a client certificate or, if this process may run programs "
                "that this file names, --allow-exec-plugins (allow_exec=True in Python)",
            )
        return ExecPlugin.parse(self.user.section("exec"), self.cluster, access)

    def _authority(self) -> bytes | None:
        authority, field = self._material(self.cluster, "certificate-authority")
        if authority is None:
            return None
        if self.cluster.flag("insecure-skip-tls-verify"):
            raise self.cluster.error(
                "insecure-skip-tls-verify", f"contradicts {field}; keep one of them"
            )
        if problem := certificates_problem(authority):
            raise self.cluster.error(field, problem)
        return authority

    def _pair(self) -> tuple[bytes | None, Secret[bytes] | None]:
        certificate, certificate_field = self._material(self.user, "client-certificate")
        key, key_field = self._material(self.user, "client-key")
        if certificate is None and key is None:
            return None, None
        if key is None:
            raise self.user.error(certificate_field, "needs client-key or client-key-data as well")
        if certificate is None:
            raise self.user.error(
                key_field, "needs client-certificate or client-certificate-data as well"
            )
        if problem := certificates_problem(certificate):
            raise self.user.error(certificate_field, problem)
        private_key = Secret(key)
        if problem := key_problem(certificate, private_key):
            raise self.user.error(key_field, problem)
        return certificate, private_key

    def _token(self) -> Secret[str] | None:
        path = self.user.file_path("tokenFile")
        if path is not None:
            field = "tokenFile"
            # Undecodable bytes become a character that the check refuses.
            token = self._content(self.user, field, path).decode("utf-8", "replace").strip()
        else:
            field, token = "token", self.user.text("token").strip()
            if not token:
                return None
        if problem := token_problem(token):
            raise self.user.error(field, problem)
        return Secret(token)

    def _material(self, fields: Fields, name: str) -> tuple[bytes | None, str]:
        """Return the bytes of `name` (a file) or `name-data` (base64), and which of the two fields
        was set."""
        inline, path = fields.text(f"{name}-data"), fields.file_path(name)
        if inline and path is not None:
            raise fields.error(
                f"{name}-data", f"is set together with {name}; remove one of the two"
            )
        if path is not None:
            return self._content(fields, name, path), name
        if not inline:
            return None, name
        try:
            return base64.b64decode("".join(inline.split()), validate=True), f"{name}-data"
        except ValueError:
            raise fields.error(f"{name}-data", "is not base64") from None

    def _content(self, fields: Fields, name: str, path: Path) -> bytes:
        try:
            return self.read(path)
        except OSError as error:
            raise fields.error(name, f"cannot read {path}: {_why(error)}") from None


def _namespace(context: Fields) -> str:
    name = context.text("namespace") or "default"
    if not _NAMESPACE.fullmatch(name):
        raise context.error("namespace", "is not a DNS label", value=name)
    return name


def _server(cluster: Fields) -> str:
    url = cluster.text("server")
    parts = split_url(url)
    if parts is None or parts.scheme not in ("http", "https"):
        shown = url if url and "@" not in url else None
        raise cluster.error("server", "must be an http or https URL with a host", value=shown)
    if "@" in parts.netloc:
        raise cluster.error(
            "server",
            "must not contain a user name or password; use the user's token or certificate",
        )
    if parts.query or parts.fragment:
        raise cluster.error("server", "must not have a query or a fragment")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _proxy_url(cluster: Fields) -> str | None:
    url = cluster.text("proxy-url")
    if not url:
        return None
    parts = split_url(url)
    if parts is not None and parts.scheme in ("socks5", "socks5h"):
        raise cluster.error("proxy-url", "SOCKS proxies are not supported; use an HTTP proxy")
    if parts is None or parts.scheme not in ("http", "https"):
        raise cluster.error("proxy-url", "must be an http or https URL with a host")
    return url


def _basic(user: Fields) -> tuple[str | None, Secret[str] | None]:
    username, password = user.text("username"), user.text("password")
    if not username and not password:
        return None, None
    if ":" in username:
        raise user.error(
            "username",
            "must not contain a colon, which separates user name and password in the HTTP header",
        )
    return username, Secret(password)


def _impersonation(user: Fields) -> Impersonation | None:
    extra = user.section("as-user-extra")
    impersonation = Impersonation(
        user=user.text("as"),
        groups=user.texts("as-groups"),
        uid=user.text("as-uid"),
        extra=tuple((name, extra.texts(name)) for name in extra.names()),
    )
    if not impersonation.user:
        if impersonation.groups or impersonation.uid or impersonation.extra:
            raise user.error("as", "must be set, because as-groups, as-uid or as-user-extra is set")
        return None
    if not all(_HEADER_VALUE.fullmatch(value) for _, value in impersonation.headers()):
        raise user.error("as", "impersonation has characters that an HTTP header cannot carry")
    return impersonation


def _why(error: OSError) -> str:
    return error.strerror or str(error)
