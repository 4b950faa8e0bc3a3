"""What a request to a kubelet is for, and which right it takes."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import Refusal
from kubeocean.proxier.permissions import Right, needed
from kubeocean.proxier.routes import Logs, NodePage, Page, Run, Session, SessionKind, route


@pytest.mark.parametrize(
    ("query", "asked"),
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
def test_options_of_logs_are_handed_on(query: str, asked: tuple[tuple[str, str], ...]) -> None:
    assert route("GET", f"/containerLogs/ns/pod.a/main?{query}") == Logs(
        "ns", "pod.a", "main", asked
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
def test_options_that_make_no_sense_are_named(query: str, field: str) -> None:
    with pytest.raises(Refusal, match=f"^{field}: "):
        route("GET", f"/containerLogs/ns/pod/main?{query}")


def test_exec_says_it_in_the_words_of_an_api_server() -> None:
    target = "/exec/ns/pod/main?command=sh&command=-c&command=a%26b&input=1&output=1&tty=1"
    assert route("POST", target) == Session(
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


def test_a_uid_in_the_path_is_kept() -> None:
    asked = route("GET", "/attach/ns/pod/1-2-3/main?output=1")
    assert isinstance(asked, Session)
    assert (asked.kind, asked.uid, asked.container) == (SessionKind.ATTACH, "1-2-3", "main")
    asked = route("POST", "/portForward/ns/pod/1-2-3?port=80")
    assert isinstance(asked, Session)
    assert (asked.uid, asked.query) == ("1-2-3", (("ports", "80"),))
    assert route("POST", "/run/ns/pod/u1/main?cmd=ls%20-l") == Run(
        "ns", "pod", "main", "u1", ("ls", "-l")
    )


@pytest.mark.parametrize(
    "target",
    [
        "/exec/ns/pod/main?output=1",
        "/exec/ns/pod/main?command=sh",
        "/exec/ns/pod/main?command=sh&tty=1&error=1",
        "/portForward/ns/pod?port=0",
        "/portForward/ns/pod?port=80,99999",
        "/portForward/ns/pod?port=%D9%A1",
        "/run/ns/pod/main",
    ],
)
def test_sessions_that_make_no_sense_are_refused(target: str) -> None:
    with pytest.raises(Refusal):
        route("POST", target)


@pytest.mark.parametrize("page", list(NodePage))
def test_every_page_of_a_node_is_known(page: NodePage) -> None:
    asked = route("GET", f"/{page}")
    assert isinstance(asked, Page)
    assert asked.page is page


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
def test_tricks_in_a_path_lead_nowhere(target: str) -> None:
    with pytest.raises(Refusal):
        route("GET", target)


@pytest.mark.parametrize("target", ["/", "/logs/", "/containerLogs/ns/pod", "/debug/pprof", "/x"])
def test_what_a_kubelet_has_and_we_have_not_is_not_found(target: str) -> None:
    with pytest.raises(Refusal, match="no such page"):
        route("GET", target)


@pytest.mark.parametrize(
    ("method", "target"),
    [("POST", "/pods"), ("DELETE", "/exec/n/p/c"), ("POST", "/containerLogs/n/p/c")],
)
def test_other_methods_are_not_allowed(method: str, target: str) -> None:
    with pytest.raises(Refusal):
        route(method, f"{target}?command=x&output=1")


@given(st.text(max_size=60), st.sampled_from(["GET", "POST", "PUT"]))
def test_any_path_is_understood_or_refused(text: str, method: str) -> None:
    for target in (f"/{quote(text)}", f"/exec/{text}", f"/containerLogs/ns/pod/{text}", "/" + text):
        try:
            route(method, target)
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
        ("GET", "/pods", Right("get", "proxy")),
        ("GET", "/stats/summary", Right("get", "stats")),
        ("GET", "/metrics/resource", Right("get", "metrics")),
        ("GET", "/metrics", Right("get", "metrics")),
    ],
)
def test_what_leads_into_a_pod_takes_create(method: str, target: str, right: Right) -> None:
    assert needed(route(method, target))[-1] == right
