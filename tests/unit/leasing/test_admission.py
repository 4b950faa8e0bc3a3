"""Which pods fit their node, and what is said of those that do not."""

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
    found = shortage(amounts(cpu="501m", pods="1"), used=used, capacity=NODE)
    assert found is not None
    assert found.reason == "OutOfcpu"
    assert found.message == (
        "Node didn't have enough resource: cpu, requested: 501, used: 1500, capacity: 2000"
    )


def test_all_but_cpus_are_told_in_whole_units() -> None:
    found = shortage(amounts(memory="2Gi"), used=amounts(memory="1Mi"), capacity=NODE)
    assert found is not None
    assert found.reason == "OutOfmemory"
    assert "requested: 2147483648, used: 1048576, capacity: 1073741824" in found.message
    found = shortage(amounts(pods="1"), used=amounts(pods="3"), capacity=NODE)
    assert found is not None
    assert (found.reason, found.requested) == ("OutOfpods", Quantity.whole(1))


def test_what_a_pod_does_not_ask_for_does_not_keep_it_out() -> None:
    crowded = amounts(cpu="8", pods="1")
    assert shortage(amounts(memory="1Mi", pods="1"), used=crowded, capacity=NODE) is None
    assert shortage(amounts(cpu="0", pods="1"), used=crowded, capacity=NODE) is None


def test_what_a_node_does_not_manage_keeps_nobody_out() -> None:
    gpu = {"example.com/gpu": Quantity.whole(4)}
    assert shortage(gpu, used={}, capacity=NODE) is None
    found = shortage(gpu, used={}, capacity={"example.com/gpu": Quantity.whole(1)})
    assert found is not None
    assert found.reason == "OutOfexample.com/gpu"
    assert shortage(amounts(cpu="100"), used={}, capacity={}) is None


def test_who_comes_first_gets_in_and_a_smaller_one_after_a_larger() -> None:
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
def test_what_is_let_in_never_exceeds_the_node(
    asked: list[Quantity], used: Quantity, there: Quantity
) -> None:
    capacity = {"cpu": there}
    waiting = [(i, {"cpu": amount}) for i, amount in enumerate(asked)]
    short = admit(waiting, used={"cpu": used}, capacity=capacity)
    taken = used
    for i, amount in enumerate(asked):
        fits = not amount or taken + amount <= there
        assert (i not in short) == fits
        taken = taken + amount if fits else taken
    assert taken <= max(there, used)
