"""Quantities: thousands of texts have the same value for a real API server and for us."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import strategies as st

from kubeocean.errors import BadRequest, ConfigError, NotFound
from kubeocean.leasing.requests import COUNTED_PODS, requests_of
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import PODS, Untyped
from kubeocean.runtime.objects import Json, Resource
from kubeocean.runtime.quantity import Format, Quantity
from support.examples import draw_many
from support.pod_env import make_namespace
from support.quantity_strategies import SCALES, Written, quantities, stored_quantities

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PER_DEVICE, PER_SLICE = 32, 32 * 128  # the limits of a ResourceSlice
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", True, Untyped)
COUNT = 600
PODS_DRAWN = 40
LARGEST_EXPONENT = 20_000  # a server computes the whole number
LAST_SUFFIX = SCALES["E"] * 1000  # from here on a server forgets the suffix (`1000E` becomes `1`)

CORNERS: list[str | int | float] = [
    *(f"{sign}{number}{suffix}" for sign in "+-" for number in ("0", "1.500") for suffix in SCALES),
    *(f"{number}{s}" for number in (7, 8, 999, 1023, 1024, 2**62) for s in SCALES),
    *(f"{number}{suffix}" for number in (1000, 3000) for suffix in SCALES if suffix != "E"),
    *("01", "1.", ".5", "1e3", "1E3", "1e+3", "100e-3", "2.9296875Ki", "1.0001Ki", "0.1n", "1e-12"),
    *(9223372036854775807, "9223372036854775808", "9223372036854775808Ki", 0.5, 1e22, -2, " 1Gi "),
]


def slice_of(values: Sequence[str | int | float]) -> Json:
    """Return an object that can store quantities of any size and sign."""
    capacity = [{"value": value} for value in values]
    chunks = [capacity[at : at + PER_DEVICE] for at in range(0, len(capacity), PER_DEVICE)]
    return {
        "metadata": {"name": f"quantities-{uuid.uuid4().hex[:10]}"},
        "spec": {
            "driver": "quantities.example.com",
            "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
            "allNodes": True,
            "devices": [
                {"name": f"d{n}", "capacity": {f"r{i}": each for i, each in enumerate(chunk)}}
                for n, chunk in enumerate(chunks)
            ],
        },
    }


@pytest.fixture
async def served(client: Client) -> AsyncIterator[Client]:
    """The client, if its server has ResourceSlices; leaves none behind."""
    try:
        await client.request("GET", SLICES)
    except NotFound:
        pytest.skip("the API server is older than resource.k8s.io/v1 (Kubernetes 1.34)")
    yield client
    await client.request(
        "DELETE", SLICES, query=[("fieldSelector", "spec.driver=quantities.example.com")]
    )


async def stored(client: Client, values: Sequence[str | int | float]) -> list[str]:
    answer = await client.request_json("POST", SLICES, body=slice_of(values))
    return [
        device["capacity"][f"r{n}"]["value"]
        for device in answer["spec"]["devices"]
        for n in range(len(device["capacity"]))
    ]


def written_to_storage(quantity: Quantity) -> str:
    """Return the text that a server stores: it prints the quantity, parses and prints it again."""
    return str(Quantity.parse(str(quantity)))


async def test_a_server_prints_every_quantity_as_we_do(served: Client) -> None:
    drawn = [w.text for w in draw_many(quantities(), COUNT) if abs(w.exact) < LAST_SUFFIX]
    values = [*CORNERS, *drawn][:PER_SLICE]
    assert len(values) > COUNT / 2
    printed = await stored(served, values)
    expected = [written_to_storage(Quantity.parse(value)) for value in values]
    differences = [d for d in zip(values, printed, expected, strict=True) if d[1] != d[2]]
    assert not differences


async def test_what_we_print_a_server_leaves_alone(served: Client) -> None:
    drawn = [w.text for w in draw_many(quantities(), COUNT, seeded=2) if abs(w.exact) < LAST_SUFFIX]
    ours = [written_to_storage(Quantity.parse(text)) for text in drawn]
    assert await stored(served, ours) == ours


@pytest.mark.parametrize(
    "text", ["", " ", "1K", "1ki", "1i", "1mi", "1 Gi", "1e", "1e+", "1e1.5", "1.1.1", "--1", "0x1"]
)
async def test_what_we_refuse_a_server_refuses(served: Client, text: str) -> None:
    with pytest.raises(ConfigError):
        Quantity.parse(text)
    with pytest.raises(BadRequest):
        await stored(served, [text])


async def test_lists_of_resources_are_rounded_up_to_millis(client: Client, namespace: str) -> None:
    """Nodes, pods, quotas and limits never hold less than a milli of anything."""

    def rounded(written: Written) -> str:
        quantity = Quantity.parse(written.text)
        if Quantity.milli(quantity.milli_value()) != quantity:
            quantity = Quantity.milli(quantity.milli_value(), quantity.format)
        return written_to_storage(quantity)

    drawn = [w for w in draw_many(quantities(), 500, seeded=3) if abs(w.exact) < LAST_SUFFIX]
    names = [f"example.com/r{n}" for n in range(len(drawn))]
    limit = {"type": "Container", "max": {n: w.text for n, w in zip(names, drawn, strict=True)}}
    answer = await client.request_json(
        "POST",
        f"/api/v1/namespaces/{namespace}/limitranges",
        body={"metadata": {"name": "quantities"}, "spec": {"limits": [limit]}},
    )
    printed = answer["spec"]["limits"][0]["max"]
    assert {n: printed[n] for n in names} == {
        n: rounded(w) for n, w in zip(names, drawn, strict=True)
    }


def pod_requesting(name: str, amounts: Sequence[str]) -> Json:
    """Return a pod whose container and init container request these amounts of CPU and memory."""
    one, two = (
        {"requests": dict(zip(("cpu", "memory"), pair, strict=True))}
        for pair in (amounts[:2], amounts[2:])
    )
    return {
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "c", "image": "none", "resources": one}],
            "initContainers": [{"name": "i", "image": "none", "resources": two}],
            "automountServiceAccountToken": False,
        },
    }


def amounts_in(pod: Json) -> list[str]:
    spec = pod["spec"]
    requests = [spec[key][0]["resources"]["requests"] for key in ("containers", "initContainers")]
    return [each[resource] for each in requests for resource in ("cpu", "memory")]


async def test_any_request_that_a_server_stores_is_counted_as_a_quota_counts_it(
    client: Client, namespace: str
) -> None:
    """The API server itself adds the requests of new pods to the status of a ResourceQuota."""
    await make_namespace(client, namespace)
    none = {"requests.cpu": "0", "requests.memory": "0"}
    status = {"status": {"hard": dict.fromkeys(none, f"1e{2 * LARGEST_EXPONENT}"), "used": none}}
    body = {"metadata": {"name": "counting"}, "spec": {"hard": status["status"]["hard"]}}
    await client.create(QUOTAS, body, namespace=namespace)
    one = stored_quantities(largest_exponent=LARGEST_EXPONENT)
    corners = [tuple(each for _ in range(4)) for each in ("0", "1e5000", "1e-5000", "1000E", "8Ei")]
    drawn = [*corners, *draw_many(st.tuples(one, one, one, one), PODS_DRAWN, seeded=4)]
    differences, created = [], 0
    for n, written in enumerate(drawn):
        pod = pod_requesting(f"p{n}", [text.removeprefix("-") for text in written])
        tried = await client.create(PODS, pod, namespace=namespace, dry_run=True, keep_raw=True)
        # A server may print another amount than it was given, and then keeps to what it printed.
        pod = pod_requesting(f"p{n}", amounts_in(tried.content()))
        await client.patch(QUOTAS, "counting", MergePatch(status), namespace, subresource="status")
        await client.create(PODS, pod, namespace=namespace)
        created += 1
        counted = requests_of(await client.get(COUNTED_PODS, f"p{n}", namespace))
        quota = await client.get(QUOTAS, "counting", namespace, keep_raw=True)
        used = quota.content()["status"]["used"]
        for resource in ("cpu", "memory"):
            ours = counted.get(resource, Quantity.whole(0)).nano
            if ours != Quantity.stored(used[f"requests.{resource}"]).nano:
                differences.append((written, resource, used, str(counted.get(resource))))
    assert not differences
    assert created > PODS_DRAWN


def test_the_corners_have_every_format() -> None:
    assert {Quantity.parse(value).format for value in CORNERS} == set(Format)
