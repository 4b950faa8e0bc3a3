"""Routes of a kubelet, and the rights that requests need."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import Refusal
from kubeocean.proxier.authorization import Right, required_rights
from kubeocean.proxier.routes import (
    Logs,
    NodePage,
    Page,
    Run,
    Session,
    SessionKind,
    metrics_route,
    route_of,
)


@pytest.mark.parametrize(
    ("query", "passed"),
    [
        ("", ()),
        ("follow=true", (("follow", "true"),)),
        ("previous=1&timestamps=true", (("previous", "true"), ("timestamps", "true"))),
        ("tailLines=0", (("tailLines", "0"),)),
        ("tailLines=10&limitBytes=5", (("tailLines", "10"), ("limitBytes", "5"))),
        ("sinceSeconds=3", (("sinceSeconds", "3"),)),
        ("sinceTime=2026-01-02T03%3A04%3A05Z", (("sinceTime", "2026-01-02T03:04:05Z"),)),
        ("stream=Stderr", (("stream", "Stderr"),)),
        ("stream=All&follow=false&unknown=1", ()),
    ],
)
def test_options_of_logs_are_passed_on(query: str, passed: tuple[tuple[str, str], ...]) -> None:
    assert route_of("GET", f"/containerLogs/ns/pod.a/main?{query}") == Logs(
        "ns", "pod.a", "main", passed
    )


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("tailLines=-1", "tailLines"),
        ("tailLines=x", "tailLines"),
        ("limitBytes=0", "limitBytes"),
        ("sinceSeconds=0", "sinceSeconds"),
        ("sinceTime=yesterday", "sinceTime"),
        ("sinceTime=2026-01-02T03:04:05", "sinceTime"),
        ("sinceTime=2026-01-02T03:04:05Z&sinceSeconds=1", "sinceTime"),
        ("follow=perhaps", "follow"),
        ("stream=Both", "stream"),
        ("stream=Stdout&tailLines=1", "tailLines"),
    ],
)
def test_an_option_that_is_not_valid_is_named(query: str, field: str) -> None:
    with pytest.raises(Refusal, match=f"^{field}: ") as refused:
        route_of("GET", f"/containerLogs/ns/pod/main?{query}")
    assert refused.value.status == 400


def test_options_of_exec_are_translated_for_an_api_server() -> None:
    target = "/exec/ns/pod/main?command=sh&command=-c&command=a%26b&input=1&output=1&tty=1"
    assert route_of("POST", target) == Session(
        SessionKind.EXEC,
        "ns",
        "pod",
        "main",
        query=(
            ("container", "main"),
            ("command", "sh"),
            ("command", "-c"),
            ("command", "a&b"),
            ("stdin", "true"),
            ("stdout", "true"),
            ("tty", "true"),
        ),
        command=("sh", "-c", "a&b"),
    )


@pytest.mark.parametrize(
    ("options", "streams"),
    [
        ("input=1&output=1&error=1&tty=1", ("stdin", "stdout", "tty")),
        ("output=1&error=1&tty=1", ("stdout", "tty")),
        ("input=1&error=1&tty=1", ("stdin", "tty")),
        ("input=1&output=1&error=1", ("stdin", "stdout", "stderr")),
        ("output=1&error=1&tty=0", ("stdout", "stderr")),
    ],
)
def test_stderr_is_dropped_where_there_is_a_terminal(
    options: str, streams: tuple[str, ...]
) -> None:
    for path in ("/exec/ns/pod/main?command=sh&", "/attach/ns/pod/main?"):
        session = route_of("POST", path + options)
        assert isinstance(session, Session)
        flags = [pair for pair in session.query if pair[0] not in ("container", "command")]
        assert flags == [(stream, "true") for stream in streams]


def test_a_uid_in_the_path_is_kept() -> None:
    attach = route_of("GET", "/attach/ns/pod/1-2-3/main?output=1")
    assert isinstance(attach, Session)
    assert (attach.kind, attach.uid, attach.container) == (SessionKind.ATTACH, "1-2-3", "main")
    forward = route_of("POST", "/portForward/ns/pod/1-2-3?port=80")
    assert isinstance(forward, Session)
    assert (forward.uid, forward.query) == ("1-2-3", (("ports", "80"),))
    assert route_of("POST", "/run/ns/pod/u1/main?cmd=ls%20-l") == Run(
        "ns", "pod", "main", "u1", ("ls", "-l")
    )


@pytest.mark.parametrize(
    "target",
    [
        "/exec/ns/pod/main?output=1",
        "/exec/ns/pod/main?command=sh",
        # A terminal has no stderr, so nothing is left to stream.
        "/exec/ns/pod/main?command=sh&tty=1&error=1",
        "/attach/ns/pod/main?tty=1&error=1",
        "/portForward/ns/pod?port=0",
        "/portForward/ns/pod?port=65536",
        "/portForward/ns/pod?port=80,99999",
        "/portForward/ns/pod?port=800000000",
        "/portForward/ns/pod?port=-1",
        "/portForward/ns/pod?port=",
        "/portForward/ns/pod?port=%D9%A1",
        "/run/ns/pod/main",
    ],
)
def test_a_session_with_options_that_are_not_valid_is_refused(target: str) -> None:
    with pytest.raises(Refusal) as refused:
        route_of("POST", target)
    assert refused.value.status == 400


def test_a_command_keeps_its_empty_words() -> None:
    session = route_of("POST", "/exec/ns/pod/main?command=printf&command=&command=x&output=1")
    assert isinstance(session, Session)
    assert session.command == ("printf", "", "x")
    words = [value for name, value in session.query if name == "command"]
    assert words == ["printf", "", "x"]
    only_empty = route_of("POST", "/exec/ns/pod/main?command=&output=1")
    assert isinstance(only_empty, Session)
    assert only_empty.command == ("",)


@pytest.mark.parametrize(
    ("read", "target"),
    [
        (route_of, "/pods?x=%FF"),
        (route_of, "/exec/ns/pod/main?command=%C3&output=1"),
        (metrics_route, "/vnode/metrics?x=%FF"),
    ],
)
def test_a_query_that_is_not_utf_8_is_refused(
    read: Callable[[str, str], object], target: str
) -> None:
    with pytest.raises(Refusal) as refused:
        read("GET", target)
    assert refused.value.status == 400


def test_a_query_has_at_most_4096_arguments() -> None:
    words = ["command=a"] * 4_095
    session = route_of("POST", f"/exec/ns/pod/main?{'&'.join([*words, 'output=1'])}")
    assert isinstance(session, Session)
    assert len(session.command) == 4_095
    with pytest.raises(Refusal) as refused:
        route_of("POST", f"/exec/ns/pod/main?{'&'.join([*words, 'command=a', 'output=1'])}")
    assert refused.value.status == 400


@pytest.mark.parametrize("port", [1, 65_535])
def test_the_first_and_the_last_port_are_forwarded(port: int) -> None:
    session = route_of("POST", f"/portForward/ns/pod?port={port}")
    assert isinstance(session, Session)
    assert session.query == (("ports", str(port)),)


@pytest.mark.parametrize("page", list(NodePage))
def test_every_page_of_a_node_is_known(page: NodePage) -> None:
    route = route_of("GET", f"/{page}")
    assert isinstance(route, Page)
    assert route.page is page


@pytest.mark.parametrize(
    "target",
    [
        "/containerLogs/ns/../main",
        "/containerLogs/ns/%2e%2e/main",
        "/containerLogs/ns/a%2fb/main",
        "/containerLogs/NS/pod/main",
        "/exec/ns/pod/ma%00in?command=sh&output=1",
        "/exec/ns/pod/a_b/main!?command=sh&output=1",
        "/attach/ns//main?output=1",
    ],
)
def test_a_path_with_names_that_are_not_valid_is_refused(target: str) -> None:
    with pytest.raises(Refusal) as refused:
        route_of("GET", target)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/logs/",
        "/containerLogs/ns/pod",
        "/containerLogs/ns/pod/uid/main",
        "/exec/ns/pod/uid/main/more?command=sh&output=1",
        "/portForward/ns/pod/uid/main",
        "/portForward/ns",
        "/debug/pprof",
        "/x",
    ],
)
def test_a_page_that_is_not_served_is_not_found(target: str) -> None:
    with pytest.raises(Refusal, match="is not one that virtual nodes serve") as refused:
        route_of("GET", target)
    assert refused.value.status == 404


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/pods"),
        ("HEAD", "/metrics"),
        ("DELETE", "/exec/n/p/c"),
        ("PUT", "/attach/n/p/c"),
        ("PUT", "/portForward/n/p"),
        ("POST", "/containerLogs/n/p/c"),
        ("GET", "/run/n/p/c"),
    ],
)
def test_other_methods_are_not_allowed(method: str, target: str) -> None:
    with pytest.raises(Refusal) as refused:
        route_of(method, f"{target}?command=x&cmd=x&output=1")
    assert refused.value.status == 405


@pytest.mark.parametrize(
    "page", [NodePage.METRICS, NodePage.CADVISOR, NodePage.RESOURCE, NodePage.PROBES]
)
def test_the_metrics_port_serves_pages_under_the_name_of_a_node(page: NodePage) -> None:
    assert metrics_route("GET", f"/vnode-w1.a/{page}?a=1&b=") == (
        "vnode-w1.a",
        Page(page, {"a": "1", "b": ""}),
    )


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/", 400),
        ("GET", "/vnode", 400),
        ("GET", "/vnode/", 400),
        ("GET", "/metrics", 400),
        ("GET", "/vnode/pods", 404),
        ("GET", "/vnode/healthz", 404),
        ("GET", "/vnode/metrics/more", 404),
        ("GET", "/exec/ns/pod/main?command=id&output=1", 404),
        ("POST", "/vnode/metrics", 405),
        ("GET", "/VNODE/metrics", 400),
        ("GET", "/../metrics", 400),
        ("GET", "/%2e%2e/metrics", 400),
        ("GET", "/vnode%2fother/metrics", 400),
        ("GET", f"/{'a' * 254}/metrics", 400),
    ],
)
def test_the_metrics_port_serves_no_other_path(method: str, target: str, status: int) -> None:
    with pytest.raises(Refusal) as refused:
        metrics_route(method, target)
    assert refused.value.status == status


@given(st.text(max_size=60), st.sampled_from(["GET", "POST", "PUT"]))
def test_any_path_has_a_route_or_is_refused(text: str, method: str) -> None:
    for target in (f"/{quote(text)}", f"/exec/{text}", f"/containerLogs/ns/pod/{text}", "/" + text):
        try:
            route_of(method, target)
        except Refusal:
            continue


@pytest.mark.parametrize(
    ("method", "target", "right"),
    [
        ("GET", "/exec/n/p/c?command=sh&output=1", Right("create", "proxy")),
        ("POST", "/exec/n/p/c?command=sh&output=1", Right("create", "proxy")),
        ("GET", "/attach/n/p/c?output=1", Right("create", "proxy")),
        ("GET", "/portForward/n/p", Right("create", "proxy")),
        ("POST", "/run/n/p/c?cmd=ls", Right("create", "proxy")),
        ("GET", "/containerLogs/n/p/c", Right("get", "proxy")),
    ],
)
def test_a_request_that_leads_into_a_pod_needs_create(
    method: str, target: str, right: Right
) -> None:
    assert required_rights(route_of(method, target)) == (right,)


# Any one of these is enough.
RIGHTS = {
    NodePage.PODS: (Right("get", "pods"), Right("get", "proxy")),
    NodePage.RUNNING_PODS: (Right("get", "pods"), Right("get", "proxy")),
    NodePage.STATS: (Right("get", "stats"),),
    NodePage.METRICS: (Right("get", "metrics"),),
    NodePage.CADVISOR: (Right("get", "metrics"),),
    NodePage.RESOURCE: (Right("get", "metrics"),),
    NodePage.PROBES: (Right("get", "metrics"),),
    NodePage.HEALTH: (Right("get", "healthz"), Right("get", "proxy")),
    NodePage.CONFIG: (Right("get", "configz"), Right("get", "proxy")),
    NodePage.VERSION: (Right("get", "proxy"),),
}


@pytest.mark.parametrize("page", list(NodePage))
def test_each_page_of_a_node_needs_its_own_right(page: NodePage) -> None:
    assert required_rights(route_of("GET", f"/{page}")) == RIGHTS[page]
    assert required_rights(Page(page, {})) == RIGHTS[page]
