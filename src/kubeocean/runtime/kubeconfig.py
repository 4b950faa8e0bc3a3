"""Kubeconfig: from the files that kubectl reads to an `Access`.

Several files are merged as kubectl does it: the first to name a cluster, a user, a context or the
current context wins, whole entries at a time, and a relative file name starts at the file it stands
in. Then one context is chosen and everything that it leads to is read and checked: what comes back
works, or a ConfigError says which field of which file for which context does not.

Over plain HTTP no credentials are sent, as in client-go; they are then not read either.
Nothing is run here: a credential plugin is returned as data.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kubeocean.errors import ConfigError
from kubeocean.runtime.access import Access, Impersonation, split_url
from kubeocean.runtime.execplugin import ExecPlugin
from kubeocean.runtime.fields import Fields, parse_yaml
from kubeocean.runtime.files import FileSet
from kubeocean.runtime.pem import certificates_problem, key_problem
from kubeocean.runtime.secrets import Secret

__all__ = [
    "Access",
    "Impersonation",
    "Loaded",
    "default_paths",
    "load_kubeconfig",
    "read_kubeconfig",
    "token_problem",
]

_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_TOKEN = re.compile(r"[\x21-\x7e]+")
_HEADER_VALUE = re.compile(r"[^\x00-\x1f\x7f]*")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one context of some kubeconfig files says."""

    access: Access  # without what `plugin` is going to add
    plugin: ExecPlugin | None = None
    token_file: Path | None = None


def default_paths(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The files that kubectl would read: those in KUBECONFIG, else `~/.kube/config`."""
    named = environ.get("KUBECONFIG", "")
    if not named:
        home = environ.get("HOME", "")
        return ((Path(home) if home else Path.home()) / ".kube" / "config",)
    return tuple(Path(name) for name in dict.fromkeys(named.split(os.pathsep)) if name)


def load_kubeconfig(paths: str | Path | Iterable[str | Path], context: str | None = None) -> Access:
    """The Access of one context (the current one by default), as it is now.

    Raises ConfigError, also if a credential plugin would have to run.
    """
    loaded = read_kubeconfig(paths, context)
    if loaded.plugin is not None:
        raise loaded.plugin.refusal()
    return loaded.access


def read_kubeconfig(
    paths: str | Path | Iterable[str | Path],
    context: str | None = None,
    *,
    read: Callable[[Path], bytes] | None = None,
) -> Loaded:
    """Everything that one context says; `read` sees every file that matters. Raises ConfigError."""
    files = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    read = read or FileSet().read
    merged = _Merged.of([document for file in files if (document := _open(file, files, read))])
    return merged.choose(context, read, ", ".join(map(str, files)))


def token_problem(token: str) -> str:
    """What is wrong with a bearer token; never shows it."""
    if not token:
        return "is empty"
    if not _TOKEN.fullmatch(token):
        return "has characters that an HTTP header cannot carry"
    return ""


def _open(file: Path, files: list[Path], read: Callable[[Path], bytes]) -> Fields | None:
    """One file; None if it is absent and others may make up for it, as with KUBECONFIG."""
    try:
        content = read(file)
    except FileNotFoundError:
        if len(files) > 1:
            return None
        raise ConfigError("there is no such file", source=str(file)) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {_why(error)}", source=str(file)) from None
    document = Fields.of(parse_yaml(content, source=str(file)), file)
    for field, wanted in (("apiVersion", "v1"), ("kind", "Config")):
        if document.text(field) not in ("", wanted):
            raise document.error(field, f"must be {wanted}: this is no kubeconfig")
    return document


@dataclass(frozen=True, slots=True)
class _Merged:
    """All files as one."""

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

    def choose(self, wanted: str | None, read: Callable[[Path], bytes], source: str) -> Loaded:
        """Follow one context to its cluster and its user."""
        name = wanted or self.current
        known = ", ".join(sorted(self.contexts)) or "none"
        if not name:
            raise ConfigError(
                f"is not set, and no context was asked for (there are: {known})",
                field="current-context",
                source=source,
            )
        if name not in self.contexts:
            field = "" if wanted else "current-context"
            raise ConfigError(
                f"there is no context named {name!r} (there are: {known})",
                field=field,
                source=source,
            )
        context = self.contexts[name].within(name)
        cluster = _referred(context, "cluster", self.clusters).within(name)
        user = _referred(context, "user", self.users).within(name)
        return _loaded(context, cluster, user, read)


def _referred(context: Fields, what: str, entries: dict[str, Fields]) -> Fields:
    name = context.text(what)
    if not name:
        raise context.error(what, f"does not name a {what}")
    if name not in entries:
        raise context.error(what, f"there is no {what} named {name!r}")
    return entries[name]


def _loaded(
    context: Fields, cluster: Fields, user: Fields, read: Callable[[Path], bytes]
) -> Loaded:
    server = _server(cluster)
    namespace = context.text("namespace") or "default"
    if not _NAMESPACE.fullmatch(namespace):
        raise context.error("namespace", "is not a DNS label", value=namespace)
    access = Access(
        server=server,
        proxy_url=_proxy_url(cluster),
        impersonate=_impersonation(user),
        namespace=namespace,
        origin=context.source,
    )
    return Loaded(access) if server.startswith("http:") else _secured(access, cluster, user, read)


def _secured(
    access: Access, cluster: Fields, user: Fields, read: Callable[[Path], bytes]
) -> Loaded:
    """The same with what TLS needs and who we are."""

    if user.has("auth-provider"):
        raise user.error(
            "auth-provider",
            "such providers are gone from Kubernetes; use a credential plugin (exec) or a token",
        )
    certificate, private_key = _pair(user, read)
    token = _token(user, read)
    username, password = _basic(user)
    if token is not None and username is not None:
        raise user.error("", "has both a token and a username; keep one of them")
    access = replace(
        access,
        ca=_authority(cluster, read),
        insecure=cluster.flag("insecure-skip-tls-verify"),
        tls_server_name=cluster.text("tls-server-name") or None,
        certificate=certificate,
        private_key=private_key,
        token=token,
        username=username,
        password=password,
    )
    # As in client-go, a user who already has credentials needs no plugin.
    identified = certificate is not None or token is not None or username is not None
    plugin = None if identified else ExecPlugin.parse(user, cluster)
    return Loaded(access, plugin, user.file_path("tokenFile"))


def _server(cluster: Fields) -> str:
    url = cluster.text("server")
    parts = split_url(url)
    if parts is None or parts.scheme not in ("http", "https"):
        shown = url if url and "@" not in url else None
        raise cluster.error("server", "must be an http or https URL with a host", value=shown)
    if "@" in parts.netloc:
        raise cluster.error("server", "must not hold a user name or password")
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


def _authority(cluster: Fields, read: Callable[[Path], bytes]) -> bytes | None:
    authority, field = _material(cluster, "certificate-authority", read)
    if authority is None:
        return None
    if cluster.flag("insecure-skip-tls-verify"):
        raise cluster.error("insecure-skip-tls-verify", f"contradicts {field}; keep one of them")
    if problem := certificates_problem(authority):
        raise cluster.error(field, problem)
    return authority


def _pair(user: Fields, read: Callable[[Path], bytes]) -> tuple[bytes | None, Secret[bytes] | None]:
    certificate, certificate_field = _material(user, "client-certificate", read)
    key, key_field = _material(user, "client-key", read)
    if certificate is None and key is None:
        return None, None
    if key is None:
        raise user.error(certificate_field, "has no client-key or client-key-data beside it")
    if certificate is None:
        raise user.error(key_field, "has no client-certificate(-data) beside it")
    if problem := certificates_problem(certificate):
        raise user.error(certificate_field, problem)
    private_key = Secret(key)
    if problem := key_problem(certificate, private_key):
        raise user.error(key_field, problem)
    return certificate, private_key


def _token(user: Fields, read: Callable[[Path], bytes]) -> Secret[str] | None:
    field = "tokenFile" if user.has("tokenFile") else "token"
    path = user.file_path("tokenFile")
    if path is not None:
        # Undecodable bytes become a character that the check refuses.
        token = _read(user, field, path, read).decode("utf-8", "replace").strip()
    elif not (token := user.text("token").strip()):
        return None
    if problem := token_problem(token):
        raise user.error(field, problem)
    return Secret(token)


def _basic(user: Fields) -> tuple[str | None, Secret[str] | None]:
    username, password = user.text("username"), user.text("password")
    if not username and not password:
        return None, None
    if ":" in username:
        raise user.error("username", "must not have a colon, which ends it in the HTTP header")
    return username, Secret(password)


def _impersonation(user: Fields) -> Impersonation | None:
    extra = user.section("as-user-extra")
    found = Impersonation(
        user=user.text("as"),
        groups=user.texts("as-groups"),
        uid=user.text("as-uid"),
        extra=tuple((str(key), extra.texts(str(key))) for key in extra.content),
    )
    if not found.user:
        if found.groups or found.uid or found.extra:
            raise user.error("as", "must name a user, since as-groups, as-uid or as-user-extra do")
        return None
    if not all(_HEADER_VALUE.fullmatch(value) for _, value in found.headers()):
        raise user.error("as", "impersonation has characters that an HTTP header cannot carry")
    return found


def _material(fields: Fields, name: str, read: Callable[[Path], bytes]) -> tuple[bytes | None, str]:
    """The bytes of `name` (a file) or `name-data` (base64), and which of the two it was."""
    inline, path = fields.text(f"{name}-data"), fields.file_path(name)
    if inline and path is not None:
        raise fields.error(f"{name}-data", f"stands beside {name}; keep one of them")
    if path is not None:
        return _read(fields, name, path, read), name
    if not inline:
        return None, name
    try:
        return base64.b64decode("".join(inline.split()), validate=True), f"{name}-data"
    except (binascii.Error, ValueError):
        raise fields.error(f"{name}-data", "is not base64") from None


def _read(fields: Fields, name: str, path: Path, read: Callable[[Path], bytes]) -> bytes:
    try:
        return read(path)
    except OSError as error:
        raise fields.error(name, f"cannot read {path}: {_why(error)}") from None


def _why(error: OSError) -> str:
    return error.strerror or str(error)
