"""Definitions on a real API server: objects that it accepts, and refusals with their messages."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from conftest import NewCluster
from kubeocean.api import bindings, policies
from kubeocean.api.bindings import CLUSTER_BINDINGS, BindingSpec
from kubeocean.api.conditions import BINDING_READY, CONNECTION_PASSED, POLICY_ACTIVE, POLICY_VALID
from kubeocean.api.crds import definitions
from kubeocean.api.group import API_VERSION
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES, PolicySpec
from kubeocean.api.validation import blocking
from kubeocean.errors import Conflict, Invalid
from kubeocean.runtime.client import ApplyPatch, Client, MergePatch
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kubeocean.runtime.objects import Condition, Json, Object, Resource, set_condition
from support.crds import install_our_kinds
from support.wait import until

NOW = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="module")
async def server(client: Client) -> Client:
    """The shared server, with our kinds."""
    await install_our_kinds(client)
    return client


def body(resource: Resource[Any], spec: object, name: str = "") -> Json:
    return {
        "apiVersion": API_VERSION,
        "kind": resource.kind,
        "metadata": {"name": name or f"t-{uuid.uuid4().hex[:10]}"},
        "spec": spec,
    }


def a_policy(**spec: object) -> Json:
    return {"cluster": "worker-1"} | spec


def a_window(start: object = "08:00", end: object = "18:00", *days: object) -> Json:
    return a_policy(timeWindows=[{"start": start, "end": end, "days": list(days)}])


def a_limit(**limit: object) -> Json:
    return a_policy(resourceLimits=[{"resource": "cpu"} | limit])


def a_term(kind: str, key: str, operator: str, *values: str) -> Json:
    return {
        "nodeSelectorTerms": [{kind: [{"key": key, "operator": operator, "values": list(values)}]}]
    }


def a_binding(**spec: object) -> Json:
    return {"clusterID": "c1", "secretRef": {"name": "a", "namespace": "b"}} | spec


SELECTORS = (
    {"nodeSelectorTerms": []},
    {"nodeSelectorTerms": [{}]},
    {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]},
    a_term("matchExpressions", "pool", "In", "idle", "spare"),
    a_term("matchExpressions", "example.com/pool", "NotIn", "busy", ""),
    a_term("matchExpressions", "a", "DoesNotExist"),
    a_term("matchExpressions", "cores", "Gt", "0"),
    a_term("matchExpressions", "cores", "Lt", "64"),
    a_term("matchFields", "metadata.name", "In", "node-1"),
    a_term("matchFields", "metadata.name", "NotIn", "node-1.example.com"),
)


@pytest.mark.parametrize(
    "spec",
    [
        a_policy(),
        *(a_policy(nodeSelector=each) for each in SELECTORS),
        a_policy(timeWindows=[]),
        a_policy(timeWindows=[{"start": "00:00", "end": "23:59"}]),
        a_window("18:00", "08:00", "Friday"),
        a_window("09:05", "09:05", "monday", "TUESDAY", "Wednesday"),
        a_window("08:00", "18:00", *("Sunday",) * 20),
        a_policy(timeWindows=[{"start": "08:00", "end": "09:00"}] * 200),
        *(a_policy(timeZone=zone) for zone in ("", "UTC", "Europe/Berlin", "US/Pacific", "PRC")),
        a_policy(timeZone="America/Argentina/ComodRivadavia"),
        a_limit(),
        a_limit(percent=1),
        a_limit(percent=100, quantity="500m"),
        *(a_limit(quantity=each) for each in (0, 4, "0", "4", "+1", "1.5Gi", ".5", "5.", "1e3")),
        *(a_limit(quantity=each) for each in ("2E-3", "100n", "3u", "1k", "9Ei", "12345678901234")),
        a_policy(resourceLimits=[{"resource": "cpu", "percent": 50}] * 2),
        a_policy(resourceLimits=[{"resource": f"example.com/r{n}"} for n in range(400)]),
        a_policy(forceReclaim=True, gracefulReclaimPeriodSeconds=0),
        a_policy(forceReclaim=False, gracefulReclaimPeriodSeconds=2**31 - 1),
        a_policy(forceReclaimDeadlineSeconds=0, maxEvictionsPerMinute=1, coolDownSeconds=0),
    ],
)
async def test_a_server_takes_what_the_contract_calls_valid(server: Client, spec: Json) -> None:
    created = await server.create(RESOURCE_LEASING_POLICIES, body(RESOURCE_LEASING_POLICIES, spec))
    assert msgspec.to_builtins(created.spec) == msgspec.to_builtins(
        msgspec.convert(spec, PolicySpec)
    )
    assert blocking(policies.problems(created.spec)) == ()


TIME = "must be a time of day as HH:MM, from 00:00 to 23:59, not "
DAY = "must be a day of the week in English, such as Monday, not "
ZONE = "must be an IANA time zone such as Europe/Berlin, Asia/Shanghai or UTC, not "
FIELD = "the only field that nodes are selected by is metadata.name, In or NotIn one value"

# Refused specs, the field, and the message. All are problems in our own validation, too.
REFUSED: tuple[tuple[Json, str, str], ...] = (
    (a_policy(cluster=""), "spec.cluster", "should be at least 1 chars long"),
    *(
        (a_window(time), "spec.timeWindows[0].start", f'{TIME}"{time}"')
        for time in ("", "9:00", "24:00", "12:60", "08.00", "08:00:00", "8pm", " 08:00")
    ),
    (a_window("08:00\n"), "spec.timeWindows[0].start", "must be a time of day as HH:MM"),
    (a_window("08:00", "25:00"), "spec.timeWindows[0].end", f'{TIME}"25:00"'),
    *(
        (a_window("08:00", "18:00", "Monday", day), "spec.timeWindows[0].days[1]", f'{DAY}"{day}"')
        for day in ("", "Mon", "Montag", "Monday ", "weekdays", "1")
    ),
    (a_limit(percent=0), "spec.resourceLimits[0].percent", "greater than or equal to 1"),
    (a_limit(percent=-50), "spec.resourceLimits[0].percent", "greater than or equal to 1"),
    (a_limit(percent=101), "spec.resourceLimits[0].percent", "less than or equal to 100"),
    (a_limit(quantity="-1"), "spec.resourceLimits[0].quantity", 'must be zero or more, not "-1"'),
    (a_limit(quantity=-1), "spec.resourceLimits[0].quantity", 'must be zero or more, not "-1"'),
    *(
        (
            a_limit(quantity=each),
            "spec.resourceLimits[0].quantity",
            f'must be a quantity such as 500m, 2 or 1.5Gi, not "{each}"',
        )
        for each in ("", "5x", "4 cores", "1GiB", "1e3.5", "0x10")
    ),
    (a_limit(resource=""), "spec.resourceLimits[0].resource", "at least 1 chars long"),
    (
        a_policy(gracefulReclaimPeriodSeconds=-1),
        "spec.gracefulReclaimPeriodSeconds",
        "greater than or equal to 0",
    ),
    *(
        (a_policy(timeZone=zone), "spec.timeZone", f'{ZONE}"{zone}"')
        for zone in ("Europa/Berlin", "europe/berlin", "CEST", "+02:00", "Local", "Europe")
    ),
    (
        a_policy(forceReclaimDeadlineSeconds=-1),
        "spec.forceReclaimDeadlineSeconds",
        "greater than or equal to 0",
    ),
    (a_policy(maxEvictionsPerMinute=0), "spec.maxEvictionsPerMinute", "greater than or equal to 1"),
    (a_policy(coolDownSeconds=-1), "spec.coolDownSeconds", "greater than or equal to 0"),
    *(
        (a_policy(nodeSelector=a_term(kind, key, operator, *values)), where, text)
        for where, kind, key, operator, values, text in (
            ("[0].operator", "matchExpressions", "a", "in", ("x",), 'supported values: "In"'),
            ("[0]", "matchExpressions", "a", "In", (), "In and NotIn need at least one value"),
            ("[0]", "matchExpressions", "a", "Exists", ("x",), "take no values"),
            ("[0]", "matchExpressions", "a", "Gt", ("1.5",), "take one value, a whole number"),
            ("[0].values[0]", "matchExpressions", "a", "In", ("pool a",), "should match"),
            ("[0]", "matchExpressions", "a", "Lt", ("1", "2"), "take one value, a whole number"),
            ("[0]", "matchFields", "spec.podCIDR", "In", ("x",), FIELD),
            ("[0]", "matchFields", "metadata.name", "In", ("x", "y"), FIELD),
            ("[0]", "matchFields", "metadata.name", "Exists", (), FIELD),
        )
    ),
)


@pytest.mark.parametrize(("spec", "where", "text"), REFUSED)
async def test_a_server_refuses_what_can_only_be_a_mistake(
    server: Client, spec: Json, where: str, text: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await server.create(RESOURCE_LEASING_POLICIES, body(RESOURCE_LEASING_POLICIES, spec))
    causes = [each for each in refused.value.causes if each.field and each.field != "<nil>"]
    assert [text in each.message for each in causes] == [True], causes
    assert causes[0].field.endswith(where)
    actual = policies.problems(msgspec.convert(spec, PolicySpec))
    assert actual, "a server minds it, and we do not"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({}, "spec.cluster: Required value"),
        (a_policy(timeWindows=[{"start": "08:00"}]), "spec.timeWindows[0].end: Required value"),
        (a_policy(nodeSelector={}), "spec.nodeSelector.nodeSelectorTerms: Required value"),
        (a_limit(percent="50"), "must be of type integer"),
        (a_limit(percent=0.5), "must be of type integer"),
        (a_limit(quantity=1.5), "must be of type integer"),
        (a_policy(forceReclaim="yes"), "must be of type boolean"),
        (a_window(800), "must be of type string"),
        (a_policy(timeWindows=[{"start": "08:00", "end": "09:00"}] * 257), "at most 256 items"),
    ],
)
async def test_a_server_refuses_what_is_not_a_policy(server: Client, spec: Json, text: str) -> None:
    with pytest.raises(Invalid, match="is invalid") as refused:
        await server.create(RESOURCE_LEASING_POLICIES, body(RESOURCE_LEASING_POLICIES, spec))
    assert text in str(refused.value)


# Bindings


@pytest.mark.parametrize(
    "spec",
    [
        a_binding(),
        a_binding(clusterID="0"),
        a_binding(clusterID="x" * 24, mountNamespace="kubeocean-worker", directScheduling=True),
        a_binding(serviceNamespaces=["a", ""], podPriorityClassName="", mountNamespace=""),
        a_binding(disableNodeDefaultTaint=True, runningDaemonsetByDefault=False),
        a_binding(podPrivileges={"hostNetwork": "Deny", "hostPID": "Allow"}),
        a_binding(podPrivileges={}),
        a_binding(workerTrust="Full"),
        *(a_binding(nodeSelector=each) for each in SELECTORS),
    ],
)
async def test_a_server_takes_bindings_as_it_always_did(server: Client, spec: Json) -> None:
    created = await server.create(CLUSTER_BINDINGS, body(CLUSTER_BINDINGS, spec))
    assert msgspec.to_builtins(created.spec) == msgspec.to_builtins(
        msgspec.convert(spec, BindingSpec)
    )


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"secretRef": {}}, "spec.clusterID: Required value"),
        ({"clusterID": "c1"}, "spec.secretRef: Required value"),
        *(
            (a_binding(secretRef=each), "must have the name and the namespace of the Secret")
            for each in ({}, {"name": "a"}, {"namespace": "b"}, {"name": "", "namespace": "b"})
        ),
        (a_binding(clusterID="x" * 25), "spec.clusterID: Too long: may not be more than 24"),
        *((a_binding(clusterID=id_), "spec.clusterID") for id_ in ("", "-a", "a-", "A", "a.b")),
        (a_binding(nodeSelector=a_term("matchFields", "x", "In", "y")), FIELD),
        (a_binding(nodeSelector=a_term("matchExpressions", "a", "In", "a b")), "should match"),
        (
            a_binding(podPrivileges={"hostPath": "deny"}),
            'spec.podPrivileges.hostPath: Unsupported value: "deny": supported values: "Allow",',
        ),
        (
            a_binding(workerTrust="full"),
            'spec.workerTrust: Unsupported value: "full": supported values: "Kubelet", "Full"',
        ),
    ],
)
async def test_a_server_refuses_bindings_that_cannot_work(
    server: Client, spec: Json, text: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await server.create(CLUSTER_BINDINGS, body(CLUSTER_BINDINGS, spec))
    assert text in str(refused.value)
    assert bindings.problems(msgspec.convert(spec, BindingSpec))


async def test_a_cluster_id_never_changes(server: Client) -> None:
    made = await server.create(CLUSTER_BINDINGS, body(CLUSTER_BINDINGS, a_binding()))

    async def change(patch: Json) -> None:
        await server.patch(CLUSTER_BINDINGS, made.name, MergePatch(patch))

    text = (
        "spec.clusterID: Forbidden: cannot be changed, because virtual nodes are named after it;"
        " delete the binding and create another"
    )
    for patch in ({"spec": {"clusterID": "c2"}}, {"spec": None}):
        with pytest.raises(Invalid) as refused:
            await change(patch)
        assert text in str(refused.value)
    await change({"spec": {"mountNamespace": "elsewhere", "clusterID": "c1"}})
    after = await server.get(CLUSTER_BINDINGS, made.name)
    assert (after.spec.cluster_id, after.spec.mount_namespace) == ("c1", "elsewhere")


async def test_where_pods_run_is_said_once(server: Client) -> None:
    unset = a_binding(mountNamespace="")
    made = await server.create(CLUSTER_BINDINGS, body(CLUSTER_BINDINGS, unset))

    async def change(namespace: str | None) -> None:
        patch = MergePatch({"spec": {"mountNamespace": namespace}})
        await server.patch(CLUSTER_BINDINGS, made.name, patch)

    await change(None)
    await change("first")
    await change("first")
    for namespace in ("second", "", None):
        with pytest.raises(Invalid) as refused:
            await change(namespace)
        assert (
            "spec.mountNamespace: Forbidden: cannot be changed, because pods run there that would"
            " be left behind; delete the binding and create another"
        ) in str(refused.value)


# Our objects on API servers


@pytest.mark.parametrize(
    ("resource", "spec"),
    [(CLUSTER_BINDINGS, a_binding()), (RESOURCE_LEASING_POLICIES, a_policy())],
    ids=str,
)
async def test_status_is_written_on_its_own(
    server: Client, resource: Resource[Any], spec: Json
) -> None:
    given = body(resource, spec) | {"status": {"phase": "Failed"}}
    made = await server.create(resource, given)
    assert made.status.phase == ""

    condition = {"type": "Ready", "status": "True", "reason": "Fine", "message": ""}
    status = {"phase": "Ready", "conditions": [condition | {"lastTransitionTime": NOW}]}
    both = MergePatch({"spec": {"nodeSelector": {"nodeSelectorTerms": []}}, "status": status})
    after = await server.patch(resource, made.name, both, subresource="status")
    assert (after.status.phase, after.spec.node_selector) == ("Ready", None)
    assert after.metadata.generation == made.metadata.generation

    after = await server.patch(resource, made.name, both)
    assert after.spec.node_selector == {"nodeSelectorTerms": []}
    assert after.metadata.generation == made.metadata.generation + 1


async def test_nothing_is_filled_in_and_what_is_unknown_is_dropped(server: Client) -> None:
    given = body(RESOURCE_LEASING_POLICIES, a_policy(somethingElse=1, timeWindows=[]))
    made = await server.create(RESOURCE_LEASING_POLICIES, given)
    stored = await server.get(RESOURCE_LEASING_POLICIES, made.name, keep_raw=True)
    assert stored.content()["spec"] == {"cluster": "worker-1", "timeWindows": []}


def wire(*conditions: Condition) -> list[Json]:
    """Return conditions as JSON."""
    stamped: tuple[Condition, ...] = ()
    for each in conditions:
        stamped = set_condition(stamped, each, now=NOW)
    return [msgspec.to_builtins(each) for each in stamped]


async def test_our_own_status_is_accepted_whole(server: Client) -> None:
    made = await server.create(
        RESOURCE_LEASING_POLICIES, body(RESOURCE_LEASING_POLICIES, a_policy())
    )
    eviction = {"namespace": "a", "name": "b", "node": "c", "time": NOW, "reason": "Evicted"}
    status = {
        "phase": "Inactive",
        "activeTimeWindow": False,
        "lastAppliedTime": NOW,
        "nextTransitionTime": NOW,
        "observedGeneration": 1,
        "leasedNodes": 3,
        "conditions": wire(
            POLICY_VALID.condition(generation=1, notes=""),
            POLICY_ACTIVE.condition(generation=1, until=""),
        ),
        "reclaim": {
            **dict.fromkeys(("startTime", "evictionTime", "deadlineTime", "completionTime"), NOW),
            "pending": 1,
            "evicted": 2,
            "blocked": 0,
            "lastEvictions": [eviction],
        },
    }
    patch = MergePatch({"status": status})
    await server.patch(RESOURCE_LEASING_POLICIES, made.name, patch, subresource="status")
    stored = await server.get(RESOURCE_LEASING_POLICIES, made.name, keep_raw=True)
    assert stored.content()["status"] == status
    assert stored.status.reclaim is not None
    assert stored.status.reclaim.evicted == 2


async def test_two_writers_apply_conditions_side_by_side(server: Client) -> None:
    given = body(CLUSTER_BINDINGS, a_binding(podPriorityClassName="a"))
    name = given["metadata"]["name"]
    await server.patch(CLUSTER_BINDINGS, name, ApplyPatch(given))

    other = Client(server.transport, field_manager="somebody-else")
    for writer, verdict in ((server, BINDING_READY), (other, CONNECTION_PASSED)):
        received = {k: given[k] for k in ("apiVersion", "kind", "metadata")}
        received["status"] = {"conditions": wire(verdict.condition())}
        await writer.patch(CLUSTER_BINDINGS, name, ApplyPatch(received), subresource="status")

    after = await server.get(CLUSTER_BINDINGS, name)
    assert {each.type for each in after.status.conditions or ()} == {"Ready", "Connected"}

    mine = given | {"spec": given["spec"] | {"podPriorityClassName": "b"}}
    with pytest.raises(Conflict, match=r"spec\.podPriorityClassName"):
        await other.patch(CLUSTER_BINDINGS, name, ApplyPatch(mine))
    await other.patch(CLUSTER_BINDINGS, name, ApplyPatch(mine, force=True))


async def test_tables_show_the_columns_of_the_contract(server: Client) -> None:
    given = body(CLUSTER_BINDINGS, a_binding(clusterID="shown"))
    await server.create(CLUSTER_BINDINGS, given)
    path = CLUSTER_BINDINGS.path(name=given["metadata"]["name"])
    table = await server.request_json(
        "GET", path, accept="application/json;as=Table;v=v1;g=meta.k8s.io"
    )
    columns = [each["name"] for each in table["columnDefinitions"] if each["priority"] == 0]
    assert columns == ["Name", "ClusterID", "Phase", "Age"]
    assert table["rows"][0]["cells"][1] == "shown"


async def test_kinds_have_short_names_and_a_category(server: Client) -> None:
    listed = await server.request_json("GET", f"/apis/{API_VERSION}")
    actual = {each["name"]: each for each in listed["resources"]}
    assert actual["clusterbindings"]["shortNames"] == ["cb"]
    assert actual["resourceleasingpolicies"]["shortNames"] == ["rlp"]
    for name in ("clusterbindings", "resourceleasingpolicies"):
        assert actual[name]["categories"] == ["kubeocean"]
        assert f"{name}/status" in actual


# Objects from before


def permissive(schema: Any) -> Any:
    """Return a definition without our additions: roughly that of the earlier implementation."""
    if isinstance(schema, list):
        return [permissive(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    added = ("x-kubernetes-validations", "minimum", "maximum", "minLength", "enum")
    return {name: permissive(each) for name, each in schema.items() if name not in added}


ODD = (
    a_window("25:00", "08:00"),
    a_window("08:00", "18:00", "Mon"),
    a_limit(percent=0),
    a_limit(percent=200),
    a_limit(quantity="-1"),
    a_policy(gracefulReclaimPeriodSeconds=-1),
    a_policy(nodeSelector=a_term("matchExpressions", "a", "in", "x")),
    a_policy(cluster=""),
)


async def test_objects_from_before_can_still_be_worked_with(new_cluster: NewCluster) -> None:
    client = (await new_cluster()).client()
    try:
        await install(client, permissive)
        names = [await odd_policy(client, spec) for spec in ODD]
        await install(client, lambda definition: definition)
        await until(lambda: refuses(client, ODD[0]), waiting_for="the new rules to hold")
        for name, spec in zip(names, ODD, strict=True):
            await work_with(client, name, spec)
    finally:
        await client.close()


async def install(client: Client, change: Callable[[Json], Json]) -> None:
    for definition in definitions():
        name = definition["metadata"]["name"]
        patch = ApplyPatch(change(definition), force=True)
        await client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, patch)
    await until(lambda: served(client))


async def served(client: Client) -> bool:
    actual = [
        (await client.get(CUSTOM_RESOURCE_DEFINITIONS, each["metadata"]["name"], keep_raw=True))
        for each in definitions()
    ]
    conditions = itertools.chain.from_iterable(
        each.content().get("status", {}).get("conditions") or () for each in actual
    )
    return sum(c["type"] == "Established" and c["status"] == "True" for c in conditions) == 2


async def odd_policy(client: Client, spec: Json) -> str:
    given = body(RESOURCE_LEASING_POLICIES, spec)
    given["metadata"]["finalizers"] = ["example.com/held"]
    return (await client.create(RESOURCE_LEASING_POLICIES, given)).name


async def refuses(client: Client, spec: Json) -> bool:
    given = body(RESOURCE_LEASING_POLICIES, spec)
    try:
        await client.create(RESOURCE_LEASING_POLICIES, given, dry_run=True)
    except Invalid:
        return True
    return False


async def work_with(client: Client, name: str, spec: Json) -> None:
    """Check that status, labels and other fields can be changed and the object be deleted, and that
    only another mistake is refused."""

    async def patch(change: Json, subresource: str = "") -> Object:
        return await client.patch(
            RESOURCE_LEASING_POLICIES, name, MergePatch(change), subresource=subresource
        )

    await patch({"status": {"phase": "Failed"}}, "status")
    await patch({"metadata": {"labels": {"a": "b"}}})
    await patch({"spec": {"forceReclaim": True}})
    with pytest.raises(Invalid):
        await patch({"spec": {"timeWindows": [{"start": "26:00", "end": "08:00"}]}})
    made = await client.get(RESOURCE_LEASING_POLICIES, name)
    await client.delete(RESOURCE_LEASING_POLICIES, name, uid=made.uid)
    await patch({"metadata": {"finalizers": None}})
    listed = await client.list(RESOURCE_LEASING_POLICIES)
    assert name not in {each.name for each in listed.items}
