"""Admission of pods by the resources of a node, and the messages of shortages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubeocean.leasing.admission import admit, shortage
from kubeocean.leasing.amounts import Amounts
from kubeocean.runtime.quantity import Quantity


def amounts(**given: str) -> Amounts:
    return {name.replace("_", "-"): Quantity.parse(amount) for name, amount in given.items()}


NODE = amounts(cpu="2", memory="1Gi", pods="3")


def test_a_pod_fits_up_to_the_last_bit() -> None:
    used = amounts(cpu="1500m", pods="1")
    assert shortage(amounts(cpu="500m", pods="1"), used=used, capacity=NODE) is None
    missing = shortage(amounts(cpu="501m", pods="1"), used=used, capacity=NODE)
    assert missing is not None
    assert missing.reason == "OutOfcpu"
    assert missing.message == (
        "Node didn't have enough resource: cpu, requested: 501, used: 1500, capacity: 2000"
    )


def test_a_shortage_of_anything_but_cpu_is_reported_in_whole_units() -> None:
    missing = shortage(amounts(memory="2Gi"), used=amounts(memory="1Mi"), capacity=NODE)
    assert missing is not None
    assert missing.reason == "OutOfmemory"
    assert "requested: 2147483648, used: 1048576, capacity: 1073741824" in missing.message
    missing = shortage(amounts(pods="1"), used=amounts(pods="3"), capacity=NODE)
    assert missing is not None
    assert (missing.reason, missing.requested) == ("OutOfpods", Quantity.whole(1))


def test_a_resource_that_a_pod_does_not_request_is_not_checked() -> None:
    crowded = amounts(cpu="8", pods="1")
    assert shortage(amounts(memory="1Mi", pods="1"), used=crowded, capacity=NODE) is None
    assert shortage(amounts(cpu="0", pods="1"), used=crowded, capacity=NODE) is None


def test_a_resource_that_the_node_does_not_have_is_not_checked() -> None:
    gpu = {"example.com/gpu": Quantity.whole(4)}
    assert shortage(gpu, used={}, capacity=NODE) is None
    missing = shortage(gpu, used={}, capacity={"example.com/gpu": Quantity.whole(1)})
    assert missing is not None
    assert missing.reason == "OutOfexample.com/gpu"
    assert shortage(amounts(cpu="100"), used={}, capacity={}) is None


def test_pods_are_admitted_in_order_and_a_smaller_one_may_follow_a_larger() -> None:
    waiting = [
        ("a", amounts(cpu="1")),
        ("b", amounts(cpu="1500m")),
        ("c", amounts(cpu="1")),
        ("d", amounts(cpu="1m")),
    ]
    short = admit(waiting, used={}, capacity=NODE)
    assert short.keys() == {"b", "d"}
    assert short["d"].used == Quantity.whole(2)


cpus = st.integers(0, 4000).map(Quantity.milli)


@given(st.lists(cpus, max_size=8), cpus, cpus)
def test_admitted_pods_never_exceed_the_node(
    requested: list[Quantity], used: Quantity, total: Quantity
) -> None:
    capacity = {"cpu": total}
    waiting = [(i, {"cpu": amount}) for i, amount in enumerate(requested)]
    short = admit(waiting, used={"cpu": used}, capacity=capacity)
    taken = used
    for i, amount in enumerate(requested):
        fits = not amount or taken + amount <= total
        assert (i not in short) == fits
        taken = taken + amount if fits else taken
    assert taken <= max(total, used)
