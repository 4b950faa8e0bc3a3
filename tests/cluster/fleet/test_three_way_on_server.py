"""Three-way merges on a real API server, compared with `kubectl apply`.

Two equal objects are created: `kubectl apply` changes one, our patch the other. For every last
manifest, desired manifest and object, both results have to be equal. Only the API server runs, so
no controller changes the objects.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

from kubeocean.api.fleet.strategies import ApplyStrategy
from kubeocean.errors import ApiError
from kubeocean.fleet.applier.manifests import Identifier, Manifest, Owner
from kubeocean.fleet.applier.merge_keys import extract, shape_of
from kubeocean.fleet.applier.plan import Create, Keep, ManifestFacts, PatchObject, decide
from kubeocean.fleet.applier.three_way import equal, json_merge, strategic
from kubeocean.local.assets import Assets
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch, StrategicPatch
from kubeocean.runtime.kinds import NAMESPACES
from kubeocean.runtime.objects import Json, Resource, Untyped
from support.examples import draw_many
from support.fleet_manifests import config_maps, deployments, manifests, services
from support.wait import until

NAMESPACE = "three-way"
KUBECTL = "kubectl.kubernetes.io/last-applied-configuration"
BATCHES, PER_BATCH = 40, 250  # ten thousand, if the sweep is thorough
RESOURCES = {
    kind: Resource(group, version, plural, kind, True, Untyped)
    for kind, group, version, plural in (
        ("ConfigMap", "", "v1", "configmaps"),
        ("Service", "", "v1", "services"),
        ("Deployment", "apps", "v1", "deployments"),
        ("Widget", "example.com", "v1", "widgets"),
    )
}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", DEFINITION["kind"], False, Untyped
)


class Case(NamedTuple):
    """Three manifests of one object."""

    last: Json
    desired: Json
    live: Json

    def named(self, name: str) -> Case:
        return Case(*(with_name(each, name) for each in self))


def with_name(body: Json, name: str) -> Json:
    return {**body, "metadata": {**body["metadata"], "name": name, "namespace": NAMESPACE}}


def widgets(case: tuple[Json, Json, Json]) -> tuple[Json, ...]:
    """Return the same content as an object of a kind without a built-in schema."""
    return tuple({**each, "apiVersion": "example.com/v1", "kind": "Widget"} for each in case)


CASES = st.one_of(
    *(st.tuples(kind(), kind(), kind()) for kind in (config_maps, services, deployments)),
    manifests().map(widgets),
).map(lambda case: Case(*case))


@pytest.fixture(scope="module")
async def server(assets: Assets, cluster_roots: Path) -> Any:
    """An API server with a namespace and a custom kind."""
    parts = ("etcd", "kube-apiserver")
    root = cluster_roots / "three-way"
    async with Cluster("three-way", root, assets, components=parts, ephemeral=True) as cluster:
        client = cluster.client()
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await client.create(DEFINITIONS, DEFINITION)
        await until(lambda: serves_widgets(client))
        yield cluster, client
        await client.close()


async def serves_widgets(client: Client) -> bool:
    try:
        await client.list(RESOURCES["Widget"], NAMESPACE)
    except ApiError:
        return False
    return True


async def each_of(items: Iterable[Any], work: Callable[..., Awaitable[Any]]) -> list[Any]:
    """Work on all items, a few at a time."""
    places = asyncio.Semaphore(8)

    async def one(item: Any) -> Any:
        async with places:
            return await work(item)

    return await asyncio.gather(*map(one, items))


async def read(client: Client, body: Json) -> Json:
    name = body["metadata"]["name"]
    stored = await client.get(RESOURCES[body["kind"]], name, NAMESPACE, keep_raw=True)
    return stored.content()


async def kubectl_apply(cluster: Cluster, assets: Assets, bodies: list[Json]) -> None:
    """Apply all of them; those that the server refuses stay as they are."""
    command = await asyncio.create_subprocess_exec(
        str(assets.path("kubectl")),
        f"--kubeconfig={cluster.kubeconfig}",
        "apply",
        "--validate=false",
        "-f",
        "-",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    items = {"apiVersion": "v1", "kind": "List", "items": bodies}
    await command.communicate(json.dumps(items).encode())


def remembering(body: Json, manifest: Json) -> Json:
    """Return the object with the annotation by which kubectl remembers a manifest.

    The text is kubectl's own: another one would be rewritten, and a Deployment whose annotations
    change gets a new generation.
    """
    metadata = {"annotations": {}, **manifest["metadata"]}
    text = json.dumps({**manifest, "metadata": metadata}, sort_keys=True, separators=(",", ":"))
    annotations = {**body["metadata"].get("annotations", {}), KUBECTL: f"{text}\n"}
    return {**body, "metadata": {**body["metadata"], "annotations": annotations}}


IDENTITIES = ("mountPath", "containerPort", "port", "topologyKey", "ip", "name")


def present_in(live: Any, last: Any) -> Any:
    """Return the last manifest without items that the live object does not have.

    Such items have nothing to delete, but kubectl sends the deletions inside a new item, where the
    server takes them for content: a variable that was removed comes back without a value.
    """
    if isinstance(last, dict) and isinstance(live, dict):
        return {name: present_in(live.get(name), value) for name, value in last.items()}
    if isinstance(last, list) and last and isinstance(last[0], dict):
        items = {identity(item): item for item in live or ()}
        return [present_in(items[identity(i)], i) for i in last if identity(i) in items]
    return last


def identity(item: Json) -> Any:
    return next((item[key] for key in IDENTITIES if key in item), item.get("key"))


def patch_for(last: Json, manifest: Json, live: Json) -> StrategicPatch | MergePatch:
    desired = remembering(manifest, manifest)
    shape = shape_of(desired["apiVersion"], desired["kind"])
    if shape is None:
        return MergePatch(json_merge(last, desired, live))
    return StrategicPatch(strategic(last, desired, live, shape))


def compared(obj: Json) -> Json:
    """Return the part in which two objects that were changed alike must agree."""
    own = ("name", "uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink")
    metadata = {name: value for name, value in obj["metadata"].items() if name not in own}
    annotations = dict(metadata.pop("annotations", {}))
    annotations.pop(KUBECTL, None)
    # kubectl sorts the live list for the comparison, and does not restore its order.
    metadata["finalizers"] = sorted(metadata.get("finalizers", ()))
    spec = dict(obj.get("spec") or {})
    for name in ("clusterIP", "clusterIPs"):
        spec.pop(name, None)
    return {**obj, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


def was_applied(obj: Json, desired: Json) -> bool:
    remembered = json.loads(obj["metadata"].get("annotations", {}).get(KUBECTL, "{}"))
    for each in (remembered, desired := json.loads(json.dumps(desired))):
        each["metadata"]["annotations"] = each["metadata"].get("annotations") or {}
    return bool(remembered == desired)


def differences_of(theirs: Any, ours: Any, path: str = "") -> str:
    """Describe the first difference; empty if the two are the same."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        places = sorted(theirs.keys() | ours.keys())
        each = (differences_of(theirs.get(p), ours.get(p), f"{path}/{p}") for p in places)
        return next(filter(None, each), "")
    return "" if equal(theirs, ours) else f"{path}: kubectl made {theirs}, ours is {ours}"


class Outcome(NamedTuple):
    """The number of cases that ended the same, and those that did not."""

    same: int
    wrong: list[tuple[str, Case]]


async def compare(
    cluster: Cluster, client: Client, assets: Assets, seed: int, count: int
) -> Outcome:
    drawn = draw_many(CASES, count, seeded=seed)
    cases = [Case(present_in(live, last), desired, live) for last, desired, live in drawn]
    theirs = [case.named(f"kubectl-{seed}-{n}") for n, case in enumerate(cases)]
    ours = [case.named(f"ours-{seed}-{n}") for n, case in enumerate(cases)]

    async def create_remembering(case: Case) -> None:
        await client.create(RESOURCES[case.live["kind"]], remembering(case.live, case.last))

    async def create_and_patch(case: Case) -> str:
        resource, name = RESOURCES[case.live["kind"]], case.live["metadata"]["name"]
        await client.create(resource, remembering(case.live, case.last))
        patch = patch_for(case.last, case.desired, await read(client, case.live))
        if not patch.body:
            return ""
        try:
            await client.patch(resource, name, patch, NAMESPACE)
        except ApiError as error:
            return str(error)
        return ""

    async def change_nothing(case: Case) -> bool:
        """Whether a second pass changes nothing; a patch of fields that the server drops may be
        left, and has no effect."""
        before = await read(client, case.live)
        patch = patch_for(case.desired, case.desired, before)
        if patch.body:
            name = case.live["metadata"]["name"]
            await client.patch(RESOURCES[case.live["kind"]], name, patch, NAMESPACE)
        after = await read(client, case.live)
        return bool(before["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"])

    await each_of(theirs, create_remembering)
    errors = await each_of(ours, create_and_patch)
    await kubectl_apply(cluster, assets, [case.desired for case in theirs])
    expected = await each_of(theirs, lambda case: read(client, case.live))
    outcomes = await each_of(ours, lambda case: read(client, case.live))
    quiet = await each_of(
        (case for case, error in zip(ours, errors, strict=True) if not error), change_nothing
    )
    assert all(quiet), [case for case, is_quiet in zip(ours, quiet, strict=False) if not is_quiet]
    same = 0
    wrong: list[tuple[str, Case]] = []
    for case, error, theirs_after, ours_after in zip(
        theirs, errors, expected, outcomes, strict=True
    ):
        if not was_applied(theirs_after, case.desired):
            continue  # the merged object is not valid, or kubectl sent directives inside new items
        if error:
            wrong.append((error, case))
        elif details := differences_of(compared(theirs_after), compared(ours_after)):
            wrong.append((details, case))
        else:
            same += 1
    return Outcome(same, wrong)


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(BATCHES))
async def test_objects_end_as_kubectl_makes_them(
    server: tuple[Cluster, Client], assets: Assets, pytestconfig: pytest.Config, n: int
) -> None:
    count = PER_BATCH if pytestconfig.getoption("--thorough") else 10
    outcome = await compare(*server, assets, n, count)
    assert not outcome.wrong, outcome.wrong
    assert outcome.same > count / 2, "too few were accepted to compare anything"


async def test_a_created_object_is_left_alone(server: tuple[Cluster, Client]) -> None:
    """Neither the create nor a later pass may make a generation that the hub did not ask for."""
    _, client = server
    owner = Owner("work", "4a1ab4ce-0000-4000-8000-000000000000")

    async def place(numbered: tuple[int, Case]) -> None:
        number, case = numbered
        body = with_name(case.desired, f"placed-{number}")
        group, _, version = body["apiVersion"].rpartition("/")
        name = body["metadata"]["name"]
        identifier = Identifier(0, group, version, body["kind"], "", NAMESPACE, name)
        facts = ManifestFacts(Manifest(identifier, body), None, owner, ApplyStrategy(), {"work"})
        step = decide(facts)
        assert isinstance(step, Create)
        await client.create(RESOURCES[body["kind"]], step.body)
        created = await read(client, body)
        step = decide(ManifestFacts(facts.manifest, created, owner, ApplyStrategy(), {"work"}))
        if isinstance(step, PatchObject):
            await client.patch(RESOURCES[body["kind"]], name, step.patch, NAMESPACE)
        else:
            assert step == Keep()
        after = await read(client, body)
        assert after["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
        assert after["metadata"].get("generation", 1) == 1

    await each_of(enumerate(draw_many(CASES, 40, seeded=7)), place)


def dns(*ports: tuple[str, str, int]) -> Json:
    listed = [
        {"name": name, "protocol": protocol, "port": 53, "targetPort": target}
        for name, protocol, target in ports
    ]
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {}, "spec": {"ports": listed}}
    return with_name(body, "dns")


async def test_ports_that_share_a_number_end_as_desired(server: tuple[Cluster, Client]) -> None:
    _, client = server
    first = dns(("udp", "UDP", 53), ("tcp", "TCP", 53))
    await client.create(RESOURCES["Service"], first)
    last = first
    for desired in (
        dns(("udp", "UDP", 53), ("tcp", "TCP", 5353)),
        dns(("tcp", "TCP", 53), ("udp", "UDP", 5353)),
        dns(("tcp", "TCP", 53)),
        dns(("tcp", "TCP", 53), ("udp", "UDP", 53), ("sctp", "SCTP", 53)),
    ):
        patch = patch_for(last, desired, await read(client, desired))
        await client.patch(RESOURCES["Service"], "dns", patch, NAMESPACE)
        service = await read(client, desired)
        assert service["spec"]["ports"] == desired["spec"]["ports"]
        assert patch_for(desired, desired, service).body == {}
        last = desired


async def test_the_table_of_merge_keys_is_that_of_the_server(
    server: tuple[Cluster, Client],
) -> None:
    _, client = server
    index = await client.request_json("GET", "/openapi/v3")
    documents = []
    for path, entry in index["paths"].items():
        if path.startswith(("api/", "apis/")):
            url, _, query = entry["serverRelativeURL"].partition("?")
            hash_ = [tuple(part.split("=", 1)) for part in query.split("&")]
            documents.append(await client.request_json("GET", url, query=hash_))
    served = extract(documents)
    assert {"v1/Pod", "apps/v1/Deployment"} <= served["kinds"].keys()
    assert "example.com/v1/Widget" not in served["kinds"]
    for kind, type_ in served["kinds"].items():
        shape = shape_of(*kind.rsplit("/", 1))
        assert shape is not None, f"{kind} is not in merge_keys.json; run scripts/merge-keys"
        assert shape.fields == served["types"][type_]
        assert {**shape.types, **served["types"]} == shape.types
