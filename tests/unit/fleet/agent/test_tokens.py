"""A token of a Secret: read again at half of its life, and after a 401."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.fleet.agent.tokens import SecretTokenAccess, refused_credential, token_life
from kubeocean.local.pki import LocalAuthority, Subject
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.objects import Key
from kubeocean.runtime.redaction import Secret
from kubeocean.runtime.retries import RetryPolicy
from kubeocean.runtime.transport import Response
from support.scripted_transport import Scripted, answer

NOW = VirtualClock().now()


def jwt(issued: datetime | None, expires: datetime | None) -> str:
    claims = {}
    if issued is not None:
        claims["iat"] = int(issued.timestamp())
    if expires is not None:
        claims["exp"] = int(expires.timestamp())
    body = urlsafe_b64encode(msgspec.json.encode(claims)).decode().rstrip("=")
    return f"e30.{body}.sig"


def secret(token: str) -> Response:
    data = {"token": b64encode(token.encode()).decode()}
    return answer(200, msgspec.json.encode({"metadata": {"name": "t"}, "data": data}))


def source(*script: Response) -> tuple[SecretTokenAccess, Scripted, VirtualClock]:
    clock, transport = VirtualClock(), Scripted(*script)
    member = Client(transport, clock=clock, retry=RetryPolicy(attempts=1))
    access = Access("https://hub")
    key = Key("fleet-system", "t")
    return SecretTokenAccess(access, member, key, clock=clock), transport, clock


def token_of(access: SecretTokenAccess) -> str:
    token = access.current().token
    return "" if token is None else token.reveal()


async def test_a_token_is_read_again_at_half_of_its_life() -> None:
    hour = timedelta(hours=1)
    first, second = jwt(NOW, NOW + hour), jwt(NOW + hour / 2, NOW + hour * 3 / 2)
    access, transport, clock = source(secret(first), secret(second))
    assert token_of(access) == ""
    assert await access.refresh()
    assert token_of(access) == first
    assert access.interval_s == 1800
    await clock.advance(1799)
    assert not await access.refresh()
    await clock.advance(1)
    assert await access.refresh()
    assert token_of(access) == second
    assert len(transport.requests) == 2


async def test_an_answer_401_reads_the_secret_at_once() -> None:
    access, _, clock = source(secret("old"), secret("new"))
    await access.refresh()
    assert access.interval_s == 3600  # a token without an expiry
    await clock.advance(2)
    assert await access.refresh(rejected=True)
    assert token_of(access) == "new"


async def test_answers_401_do_not_read_the_secret_all_the_time() -> None:
    access, transport, _ = source(secret("old"))
    for _ in range(10):
        await access.refresh(rejected=True)
    assert len(transport.requests) == 1


async def test_failed_reads_keep_the_token_and_back_off() -> None:
    refused = answer(403, b'{"kind": "Status", "message": "no", "code": 403}')
    access, transport, clock = source(secret(jwt(NOW, NOW + timedelta(seconds=20))), refused)
    await access.refresh()
    token = token_of(access)
    waits = []
    for _ in range(8):
        await clock.advance(access.interval_s)
        assert not await access.refresh()
        waits.append(access.interval_s)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert token_of(access) == token
    assert len(transport.requests) == 9


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"data": {}}', b'{"data": {"token": "%"}}', b'{"data": {"token": "AAo="}}'],
)
async def test_an_unusable_secret_gives_no_token(body: bytes) -> None:
    access, _, _ = source(answer(200, body))
    assert not await access.refresh()
    assert token_of(access) == ""
    assert access.interval_s == 1


def test_the_life_of_a_token() -> None:
    life = token_life(jwt(NOW, NOW + timedelta(hours=2)), NOW)
    assert life is not None
    assert life.renew_in(NOW) == 3600
    assert token_life(jwt(NOW, None), NOW) is None
    unknown = token_life(jwt(None, NOW + timedelta(hours=2)), NOW)
    assert unknown is not None
    assert unknown.renew_in(NOW) == 3600


@given(st.one_of(st.text(), st.builds("{}.{}.{}".format, st.text(), st.text(), st.text())))
def test_any_text_can_be_a_token(text: str) -> None:
    token_life(text, NOW)


def test_a_refusal_names_the_credential_and_its_end() -> None:
    def refusal(token: str | None) -> str:
        secret = Secret(token) if token is not None else None
        return refused_credential(Access("https://hub", token=secret, origin="/run/token"), NOW)

    old = refusal(jwt(NOW - timedelta(hours=2), NOW - timedelta(hours=1)))
    assert old.startswith("the token of /run/token expired at 20")
    assert "replace it" in old
    revoked = refusal(jwt(NOW, NOW + timedelta(hours=1)))
    assert "the token of /run/token is not accepted, although it is valid until" in revoked
    assert "the token of /run/token is not accepted; replace it" in refusal("opaque")
    assert refusal(None) == "no token could be read from /run/token; store one there"


def test_a_refusal_names_a_client_certificate() -> None:
    clock = VirtualClock(NOW - timedelta(days=3))
    issued = LocalAuthority.create("ca", clock=clock).issue(Subject("agent", client=True), days=1)
    access = Access("https://hub", certificate=issued.certificate, origin="/run/client.crt")
    text = refused_credential(access, NOW)
    assert text.startswith("the client certificate of /run/client.crt expired at ")
