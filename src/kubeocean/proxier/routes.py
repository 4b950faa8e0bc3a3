"""Routes of a kubelet: method, path and query of a request as a record, or a refusal.

A name in a path is accepted only if Kubernetes accepts it for an object, so that dots, slashes and
escapes are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias
from urllib.parse import parse_qsl

from kubeocean.errors import Refusal

__all__ = [
    "Logs",
    "NodePage",
    "Page",
    "Route",
    "Run",
    "Session",
    "SessionKind",
    "metrics_route",
    "route_of",
]

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_UID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_TRUE: Final = frozenset({"1", "true", "True", "TRUE", "t", "T"})
_FALSE: Final = frozenset({"", "0", "false", "False", "FALSE", "f", "F"})
_STREAMS: Final = frozenset({"All", "Stdout", "Stderr"})
_MAX_ARGUMENTS: Final = 4_096


class SessionKind(StrEnum):
    """The kinds of sessions over an upgraded connection."""

    EXEC = "exec"
    ATTACH = "attach"
    PORT_FORWARD = "portforward"


class NodePage(StrEnum):
    """The pages about a node, by path."""

    PODS = "pods"
    RUNNING_PODS = "runningpods"
    STATS = "stats/summary"
    METRICS = "metrics"
    CADVISOR = "metrics/cadvisor"
    RESOURCE = "metrics/resource"
    PROBES = "metrics/probes"
    HEALTH = "healthz"
    CONFIG = "configz"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class Logs:
    """A request for the log of a container; `query` is for the worker's API server."""

    namespace: str
    pod: str
    container: str
    query: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Session:
    """A request for an upgraded connection to a pod; `query` is for the worker's API server."""

    kind: SessionKind
    namespace: str
    pod: str
    container: str = ""  # empty for port-forward
    uid: str = ""
    query: tuple[tuple[str, str], ...] = ()
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """A request to run a command; the response is its output."""

    namespace: str
    pod: str
    container: str
    uid: str = ""
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A request for a page about the node as a whole."""

    page: NodePage
    query: Mapping[str, str]


Route: TypeAlias = Logs | Session | Run | Page
_Query: TypeAlias = list[tuple[str, str]]


def route_of(method: str, target: str) -> Route:
    """Return the route that method, path and query of a request select.

    :raises Refusal: the path or the method has no route, or a name or an option is not valid.
    """
    path, _, query = target.partition("?")
    options = _options(query)
    first, *rest = path.removeprefix("/").split("/")
    make = _POD_ROUTES.get(first)
    if make is not None:
        return make(method, rest, options)
    name = path.strip("/")
    if name.startswith(f"{NodePage.HEALTH}/"):
        name = NodePage.HEALTH
    if name not in _PAGES:
        raise Refusal(404, "the path is not one that virtual nodes serve")
    _allow(method, "GET")
    return Page(NodePage(name), MappingProxyType(dict(options)))


def metrics_route(method: str, target: str) -> tuple[str, Page]:
    """Return the virtual node and the page of a request on the metrics port: `/<node>/metrics`.

    :raises Refusal: the path is another one, or the name of the node is not valid.
    """
    path, _, query = target.partition("?")
    vnode, _, page = path.strip("/").partition("/")
    if not vnode or not page:
        raise Refusal(400, "the path must be /<node>/metrics")
    if page not in _METRICS_PAGES:
        pages = ", ".join(sorted(_METRICS_PAGES))
        raise Refusal(404, f"there is no page {page!r} on the metrics port; there are {pages}")
    _allow(method, "GET")
    if not _SUBDOMAIN.fullmatch(vnode):
        raise Refusal(400, f"node: is not a valid name (got {vnode!r})")
    return vnode, Page(NodePage(page), MappingProxyType(dict(_options(query))))


_PAGES: Final = frozenset(NodePage)
_METRICS_PAGES: Final = frozenset(page for page in NodePage if page.startswith("metrics"))


def _logs(method: str, path: list[str], options: _Query) -> Logs:
    _allow(method, "GET")
    namespace, pod, _, container = _names(path, container=True, uid=False)
    return Logs(namespace, pod, container, _log_query(dict(options)))


def _exec(method: str, path: list[str], options: _Query) -> Session:
    command = tuple(value for name, value in options if name == "command")
    if not command:
        raise Refusal(400, "command: is missing")
    return _stream(SessionKind.EXEC, method, path, options, command=command)


def _attach(method: str, path: list[str], options: _Query) -> Session:
    return _stream(SessionKind.ATTACH, method, path, options)


def _stream(
    kind: SessionKind,
    method: str,
    path: list[str],
    options: _Query,
    *,
    command: tuple[str, ...] = (),
) -> Session:
    _allow(method, "GET", "POST")
    namespace, pod, uid, container = _names(path, container=True, uid=True)
    values = dict(options)
    streams = {name: _flag(values, option) for option, name in _STREAM_NAMES}
    if streams["tty"]:
        # A terminal has one output; API servers pass both options on, and a kubelet drops stderr.
        streams["stderr"] = False
    if not (streams["stdin"] or streams["stdout"] or streams["stderr"]):
        raise Refusal(400, "input, output, error: at least one must be true")
    query = [("container", container), *(("command", word) for word in command)]
    query += [(name, "true") for name, enabled in streams.items() if enabled]
    return Session(kind, namespace, pod, container, uid, tuple(query), command)


# The option of a kubelet, and of an API server.
_STREAM_NAMES: Final = (
    ("input", "stdin"),
    ("output", "stdout"),
    ("error", "stderr"),
    ("tty", "tty"),
)


def _port_forward(method: str, path: list[str], options: _Query) -> Session:
    _allow(method, "GET", "POST")
    namespace, pod, uid, _ = _names(path, container=False, uid=True)
    ports = [value for name, value in options if name in ("port", "ports")]
    for port in (each for value in ports for each in value.split(",")):
        if not port.isascii() or not port.isdigit() or not 1 <= int(port[:6]) <= 65_535:
            raise Refusal(400, f"port: must be 1 to 65535 (got {port!r})")
    query = tuple(("ports", value) for value in ports)
    return Session(SessionKind.PORT_FORWARD, namespace, pod, "", uid, query)


def _run(method: str, path: list[str], options: _Query) -> Run:
    _allow(method, "POST")
    namespace, pod, uid, container = _names(path, container=True, uid=True)
    # As in a kubelet, each space ends a word.
    command = tuple(dict(options).get("cmd", "").split(" "))
    if not command[0]:
        raise Refusal(400, "cmd: is missing")
    return Run(namespace, pod, container, uid, command)


_POD_ROUTES: Final[Mapping[str, Callable[[str, list[str], _Query], Route]]] = {
    "containerLogs": _logs,
    "exec": _exec,
    "attach": _attach,
    "portForward": _port_forward,
    "run": _run,
}


def _allow(method: str, *methods: str) -> None:
    if method not in methods:
        raise Refusal(405, f"method {method} is not allowed")


def _names(path: list[str], *, container: bool, uid: bool) -> tuple[str, str, str, str]:
    """Return namespace, pod, UID and container in a path; an absent UID or container is empty."""
    shortest = 3 if container else 2
    if len(path) not in ((shortest, shortest + 1) if uid else (shortest,)):
        raise Refusal(404, "the path is not one that virtual nodes serve")
    namespace, pod = path[0], path[1]
    uid_in_path = path[2] if len(path) > shortest else ""
    container_name = path[-1] if container else ""
    for field, name, pattern in (
        ("namespace", namespace, _LABEL),
        ("pod", pod, _SUBDOMAIN),
        *((("uid", uid_in_path, _UID),) if uid_in_path else ()),
        *((("container", container_name, _LABEL),) if container else ()),
    ):
        if not pattern.fullmatch(name):
            raise Refusal(400, f"{field}: is not a valid name (got {name!r})")
    return namespace, pod, uid_in_path, container_name


def _options(query: str) -> _Query:
    try:
        return parse_qsl(
            query, keep_blank_values=True, errors="strict", max_num_fields=_MAX_ARGUMENTS
        )
    except ValueError:
        raise Refusal(400, "the query cannot be parsed") from None


def _log_query(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    query = [(name, "true") for name in ("follow", "previous", "timestamps") if _flag(values, name)]
    for name, minimum in (("tailLines", 0), ("limitBytes", 1), ("sinceSeconds", 1)):
        if values.get(name):
            query.append((name, str(_number(values[name], name, minimum))))
    if values.get("sinceTime"):
        if values.get("sinceSeconds"):
            raise Refusal(400, "sinceTime: cannot be given together with sinceSeconds")
        query.append(("sinceTime", _instant(values["sinceTime"])))
    stream = values.get("stream") or "All"
    if stream not in _STREAMS:
        raise Refusal(400, f"stream: must be All, Stdout or Stderr (got {stream!r})")
    if stream != "All":
        if "tailLines" in dict(query):
            raise Refusal(
                400,
                f"tailLines: cannot be given together with stream={stream}; only with stream=All",
            )
        query.append(("stream", stream))
    return tuple(query)


def _flag(values: Mapping[str, str], name: str) -> bool:
    value = values.get(name, "")
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise Refusal(400, f"{name}: must be true or false (got {value!r})")


def _number(text: str, name: str, minimum: int) -> int:
    if not _INTEGER.fullmatch(text) or int(text) < minimum:
        raise Refusal(400, f"{name}: must be a number of at least {minimum} (got {text!r})")
    return int(text)


def _instant(text: str) -> str:
    try:
        if datetime.fromisoformat(text).tzinfo is None:
            raise ValueError(text)
    except ValueError:
        raise Refusal(400, f"sinceTime: must be a time with a zone (got {text!r})") from None
    return text
