"""The client's own decisions: requests, retries and time limits."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from kubeocean.errors import (
    ApiError,
    ConfigError,
    Gone,
    InternalError,
    InvariantError,
    NotFound,
    ServiceUnavailable,
    TooManyRequests,
    Unreachable,
)
from kubeocean.runtime.client import ApplyPatch, Client, JsonPatch, MergePatch, Patch
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.kinds import CONFIG_MAPS, NODES, PODS
from kubeocean.runtime.retries import RetryPolicy
from kubeocean.runtime.transport import Request, Response
from support.scripted_transport import Scripted, answer

UNAVAILABLE = answer(503)
LOST = Unreachable("reset", sent=True)
NEVER_SENT = Unreachable("refused", sent=False)


def requested(request: Request) -> tuple[str, str, dict[str, str]]:
    return request.method, request.path, dict(request.query)


def body(request: Request) -> Any:
    return msgspec.json.decode(request.body or b"null")


def page(*names: str, version: str = "1", rest: str = "") -> Response:
    items = [{"metadata": {"name": name}} for name in names]
    meta = {"resourceVersion": version, "continue": rest}
    return answer(200, msgspec.json.encode({"metadata": meta, "items": items}))


# --- requests


async def test_reading_asks_for_one_or_for_many() -> None:
    server = Scripted()
    client = Client(server)
    await client.get(PODS, "x", "ns", subresource="status")
    await client.list(PODS, "ns", labels="a=b", fields="c=d", page=7)
    await client.list(NODES, page=0)
    assert [requested(request) for request in server.requests] == [
        ("GET", "/api/v1/namespaces/ns/pods/x/status", {}),
        (
            "GET",
            "/api/v1/namespaces/ns/pods",
            {"labelSelector": "a=b", "fieldSelector": "c=d", "limit": "7"},
        ),
        ("GET", "/api/v1/nodes", {}),
    ]


async def test_a_write_names_its_field_manager() -> None:
    server = Scripted()
    client = Client(server, field_manager="me")
    await client.create(PODS, {"metadata": {"name": "x", "namespace": "ns"}})
    await client.create(PODS, {"metadata": {"generateName": "x-"}}, namespace="ns", dry_run=True)
    meta = {"name": "x", "namespace": "ns", "resourceVersion": "7"}
    await client.update(PODS, {"metadata": meta}, subresource="status")
    await client.post(PODS, "x", "eviction", {"kind": "Eviction"}, "ns")
    pods, one = "/api/v1/namespaces/ns/pods", "/api/v1/namespaces/ns/pods/x"
    assert [requested(request) for request in server.requests] == [
        ("POST", pods, {"fieldManager": "me"}),
        ("POST", pods, {"fieldManager": "me", "dryRun": "All"}),
        ("PUT", f"{one}/status", {"fieldManager": "me"}),
        ("POST", f"{one}/eviction", {"fieldManager": "me"}),
    ]


@pytest.mark.parametrize(
    ("patch", "query"),
    [
        (MergePatch({"a": 1}), {}),
        (JsonPatch([{"op": "remove", "path": "/a"}]), {}),
        (ApplyPatch({"a": 1}), {}),
        (ApplyPatch({"a": 1}, force=True), {"force": "true"}),
    ],
)
async def test_a_patch_says_what_it_is(patch: Patch, query: dict[str, str]) -> None:
    server = Scripted()
    await Client(server).patch(PODS, "x", patch, "ns", subresource="status")
    (request,) = server.requests
    assert requested(request) == (
        "PATCH",
        "/api/v1/namespaces/ns/pods/x/status",
        {"fieldManager": "kubeocean"} | query,
    )
    assert (request.content_type, body(request)) == (patch.content_type, patch.body)


async def test_a_deletion_says_which_object_it_means() -> None:
    server = Scripted()
    client = Client(server)
    await client.delete(PODS, "x", "ns", uid=None)
    await client.delete(
        PODS, "x", "ns", uid="u", resource_version="7", grace_s=0, propagation="Foreground"
    )
    await client.delete_all(PODS, "ns", labels="a=b", propagation="Background")
    options = {"apiVersion": "v1", "kind": "DeleteOptions"}
    assert [body(request) for request in server.requests] == [
        options,
        options
        | {
            "preconditions": {"uid": "u", "resourceVersion": "7"},
            "gracePeriodSeconds": 0,
            "propagationPolicy": "Foreground",
        },
        options | {"propagationPolicy": "Background"},
    ]
    assert dict(server.requests[2].query) == {"labelSelector": "a=b"}


async def test_a_verb_on_one_object_never_becomes_one_on_all() -> None:
    server = Scripted()
    client = Client(server)
    nameless = {"metadata": {"resourceVersion": "7", "namespace": "ns"}}
    for attempt in (
        client.delete(PODS, "", "ns", uid=None),
        client.get(PODS, "", "ns"),
        client.patch(PODS, "", MergePatch({}), "ns"),
        client.post(PODS, "", "eviction", {}, "ns"),
        client.update(PODS, nameless),
    ):
        with pytest.raises(InvariantError, match="name of the object is empty"):
            await attempt
    with pytest.raises(InvariantError, match="needs a label or field selector"):
        await client.delete_all(PODS, "ns")
    assert server.requests == []


async def test_what_was_read_cannot_be_sent_back() -> None:
    client = Client(Scripted())
    partial = await client.get(PODS, "x")
    for attempt in (
        client.create(PODS, partial),
        client.update(PODS, partial),
        client.create(PODS, [("metadata", {})]),
    ):
        with pytest.raises(InvariantError, match="decoded object"):
            await attempt
    with pytest.raises(InvariantError, match="resourceVersion"):
        await client.update(PODS, {"metadata": {"name": "x"}})


async def test_anything_else_can_be_asked_for() -> None:
    server = Scripted(answer(200, b'{"gitVersion":"v1"}'))
    client = Client(server)
    assert await client.request_json("GET", "/version") == {"gitVersion": "v1"}
    assert await client.request("GET", "/metrics", accept="text/plain", query=[("a", "b")])
    assert server.requests[1].accept == "text/plain"
    assert requested(server.requests[1]) == ("GET", "/metrics", {"a": "b"})
    await client.close()
    assert server.closed


# --- lists


async def test_pages_are_put_together() -> None:
    server = Scripted(page("a", "b", rest="t1"), page("c", rest="t2"), page())
    listing = await Client(server).list(CONFIG_MAPS, page=2)
    assert ([item.name for item in listing.items], listing.version) == (["a", "b", "c"], "1")
    tokens = [dict(request.query).get("continue") for request in server.requests]
    assert tokens == [None, "t1", "t2"]


@pytest.mark.parametrize("version", ["1", "2"])
async def test_a_list_that_the_server_forgot_starts_over_in_one_piece(version: str) -> None:
    whole = page("b", "c", version=version)
    server = Scripted(page("a", "b", rest="t1"), answer(410), whole)
    client = Client(server)
    listing = await client.list(CONFIG_MAPS, page=2)
    assert [item.name for item in listing.items] == ["b", "c"]
    assert listing.version == version
    assert dict(server.requests[2].query) == {}

    server.script = [page("a", "b", rest="t1"), answer(410), whole]
    begins = [part.begins async for part in client.pages(CONFIG_MAPS, page=2)]
    assert begins == [True, True]


async def test_a_list_that_is_gone_from_the_start_is_gone() -> None:
    with pytest.raises(Gone):
        await Client(Scripted(answer(410))).list(CONFIG_MAPS)


# --- answers


@pytest.mark.parametrize(
    "nonsense",
    [b"", b"<html>", b"[]", b"\xff", b'{"metadata":{"name":5}}', b'{"a":' + b"[" * 100_000],
    ids=["nothing", "HTML", "a list", "not UTF-8", "another type", "deep"],
)
async def test_an_answer_that_cannot_be_read_is_the_servers_failure(nonsense: bytes) -> None:
    server = Scripted(answer(200, nonsense))
    client = Client(server)
    attempts = [
        (client.get(PODS, "x", "ns"), "get pods ns/x"),
        (client.create(PODS, {"metadata": {"name": "x"}}), "create pods x"),
        (client.patch(PODS, "x", MergePatch({})), "patch pods x"),
    ]
    if b"name" not in nonsense:
        attempts += [
            (client.list(PODS), "list pods"),
            (client.post(PODS, "x", "token", {}), "post pods/token of x"),
            (client.request_json("GET", "/x"), "GET /x"),
        ]
    for attempt, doing in attempts:
        with pytest.raises(InternalError, match=f"could not {doing}: the answer cannot be read"):
            await attempt
    assert len(server.requests) == len(attempts)  # no request was sent twice


@pytest.mark.parametrize("keep_raw", [False, True])
@pytest.mark.parametrize("name", ["", ".", ".."])
async def test_a_list_of_objects_that_no_request_can_name_is_the_servers_failure(
    name: str, keep_raw: bool
) -> None:
    client = Client(Scripted(page("a", name)))
    with pytest.raises(InternalError, match="the answer cannot be read: an object has the name"):
        await client.list(PODS, keep_raw=keep_raw)


async def test_a_refusal_says_what_was_being_done() -> None:
    message = b'{"kind":"Status","message":"no such pod","reason":"NotFound","code":404}'
    with pytest.raises(NotFound, match="could not get pods ns/x: no such pod"):
        await Client(Scripted(answer(404, message))).get(PODS, "x", "ns")


async def test_an_error_prints_a_name_of_another_cluster_without_escape_sequences() -> None:
    refusal = answer(404, b'{"kind":"Status","message":"no","reason":"NotFound","code":404}')
    with pytest.raises(NotFound) as refused:
        await Client(Scripted(refusal)).get(PODS, "\x1b[2Jx", "ns")
    assert str(refused.value).startswith("could not get pods ns/ [2Jx: no")


# --- again, and for how long


class Slow(Scripted):
    """A server that takes its time, on a virtual clock."""

    def __init__(self, clock: VirtualClock, seconds: float, *script: Any) -> None:
        super().__init__(*script)
        self.clock, self.seconds = clock, seconds

    async def send(self, request: Request) -> Response:
        limit = request.timeout_s
        assert limit is not None
        await self.clock.sleep(min(self.seconds, limit))
        if self.seconds > limit:
            self.requests.append(request)
            raise Unreachable("too slow")
        return await super().send(request)


async def outcome(clock: VirtualClock, work: Any) -> tuple[object, float]:
    """Return the result of a call and the time at which it came."""
    done: list[tuple[object, float]] = []

    async def run() -> None:
        try:
            result: object = await work
        except ApiError as error:
            result = error
        done.append((result, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        group.create_task(run())
        await clock.advance(10_000)
    return done[0]


async def test_a_read_is_tried_again_and_a_write_is_not() -> None:
    clock = VirtualClock()
    for step in (UNAVAILABLE, LOST):
        server = Scripted(step, step, answer())
        client = Client(server, clock=clock)
        result, _ = await outcome(clock, client.get(PODS, "x"))
        assert not isinstance(result, ApiError)
        assert len(server.requests) == 3

        server = Scripted(step)
        client = Client(server, clock=clock)
        for write in (
            client.create(PODS, {"metadata": {"name": "x"}}),
            client.update(PODS, {"metadata": {"name": "x", "resourceVersion": "1"}}),
            client.patch(PODS, "x", MergePatch({})),
            client.delete(PODS, "x", uid="u"),
            client.post(PODS, "x", "eviction", {}),
            client.request("POST", "/x"),
        ):
            server.requests.clear()
            result, _ = await outcome(clock, write)
            assert isinstance(result, ServiceUnavailable | Unreachable)
            assert len(server.requests) == 1


@pytest.mark.parametrize("step", [NEVER_SENT, answer(429, Retry_After="1")], ids=["429", "refused"])
async def test_a_write_that_was_not_looked_at_is_tried_again(step: Any) -> None:
    clock = VirtualClock()
    server = Scripted(step, answer())
    result, _ = await outcome(clock, Client(server, clock=clock).delete(PODS, "x", uid="u"))
    assert result is None
    assert len(server.requests) == 2


async def test_applies_and_idempotent_posts_are_repeated() -> None:
    clock = VirtualClock()
    server = Scripted(LOST, answer())
    client = Client(server, clock=clock)
    await outcome(clock, client.patch(PODS, "x", ApplyPatch({})))
    assert len(server.requests) == 2
    server.script = [LOST, answer()]
    await outcome(clock, client.request("POST", "/reviews", idempotent=True))
    assert len(server.requests) == 4


async def test_it_gives_up_after_so_many_attempts() -> None:
    clock = VirtualClock()
    server = Scripted(UNAVAILABLE)
    client = Client(server, clock=clock, retry=RetryPolicy(attempts=3, base_s=1, cap_s=1))
    result, at = await outcome(clock, client.get(PODS, "x"))
    assert isinstance(result, ServiceUnavailable)
    assert len(server.requests) == 3
    assert 1 <= at <= 2


async def test_the_servers_time_to_wait_is_kept_if_there_is_time() -> None:
    clock = VirtualClock()
    server = Scripted(answer(429, Retry_After="7"), answer())
    client = Client(server, clock=clock)
    _, at = await outcome(clock, client.get(PODS, "x"))
    assert at == 7
    server.script = [answer(429, Retry_After="31"), answer()]
    began = clock.monotonic()
    result, at = await outcome(clock, client.get(PODS, "x"))
    assert isinstance(result, TooManyRequests)
    assert at == began


@pytest.mark.parametrize("seconds", [0.4, 0.9, 3.0])
async def test_all_attempts_together_hold_the_deadline(seconds: float) -> None:
    clock = VirtualClock()
    server = Slow(clock, seconds, UNAVAILABLE)
    policy = RetryPolicy(attempts=100, base_s=0.05, cap_s=0.1)
    client = Client(server, clock=clock, timeout_s=1.0, retry=policy)
    result, at = await outcome(clock, client.get(PODS, "x"))
    assert isinstance(result, ApiError)
    assert at <= 1.0
    left = [request.timeout_s or 0 for request in server.requests]
    assert left == sorted(left, reverse=True)
    assert left[0] == 1.0


# --- QPS


async def test_the_rate_of_requests_is_limited() -> None:
    clock = VirtualClock()
    server = Scripted()
    client = Client(server, clock=clock, qps=10, burst=5)
    times: list[float] = []

    async def ask() -> None:
        await client.get(PODS, "x")
        times.append(round(clock.monotonic(), 6))

    async with asyncio.TaskGroup() as group:
        for _ in range(25):
            group.create_task(ask())
        await clock.advance(10)
    assert times == [0.0] * 5 + [round(n / 10, 6) for n in range(1, 21)]


async def test_repetitions_count_and_waiting_in_line_does_not() -> None:
    """A request may wait longer for its turn than it may take."""
    clock = VirtualClock()
    server = Scripted(*[UNAVAILABLE] * 2, answer())
    policy = RetryPolicy(base_s=0.001, cap_s=0.001)
    client = Client(server, clock=clock, qps=0.01, burst=1, timeout_s=5.0, retry=policy)
    result, at = await outcome(clock, client.get(PODS, "x"))
    assert not isinstance(result, ApiError)
    assert at == pytest.approx(200, abs=0.1)  # three requests, one every hundred seconds


def test_a_limit_must_make_sense() -> None:
    with pytest.raises(ConfigError, match="qps"):
        Client(Scripted(), qps=0)
    with pytest.raises(ConfigError, match="burst"):
        Client(Scripted(), qps=1, burst=0)


async def test_another_field_manager_uses_the_same_connections_and_limits() -> None:
    clock = VirtualClock()
    transport = Scripted(answer())
    client = Client(transport, cluster="c", qps=1.0, burst=1, clock=clock)
    agent = client.with_field_manager("agent")
    await client.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace="n")
    limited = asyncio.create_task(agent.patch(CONFIG_MAPS, "a", MergePatch({}), "n", keep_raw=True))
    await clock.advance(0.5)
    assert not limited.done(), "one limit for both"
    await clock.advance(1.0)
    assert (await limited).raw == b"{}"
    managers = [dict(request.query)["fieldManager"] for request in transport.requests]
    assert managers == ["kubeocean", "agent"]
    assert (client.field_manager, agent.cluster) == ("kubeocean", "c")


async def test_the_whole_answer_to_a_create_is_kept_if_asked_for() -> None:
    transport = Scripted(answer(body=b'{"metadata":{"name":"a"},"extra":1}'))
    client = Client(transport)
    made = await client.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, keep_raw=True)
    assert made.content()["extra"] == 1
    assert not (await client.create(CONFIG_MAPS, {"metadata": {"name": "a"}})).raw
