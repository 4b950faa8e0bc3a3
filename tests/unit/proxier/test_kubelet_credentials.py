"""The credential that kubelets are shown, how long it is used, and its fallbacks."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from kubeocean.errors import Refusal
from kubeocean.proxier import kubelet_credentials
from kubeocean.proxier.kubelet_credentials import KubeletCredential
from kubeocean.runtime.access import Access, Impersonation
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.redaction import Secret
from support.kubelet_tokens import OWN, EditedAccess, TokenIssuer, credential_of
from support.wait import until

CERTIFIED = Access(
    "https://w", certificate=b"c", private_key=Secret(b"k"), token=Secret(OWN), username="me"
)


async def shown(credential: KubeletCredential) -> str:
    """Return the token that a kubelet would see."""
    await credential.ensure()
    token = credential.current().token
    return token.reveal() if token is not None else ""


async def refused(credential: KubeletCredential) -> str:
    with pytest.raises(Refusal) as refusal:
        await credential.ensure()
    assert refusal.value.status == 502
    return str(refusal.value)


# A token of the account


async def test_kubelets_are_shown_a_short_token_of_the_account_only() -> None:
    worker = TokenIssuer()
    own = Access("https://w", ca=b"ca", token=Secret(OWN), impersonate=Impersonation("boss"))
    credential = credential_of(worker, EditedAccess(own))
    assert await shown(credential) == "token-1"
    assert credential.current().headers() == [("Authorization", "Bearer token-1")]
    assert credential.current().ca == b"ca"
    (request,) = worker.requests
    assert request.path == "/api/v1/namespaces/m/serviceaccounts/kubeocean-metrics/token"
    assert request.body is not None
    assert msgspec.json.decode(request.body)["spec"] == {"expirationSeconds": 600}


async def test_a_token_is_replaced_when_a_fifth_of_its_life_is_left() -> None:
    worker, clock = TokenIssuer(), VirtualClock()
    credential = credential_of(worker, clock=clock)
    assert await shown(credential) == "token-1"
    await clock.advance(479.0)
    assert await shown(credential) == "token-1"
    await clock.advance(1.0)
    assert await shown(credential) == "token-2"
    await clock.advance(479.0)
    assert await shown(credential) == "token-2"
    assert len(worker.paths) == 2


@pytest.mark.parametrize(
    ("life_s", "due_s"), [(60, 48.0), (7200, 5760.0), (None, 480.0), ("long", 480.0), (0, 480.0)]
)
async def test_the_life_of_a_token_is_the_one_that_the_worker_grants(
    life_s: object, due_s: float
) -> None:
    clock = VirtualClock()
    credential = credential_of(TokenIssuer(life_s=life_s), clock=clock)
    assert await shown(credential) == "token-1"
    await clock.advance(due_s - 1.0)
    assert await shown(credential) == "token-1"
    await clock.advance(1.0)
    assert await shown(credential) == "token-2"


async def test_concurrent_requests_cost_one_token_request() -> None:
    worker = TokenIssuer(gate=asyncio.Event())
    credential = credential_of(worker)
    tasks = [asyncio.create_task(shown(credential)) for _ in range(50)]
    await asyncio.sleep(0)
    assert worker.gate is not None
    worker.gate.set()
    assert set(await asyncio.gather(*tasks)) == {"token-1"}
    assert len(worker.paths) == 1


async def test_a_cancelled_token_request_is_made_by_the_next_waiter() -> None:
    worker = TokenIssuer(gate=asyncio.Event())
    credential = credential_of(worker)
    first, second = (asyncio.create_task(shown(credential)) for _ in range(2))
    await until(lambda: bool(worker.paths))
    first.cancel()
    assert worker.gate is not None
    worker.gate.set()
    assert await second == "token-1"


async def test_a_valid_token_is_used_while_a_new_one_is_requested() -> None:
    worker, clock = TokenIssuer(), VirtualClock()
    credential = credential_of(worker, clock=clock)
    assert await shown(credential) == "token-1"
    await clock.advance(500.0)
    worker.gate = asyncio.Event()
    first = asyncio.create_task(shown(credential))
    await until(lambda: len(worker.paths) == 2)
    assert await shown(credential) == "token-1"
    worker.gate.set()
    assert await first == "token-2"


async def test_a_token_is_used_until_it_expires_while_the_worker_fails() -> None:
    worker, clock = TokenIssuer(), VirtualClock()
    credential = credential_of(worker, clock=clock)
    assert await shown(credential) == "token-1"
    worker.status = 500
    await clock.advance(599.0)
    assert await shown(credential) == "token-1"
    await clock.advance(1.0)
    assert "InternalError" in await refused(credential)
    worker.status = 201
    await clock.advance(5.0)
    assert await shown(credential) == "token-2"


async def test_a_worker_that_fails_gets_one_token_request() -> None:
    worker, clock = TokenIssuer(status=503), VirtualClock()
    credential = credential_of(worker, clock=clock)
    messages = await asyncio.gather(*(refused(credential) for _ in range(50)))
    assert len(set(messages)) == len(worker.paths) == 1
    await clock.advance(5.0)
    await refused(credential)
    assert len(worker.paths) == 2


async def test_a_token_request_that_is_not_answered_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kubelet_credentials, "_TIMEOUT_S", 0.05)
    credential = credential_of(TokenIssuer(gate=asyncio.Event(), may_read=True))
    assert "in time" in await refused(credential)


async def test_an_answer_without_a_token_gives_no_credential(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for broken in (
        {},
        {"status": []},
        {"status": {"token": "two words"}},
        {"status": {"token": 1}},
    ):
        assert kubelet_credentials._read_token(broken) == (None, 0.0)
    monkeypatch.setattr(kubelet_credentials, "_read_token", lambda answer: (None, 0.0))
    assert "contains none" in await refused(credential_of(TokenIssuer(may_read=True)))


# Tokens that kubelets refuse


async def test_a_token_that_kubelets_refuse_is_replaced_once_a_minute() -> None:
    worker, clock = TokenIssuer(), VirtualClock()
    credential = credential_of(worker, clock=clock)
    assert await shown(credential) == "token-1"
    for _ in range(20):
        await credential.replace()
    assert await shown(credential) == "token-1"
    await clock.advance(60.0)
    for _ in range(20):
        await credential.replace()
    assert await shown(credential) == "token-2"
    assert len(worker.paths) == 2


# Without an account


@pytest.mark.parametrize("status", [403, 404])
async def test_without_an_account_the_own_token_is_shown_and_that_is_logged_once(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    worker, clock = TokenIssuer(status=status, may_read=True), VirtualClock()
    credential = credential_of(worker, clock=clock)
    for _ in range(3):
        assert await shown(credential) == OWN
        await clock.advance(60.0)
    lines = [each for each in caplog.records if "own token" in each.getMessage()]
    assert len(lines) == 1
    assert OWN not in caplog.text
    worker.status = 201
    assert await shown(credential) == "token-1"


async def test_an_own_token_without_the_right_to_metrics_is_not_shown() -> None:
    worker, clock = TokenIssuer(status=403), VirtualClock()
    credential = credential_of(worker, clock=clock)
    for _ in range(3):
        assert "kubeocean join" in await refused(credential)
    assert len(worker.paths) == 2  # the token request, and the review of the own token
    worker.status = 201
    await clock.advance(60.0)
    assert await shown(credential) == "token-1"


@pytest.mark.parametrize("status", [401, 409, 429, 500, 503])
async def test_the_own_token_is_not_shown_because_of_a_failure(status: int) -> None:
    credential = credential_of(TokenIssuer(status=status, may_read=True))
    await refused(credential)


@pytest.mark.parametrize("status", [403, 404])
async def test_the_own_token_is_not_shown_after_the_account_was_deleted(status: int) -> None:
    worker, clock = TokenIssuer(may_read=True), VirtualClock()
    credential = credential_of(worker, clock=clock)
    assert await shown(credential) == "token-1"
    worker.status = status
    await clock.advance(600.0)
    await refused(credential)


@pytest.mark.parametrize("status", [403, 404])
async def test_a_rotated_own_token_is_not_shown_after_the_account_was_deleted(status: int) -> None:
    worker, source = (
        TokenIssuer(may_read=True),
        EditedAccess(Access("https://w", token=Secret(OWN))),
    )
    credential = credential_of(worker, source)
    assert await shown(credential) == "token-1"
    worker.status = status
    source.edit(Access("https://w", token=Secret("rotated")))
    await refused(credential)


# Other credentials


async def test_a_client_certificate_is_shown_without_token_or_password() -> None:
    worker = TokenIssuer()
    credential = credential_of(worker, EditedAccess(CERTIFIED))
    await credential.ensure()
    assert credential.current().headers() == []
    assert credential.current().certificate == b"c"
    assert worker.paths == []


async def test_a_changed_credential_of_the_worker_is_used_at_once() -> None:
    worker, source = TokenIssuer(status=403), EditedAccess(Access("https://w", token=Secret(OWN)))
    credential = credential_of(worker, source)
    await refused(credential)
    worker.status = 201
    source.edit(Access("https://w", token=Secret("another")))
    assert await shown(credential) == "token-1"
    source.edit(CERTIFIED)
    assert await shown(credential) == ""
    worker.status = 503
    source.edit(Access("https://w", token=Secret("third")))
    await refused(credential)  # a token obtained with another credential is not shown any more


async def test_a_password_is_not_shown() -> None:
    source = EditedAccess(Access("https://w", username="me", password=Secret("word")))
    credential = credential_of(TokenIssuer(), source)
    await credential.ensure()
    assert credential.current().headers() == [("Authorization", "Bearer token-1")]
