"""Tests of permission reviews and of version checks."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.install.permissions import Permission
from kubeocean.install.roles import metrics_rights, worker_rights
from kubeocean.manager.preflight import review, summary
from kubeocean.manager.worker_probe import release_in
from kubeocean.runtime.access_reviews import is_allowed
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Json
from kubeocean.runtime.transport import Request, Response
from kubeocean.worker_access.identity import release_of
from support.scripted_transport import Scripted, answer


class Allowing(Scripted):
    """A worker that allows these, and nothing else."""

    def __init__(self, *permissions: Permission) -> None:
        super().__init__()
        self._allowed = [each.attributes() for each in permissions]

    async def send(self, request: Request) -> Response:
        assert request.body is not None
        body: Json = msgspec.json.decode(request.body)
        is_allowed = body["spec"]["resourceAttributes"] in self._allowed
        return answer(201, msgspec.json.encode({"status": {"allowed": is_allowed}}))


NEEDED = tuple(worker_rights("m", ()).permissions())
OF_OLD = tuple(metrics_rights().permissions())
TOKENS = Permission("create", "", "serviceaccounts/token", "m", "kubeocean-metrics")


@pytest.mark.parametrize(
    ("extra", "has_metrics"),
    [((TOKENS,), True), (OF_OLD, True), (OF_OLD[:1], False), ((), False)],
)
async def test_metrics_are_granted_by_the_metrics_account_or_by_the_credential(
    extra: tuple[Permission, ...], has_metrics: bool
) -> None:
    client = Client(Allowing(*NEEDED, *extra), cluster="worker")
    reviewed = await review(client, "m", DEFAULT)
    assert reviewed.missing == ()
    assert ("metrics" not in reviewed.without) is has_metrics


def test_permissions_on_one_resource_in_one_namespace_are_summarized() -> None:
    requests = [
        Permission("create", "", "pods", "m"),
        Permission("list", "", "pods"),
        Permission("patch", "", "pods", "m"),
        Permission("get", "storage.k8s.io", "csinodes"),
    ]
    assert summary(requests) == [
        "create, patch pods in m",
        "list pods",
        "get csinodes.storage.k8s.io",
    ]
    assert summary([]) == []


@pytest.mark.parametrize(
    ("message", "version", "old"),
    [
        ({"major": "1", "minor": "34", "gitVersion": "v1.34.4"}, "v1.34.4", False),
        ({"major": "1", "minor": "28", "gitVersion": "v1.28.0"}, "v1.28.0", False),
        ({"major": "1", "minor": "27+", "gitVersion": "v1.27.9-eks"}, "v1.27.9-eks", True),
        ({}, "", False),
        ({"major": "x", "minor": 3}, "", False),
        ({"major": "9" * 5000, "minor": "1", "gitVersion": "v9"}, "v9", False),
    ],
)
def test_versions_of_servers_are_parsed(
    message: dict[str, object], version: str, old: bool
) -> None:
    assert release_of(message) == (version, old)


@pytest.mark.parametrize(
    ("body", "release"),
    [
        (b'{"major": "1", "minor": "27", "gitVersion": "v1.27.9"}', ("v1.27.9", True)),
        (b"<html>", ("", False)),
        (b"[1]", ("", False)),
        (b'{"major": "\xff"}', ("", False)),
        (b'{"major": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", ("", False)),
    ],
)
def test_invalid_responses_of_a_worker_never_raise(body: bytes, release: tuple[str, bool]) -> None:
    assert release_in(body) == release


@pytest.mark.parametrize(
    ("answer", "allowed"),
    [
        ({"status": {"allowed": True}}, True),
        ({"status": {"allowed": False}}, False),
        ({"status": {"allowed": "false"}}, False),
        ({"status": ["allowed"]}, False),
        ({"status": "allowed"}, False),
        ({}, False),
    ],
)
def test_only_a_review_that_allows_grants_a_permission(
    answer: dict[str, object], allowed: bool
) -> None:
    assert is_allowed(answer) is allowed
