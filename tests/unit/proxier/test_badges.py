"""What kubelets are shown, for how long, and what they are never shown."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from badges import OWN, Edited, Granting, badge_of
from kubeocean.errors import Refusal
from kubeocean.proxier import badges
from kubeocean.proxier.badges import Badge
from kubeocean.runtime.access import Access, Impersonation
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.secrets import Secret
from waiting import until

CERTIFIED = Access(
    "https://w", certificate=b"c", private_key=Secret(b"k"), token=Secret(OWN), username="me"
)


async def shown(badge: Badge) -> str:
    """The token that a kubelet would see."""
    await badge.ensure()
    token = badge.current().token
    return token.reveal() if token is not None else ""


async def refused(badge: Badge) -> str:
    with pytest.raises(Refusal) as refusal:
        await badge.ensure()
    assert refusal.value.status == 502
    return str(refusal.value)


# A token of the account


async def test_a_short_token_of_the_account_is_shown_and_nothing_else() -> None:
    worker = Granting()
    own = Access("https://w", ca=b"ca", token=Secret(OWN), impersonate=Impersonation("boss"))
    badge = badge_of(worker, Edited(own))
    assert await shown(badge) == "token-1"
    assert badge.current().headers() == [("Authorization", "Bearer token-1")]
    assert badge.current().ca == b"ca"
    (request,) = worker.requests
    assert request.path == "/api/v1/namespaces/m/serviceaccounts/kubeocean-metrics/token"
    assert request.body is not None
    assert msgspec.json.decode(request.body)["spec"] == {"expirationSeconds": 600}


async def test_a_token_is_replaced_when_a_fifth_of_its_life_is_left() -> None:
    worker, clock = Granting(), VirtualClock()
    badge = badge_of(worker, clock=clock)
    assert await shown(badge) == "token-1"
    await clock.advance(479.0)
    assert await shown(badge) == "token-1"
    await clock.advance(1.0)
    assert await shown(badge) == "token-2"
    await clock.advance(479.0)
    assert await shown(badge) == "token-2"
    assert len(worker.asked) == 2


@pytest.mark.parametrize(
    ("life_s", "due_s"), [(60, 48.0), (7200, 5760.0), (None, 480.0), ("long", 480.0), (0, 480.0)]
)
async def test_a_life_is_what_the_worker_makes_of_it(life_s: object, due_s: float) -> None:
    clock = VirtualClock()
    badge = badge_of(Granting(life_s=life_s), clock=clock)
    assert await shown(badge) == "token-1"
    await clock.advance(due_s - 1.0)
    assert await shown(badge) == "token-1"
    await clock.advance(1.0)
    assert await shown(badge) == "token-2"


async def test_many_who_ask_at_once_cost_one_request() -> None:
    worker = Granting(gate=asyncio.Event())
    badge = badge_of(worker)
    asking = [asyncio.create_task(shown(badge)) for _ in range(50)]
    await asyncio.sleep(0)
    assert worker.gate is not None
    worker.gate.set()
    assert set(await asyncio.gather(*asking)) == {"token-1"}
    assert len(worker.asked) == 1


async def test_who_goes_away_while_asking_leaves_it_to_the_next() -> None:
    worker = Granting(gate=asyncio.Event())
    badge = badge_of(worker)
    first, second = (asyncio.create_task(shown(badge)) for _ in range(2))
    await until(lambda: bool(worker.asked))
    first.cancel()
    assert worker.gate is not None
    worker.gate.set()
    assert await second == "token-1"


async def test_nobody_waits_for_a_new_token_while_the_old_one_is_good() -> None:
    worker, clock = Granting(), VirtualClock()
    badge = badge_of(worker, clock=clock)
    assert await shown(badge) == "token-1"
    await clock.advance(500.0)
    worker.gate = asyncio.Event()
    first = asyncio.create_task(shown(badge))
    await until(lambda: len(worker.asked) == 2)
    assert await shown(badge) == "token-1"
    worker.gate.set()
    assert await first == "token-2"


async def test_a_good_token_outlives_a_worker_that_fails_and_no_longer_than_its_life() -> None:
    worker, clock = Granting(), VirtualClock()
    badge = badge_of(worker, clock=clock)
    assert await shown(badge) == "token-1"
    worker.status = 500
    await clock.advance(599.0)
    assert await shown(badge) == "token-1"
    await clock.advance(1.0)
    assert "InternalError" in await refused(badge)
    worker.status = 201
    await clock.advance(5.0)
    assert await shown(badge) == "token-2"


async def test_a_worker_that_fails_is_not_asked_by_everybody() -> None:
    worker, clock = Granting(status=503), VirtualClock()
    badge = badge_of(worker, clock=clock)
    said = await asyncio.gather(*(refused(badge) for _ in range(50)))
    assert len(set(said)) == len(worker.asked) == 1
    await clock.advance(5.0)
    await refused(badge)
    assert len(worker.asked) == 2


async def test_a_worker_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(badges, "_PATIENCE_S", 0.05)
    badge = badge_of(Granting(gate=asyncio.Event(), may_read=True))
    assert "in time" in await refused(badge)


async def test_an_answer_without_a_token_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for broken in (
        {},
        {"status": []},
        {"status": {"token": "two words"}},
        {"status": {"token": 1}},
    ):
        assert badges._read(broken) == (None, 0.0)
    monkeypatch.setattr(badges, "_read", lambda answer: (None, 0.0))
    assert "holds none" in await refused(badge_of(Granting(may_read=True)))


# What kubelets do not take


async def test_a_token_that_kubelets_refuse_is_replaced_once_a_minute() -> None:
    worker, clock = Granting(), VirtualClock()
    badge = badge_of(worker, clock=clock)
    assert await shown(badge) == "token-1"
    for _ in range(20):
        await badge.replace()
    assert await shown(badge) == "token-1"
    await clock.advance(60.0)
    for _ in range(20):
        await badge.replace()
    assert await shown(badge) == "token-2"
    assert len(worker.asked) == 2


# Without an account


@pytest.mark.parametrize("status", [403, 404])
async def test_where_there_is_no_account_the_own_token_is_shown_and_that_is_said_once(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    worker, clock = Granting(status=status, may_read=True), VirtualClock()
    badge = badge_of(worker, clock=clock)
    for _ in range(3):
        assert await shown(badge) == OWN
        await clock.advance(60.0)
    said = [each for each in caplog.records if "own token" in each.getMessage()]
    assert len(said) == 1
    assert OWN not in caplog.text
    worker.status = 201
    assert await shown(badge) == "token-1"


async def test_an_own_token_that_could_read_nothing_is_not_shown() -> None:
    worker, clock = Granting(status=403), VirtualClock()
    badge = badge_of(worker, clock=clock)
    for _ in range(3):
        assert "kubeocean join" in await refused(badge)
    assert len(worker.asked) == 2  # the token, and whether ours would do
    worker.status = 201
    await clock.advance(60.0)
    assert await shown(badge) == "token-1"


@pytest.mark.parametrize("status", [401, 409, 429, 500, 503])
async def test_a_failure_is_no_reason_to_show_the_own_token(status: int) -> None:
    badge = badge_of(Granting(status=status, may_read=True))
    await refused(badge)


@pytest.mark.parametrize("status", [403, 404])
async def test_an_account_that_is_taken_away_is_not_made_up_for(status: int) -> None:
    worker, clock = Granting(may_read=True), VirtualClock()
    badge = badge_of(worker, clock=clock)
    assert await shown(badge) == "token-1"
    worker.status = status
    await clock.advance(600.0)
    await refused(badge)


@pytest.mark.parametrize("status", [403, 404])
async def test_nor_is_it_when_the_own_token_is_another_one_by_then(status: int) -> None:
    worker, source = Granting(may_read=True), Edited(Access("https://w", token=Secret(OWN)))
    badge = badge_of(worker, source)
    assert await shown(badge) == "token-1"
    worker.status = status
    source.edit(Access("https://w", token=Secret("rotated")))
    await refused(badge)


# Other credentials


async def test_a_certificate_is_shown_without_the_secrets_beside_it() -> None:
    worker = Granting()
    badge = badge_of(worker, Edited(CERTIFIED))
    await badge.ensure()
    assert badge.current().headers() == []
    assert badge.current().certificate == b"c"
    assert worker.asked == []


async def test_another_credential_of_the_worker_is_followed_at_once() -> None:
    worker, source = Granting(status=403), Edited(Access("https://w", token=Secret(OWN)))
    badge = badge_of(worker, source)
    await refused(badge)
    worker.status = 201
    source.edit(Access("https://w", token=Secret("another")))
    assert await shown(badge) == "token-1"
    source.edit(CERTIFIED)
    assert await shown(badge) == ""
    worker.status = 503
    source.edit(Access("https://w", token=Secret("third")))
    await refused(badge)  # what was got with another one is not shown any more


async def test_a_password_is_a_secret_too() -> None:
    source = Edited(Access("https://w", username="me", password=Secret("word")))
    badge = badge_of(Granting(), source)
    await badge.ensure()
    assert badge.current().headers() == [("Authorization", "Bearer token-1")]
