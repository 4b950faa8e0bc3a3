"""Who asks, how often, and what is remembered of them."""

from __future__ import annotations

from kubeocean.proxier.callers import Caller, from_certificate
from kubeocean.proxier.paces import Paces
from kubeocean.proxier.remembered import Remembered
from kubeocean.runtime.clock import VirtualClock


def test_a_certificate_names_user_and_groups() -> None:
    certificate = {
        "subject": (
            (("organizationName", "system:masters"),),
            (("organizationName", "others"),),
            (("commonName", "kube-apiserver"),),
        )
    }
    assert from_certificate(certificate) == Caller(
        "kube-apiserver", ("system:masters", "others", "system:authenticated")
    )


def test_a_certificate_without_one_name_is_nobody() -> None:
    assert from_certificate(None) is None
    assert from_certificate({}) is None
    assert from_certificate({"subject": ((("organizationName", "x"),),)}) is None
    twice = {"subject": ((("commonName", "a"),), (("commonName", "b"),))}
    assert from_certificate(twice) is None


async def test_an_answer_is_remembered_for_its_time_and_number() -> None:
    clock = VirtualClock()
    remembered: Remembered[str, int] = Remembered(2, clock=clock)
    remembered.put("a", 1, 5.0)
    remembered.put("b", 2, 50.0)
    assert (remembered.get("a"), remembered.get("b"), remembered.get("c")) == (1, 2, None)
    await clock.advance(5.0)
    assert (remembered.get("a"), remembered.get("b")) == (None, 2)
    remembered.put("c", 3, 50.0)
    remembered.put("d", 4, 50.0)
    assert (remembered.get("b"), remembered.get("c"), remembered.get("d")) == (None, 3, 4)
    assert len(remembered) == 2


async def test_one_caller_does_not_use_up_what_is_anothers() -> None:
    clock = VirtualClock()
    paces = Paces(rate=1.0, burst=2.0, clock=clock)
    greedy, modest = "greedy", "modest"
    assert [paces.allows(greedy) for _ in range(3)] == [True, True, False]
    assert paces.allows(modest)
    await clock.advance(1.0)
    assert [paces.allows(greedy) for _ in range(2)] == [True, False]


async def test_one_part_does_not_use_up_what_is_its_callers() -> None:
    clock = VirtualClock()
    paces = Paces(rate=2.0, burst=8.0, clock=clock)
    assert [paces.allows("server", "greedy") for _ in range(5)] == [True] * 4 + [False]
    # What was refused took nothing from the others.
    assert [paces.allows("server", "modest") for _ in range(4)] == [True] * 4
    assert not paces.allows("server", "third")
    assert paces.allows("somebody", "greedy")
    await clock.advance(1.0)
    assert [paces.allows("server", "greedy") for _ in range(2)] == [True, False]
    assert paces.allows("server")
