"""Tests of whether kubelets are sent a binding's own token."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.inspect.doctor.reading import _exposed
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Key
from kubeocean.runtime.redaction import Secret
from kubeocean.runtime.transport import Request, Response
from support.scripted_transport import Scripted, answer

ACCOUNT = Key("m", "kubeocean-metrics")
TOKEN = Access("https://w", token=Secret("t"))
PASSWORD = Access("https://w", username="u", password=Secret("p"))
CERTIFICATE = Access("https://w", certificate=b"c", token=Secret("t"))


class Worker(Scripted):
    """Grants rights on these subresources; `account` is its answer for the account of metrics."""

    def __init__(self, granted: str, account: int) -> None:
        super().__init__()
        self._granted = granted.split()
        self._account = account

    async def send(self, request: Request) -> Response:
        if request.method == "GET":
            assert request.path == "/api/v1/namespaces/m/serviceaccounts/kubeocean-metrics"
            body = {"metadata": {"name": "kubeocean-metrics", "namespace": "m"}}
            return answer(self._account, msgspec.json.encode(body))
        assert request.body is not None
        attributes = msgspec.json.decode(request.body)["spec"]["resourceAttributes"]
        if attributes["subresource"] == "token":
            assert (attributes["namespace"], attributes["name"]) == ACCOUNT
        review = {"status": {"allowed": attributes["subresource"] in self._granted}}
        return answer(201, msgspec.json.encode(review))


@pytest.mark.parametrize(
    ("access", "granted", "account", "exposed"),
    [
        (TOKEN, "token", 403, False),  # as we set it up
        (TOKEN, "", 403, False),  # without the add-on
        (TOKEN, "metrics", 403, True),  # joined before
        (PASSWORD, "metrics", 403, True),
        (CERTIFICATE, "metrics", 403, False),
        (TOKEN, "metrics token", 404, True),  # an administrator's, without kubeocean join
        (TOKEN, "metrics token", 200, False),
        (TOKEN, "metrics token", 403, False),
        (Access("https://w"), "metrics", 403, False),
        (None, "metrics", 403, False),
    ],
)
async def test_a_credential_is_exposed_by_its_rights_and_without_a_metrics_account(
    access: Access | None, granted: str, account: int, exposed: bool
) -> None:
    client = Client(Worker(granted, account), cluster="worker")
    assert await _exposed(client, access, ACCOUNT) is exposed
