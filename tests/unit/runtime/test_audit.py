"""The audit of writes: which requests leave a line, and its fields."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from kubeocean.errors import Conflict, Unreachable
from kubeocean.runtime import logs
from kubeocean.runtime.audit import AuditTransport, Write, write_of
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import NAMESPACES, PODS
from kubeocean.runtime.retries import RetryPolicy
from kubeocean.runtime.transport import Request, Response
from support.scripted_transport import Scripted, answer
from support.wait import until

POD = b'{"metadata": {"name": "web-0", "uid": "u1"}}'


class Audit:
    """A client whose writes are audited, and the lines of its audit."""

    def __init__(self) -> None:
        self.server = Scripted(answer(200, POD))
        transport = AuditTransport(self.server, cluster="worker", actor="kubeocean-syncer/r1")
        self.client = Client(transport, retry=RetryPolicy(attempts=1))
        self.stream = io.StringIO()

    @property
    def lines(self) -> list[dict[str, Any]]:
        parsed = map(json.loads, self.stream.getvalue().splitlines())
        return [line for line in parsed if line["logger"] == "kubeocean.audit"]

    @property
    def line(self) -> dict[str, Any]:
        (line,) = self.lines
        return line


@pytest.fixture(params=["info", "warning", "error"])
def audit(request: pytest.FixtureRequest) -> Iterator[Audit]:
    audit = Audit()
    restore = logs.configure("json", request.param, audit.stream)
    yield audit
    restore()


async def test_a_create_leaves_a_line_at_every_log_level(audit: Audit) -> None:
    with logs.bound(controller="pods", key="team/web-0"):
        body = {"metadata": {"generateName": "web-"}, "data": {"password": "canary"}}
        await audit.client.create(PODS, body, namespace="team")
    expected = {
        "msg": "Wrote object",
        "level": "info",
        "actor": "kubeocean-syncer/r1",
        "cluster": "worker",
        "verb": "create",
        "group": "",
        "resource": "pods",
        "namespace": "team",
        "name": "web-0",
        "uid": "u1",
        "outcome": "done",
        "controller": "pods",
        "key": "team/web-0",
    }
    assert audit.line == expected | audit.line
    assert "canary" not in audit.stream.getvalue()


async def test_a_level_that_is_set_later_keeps_the_audit(audit: Audit) -> None:
    logs.set_level("error")
    await audit.client.delete(PODS, "web-0", "team", uid="u7")
    assert (audit.line["verb"], audit.line["uid"]) == ("delete", "u7")


async def test_evictions_and_tokens_have_their_own_verbs(audit: Audit) -> None:
    options = {"deleteOptions": {"preconditions": {"uid": "u2"}}}
    await audit.client.post(PODS, "web-0", "eviction", options, "team")
    await audit.client.request(
        "POST", "/api/v1/namespaces/team/serviceaccounts/app/token", body={"spec": {}}
    )
    evicted, requested = audit.lines
    assert (evicted["verb"], evicted["name"], evicted["uid"]) == ("evict", "web-0", "u2")
    assert (requested["verb"], requested["resource"]) == ("request token", "serviceaccounts/token")


async def test_a_write_that_fails_leaves_a_line_with_its_outcome(audit: Audit) -> None:
    audit.server.script = [answer(409, b'{"kind": "Status", "reason": "Conflict", "code": 409}')]
    with pytest.raises(Conflict):
        await audit.client.patch(NAMESPACES, "team", MergePatch({"metadata": {"uid": "u3"}}))
    audit.server.script = [Unreachable("lost", sent=True)]
    with pytest.raises(Unreachable):
        await audit.client.patch(NAMESPACES, "team", MergePatch({"metadata": {"uid": "u3"}}))
    refused, lost = audit.lines
    assert (refused["outcome"], refused["status"], refused["reason"]) == (
        "refused",
        409,
        "Conflict",
    )
    assert (lost["outcome"], lost["uid"], lost["msg"]) == (
        "not answered", "u3", "Failed to write object",
    )  # fmt: skip


async def test_reads_leave_no_line(audit: Audit) -> None:
    await audit.client.get(PODS, "web-0", "team")
    audit.server.script = [answer(200, b'{"metadata": {}, "items": []}')]
    await audit.client.list(PODS)
    assert audit.lines == []


@pytest.mark.parametrize(
    ("method", "path", "write"),
    [
        ("POST", "/api/v1/namespaces", Write("create", "", "namespaces")),
        ("DELETE", "/api/v1/namespaces/a", Write("delete", "", "namespaces", "", "a")),
        ("PATCH", "/api/v1/namespaces/a/status", Write("patch", "", "namespaces/status", "", "a")),
        ("PATCH", "/api/v1/nodes/n/status", Write("patch", "", "nodes/status", "", "n")),
        ("PUT", "/apis/g/v1/namespaces/a/things/t", Write("update", "g", "things", "a", "t")),
        ("DELETE", "/apis/g/v1/namespaces/a/things", Write("delete", "g", "things", "a")),
        ("PATCH", "/api/v1/namespaces/a/pods/x%2Fy", Write("patch", "", "pods", "a", "x/y")),
        ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n", None),
        ("POST", "/apis/events.k8s.io/v1/namespaces/a/events", None),
        ("POST", "/api/v1/namespaces/a/events", None),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", None),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", None),
        ("GET", "/api/v1/pods", None),
        ("POST", "/version", None),
        ("POST", "/", None),
        ("POST", "/apis", None),
    ],
)  # fmt: skip
def test_a_write_is_described_by_method_and_path(
    method: str, path: str, write: Write | None
) -> None:
    assert write_of(Request(method, path)) == write


def test_a_dry_run_is_no_write() -> None:
    assert write_of(Request("POST", "/api/v1/namespaces", (("dryRun", "All"),))) is None


class Silent(Scripted):
    """Receives requests, and answers none."""

    async def send(self, request: Request) -> Response:
        self.requests.append(request)
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_write_that_is_cancelled_leaves_a_line(audit: Audit) -> None:
    server = Silent()
    transport = AuditTransport(server, cluster="worker", actor="kubeocean-syncer/r1")
    request = Request("DELETE", "/api/v1/namespaces/team/pods/web-0")
    task = asyncio.create_task(transport.send(request))
    await until(lambda: bool(server.requests))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (audit.line["verb"], audit.line["name"]) == ("delete", "web-0")
    assert audit.line["outcome"] == "not answered"
