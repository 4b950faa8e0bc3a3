"""Selectors: a real API server selects, accepts and refuses as we do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from hypothesis import strategies as st

from kubeocean.errors import BadRequest, ConfigError, Invalid
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, NODES, SECRETS
from kubeocean.runtime.node_selectors import NodeSelector
from kubeocean.runtime.objects import Json
from kubeocean.runtime.selectors import EVERYTHING, NOTHING, FieldSelector, FieldTerm, LabelSelector
from support.examples import draw_many
from support.label_strategies import labels, wishes
from support.wait import until


async def labelled(client: Client, namespace: str, count: int) -> dict[str, dict[str, str]]:
    """Create ConfigMaps with drawn labels; return them by name."""
    carried = {f"c{n}": each for n, each in enumerate(draw_many(labels(), count))}
    for name, each in carried.items():
        body = {"metadata": {"name": name, "labels": each}}
        await client.create(CONFIG_MAPS, body, namespace=namespace)
    return carried


async def test_a_server_selects_by_labels_as_we_do(client: Client, namespace: str) -> None:
    carried = await labelled(client, namespace, 30)
    texts = [",".join(wish.text for wish in each) for each in draw_many(wishes(), 150)]
    for text in [*texts, str(EVERYTHING), str(NOTHING)]:
        selector = LabelSelector.parse(text)
        ours = {name for name, each in carried.items() if selector.matches(each)}
        for requested in {text, str(selector)}:
            listed = await client.list(CONFIG_MAPS, namespace, labels=requested)
            theirs = {item.name for item in listed.items} & carried.keys()
            assert theirs == ours, requested


@pytest.mark.parametrize(
    "text",
    [
        *(",", "a,", "a,,b", "!", "!!a", "!a=b", "a b", "a!", "a=b c", "a=(b)", "a===b", "=b"),
        *("a in", "a in b", "a in (b", "a in (b c)", "a in (b))", "(a)", "a in (=)"),
        *("a>", "a>x", "a>-1", "a>9223372036854775808", "a<1.5"),
        *("-a", "a/b/c", "A.b/c", "/a", "a=-", "a=b/c", "a=" + "x" * 64, "x" * 64 + "=a"),
    ],
)
async def test_a_server_refuses_the_texts_that_we_refuse(
    client: Client, namespace: str, text: str
) -> None:
    with pytest.raises(ConfigError):
        LabelSelector.parse(text)
    with pytest.raises(BadRequest):
        await client.list(CONFIG_MAPS, namespace, labels=text)


def expression(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("document", "good"),
    [
        ({}, True),
        ({"matchLabels": {"a": ""}}, True),
        (expression("a", "In", "x", "x", ""), True),
        (expression("example.com/a", "DoesNotExist"), True),
        (expression("a", "In"), False),
        (expression("a", "Exists", "x"), False),
        (expression("a", "Gt", "1"), False),
        (expression("a", "="), False),
        (expression("-", "Exists"), False),
        (expression("a", "NotIn", "x y"), False),
        ({"matchLabels": {"a/b/c": "d"}}, False),
        ({"matchLabels": {"a": "-"}}, False),
    ],
)
async def test_a_server_accepts_the_documents_that_we_accept(
    client: Client, namespace: str, document: Json, good: bool
) -> None:
    budget = {"metadata": {"name": "budget"}, "spec": {"selector": document, "minAvailable": 1}}
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    if good:
        LabelSelector.from_document(document)
        await client.request("POST", path, query=[("dryRun", "All")], body=budget)
    else:
        with pytest.raises(ConfigError):
            LabelSelector.from_document(document)
        with pytest.raises(Invalid):
            await client.request("POST", path, query=[("dryRun", "All")], body=budget)


async def test_a_server_selects_by_fields_as_we_do(client: Client, namespace: str) -> None:
    types = ["plain", "a,b", "a=b", "a\\b", "a\\,b", "!=", "a b", "ä"]
    secrets = {f"s{n}": kind for n, kind in enumerate(types)}
    for name, kind in secrets.items():
        body = {"metadata": {"name": name}, "type": kind}
        await client.create(SECRETS, body, namespace=namespace)
    fields = st.sampled_from([("type", kind) for kind in types] + [("metadata.name", "s1")])
    terms = st.builds(lambda pair, equal: FieldTerm(pair[0], pair[1], equal), fields, st.booleans())
    for drawn in draw_many(st.lists(terms, max_size=3), 60):
        selector = FieldSelector.of(drawn)
        listed = await client.list(SECRETS, namespace, fields=str(selector))
        ours = {
            name
            for name, kind in secrets.items()
            if selector.matches({"type": kind, "metadata.name": name})
        }
        assert {item.name for item in listed.items} == ours, str(selector)


NODE_LABELS: dict[str, dict[str, str]] = {
    "n0": {},
    "n1": {"zone": "a", "size": "1"},
    "n2": {"zone": "b", "size": "10"},
    "n3": {"zone": "", "size": "large"},
    "n4": {"size": "007"},
}


def term(*expressions: tuple[str, str, list[str]], named: tuple[str, str] | None = None) -> Json:
    actual: Json = {
        "matchExpressions": [{"key": k, "operator": o, "values": v} for k, o, v in expressions]
    }
    if named:
        key, operator, name = "metadata.name", *named
        actual["matchFields"] = [{"key": key, "operator": operator, "values": [name]}]
    return actual


NODE_SELECTORS: list[list[Json]] = [
    [term(("zone", "In", ["a", "b"]))],
    [term(("zone", "In", [""]))],
    [term(("zone", "NotIn", ["a"]))],
    [term(("zone", "Exists", []))],
    [term(("zone", "DoesNotExist", []))],
    [term(("size", "Gt", ["1"]))],
    [term(("size", "Lt", ["10"]))],
    [term(("size", "Gt", ["1"]), ("zone", "Exists", []))],
    [term(named=("In", "n0"))],
    [term(named=("NotIn", "n0"))],
    [term(("zone", "Exists", []), named=("NotIn", "n1"))],
    [term(("zone", "In", ["a"])), term(named=("In", "n4"))],
    [term(), term(("zone", "In", ["b"]))],
    [term()],
]


DAEMONS = "/apis/apps/v1/namespaces/default/daemonsets"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def daemons(name: str, terms: list[Json]) -> Json:
    """Return a DaemonSet: its controller makes one pod for each node that the selector matches."""
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    return {
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"of": name}},
            "template": {
                "metadata": {"labels": {"of": name}},
                "spec": {
                    "affinity": affinity,
                    "containers": [{"name": "c", "image": "none"}],
                },
            },
        },
    }


def chosen_node(pod: Json) -> str:
    """Return the node that a DaemonSet's pod is created for; without a scheduler the pod stays
    unscheduled."""
    required = pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]
    [name] = {t["matchFields"][0]["values"][0] for t in required["nodeSelectorTerms"]}
    return str(name)


async def test_kubernetes_selects_nodes_as_we_do(
    new_cluster: Callable[..., Awaitable[Cluster]],
) -> None:
    cluster = await new_cluster(components=("etcd", "kube-apiserver", "kube-controller-manager"))
    selectors = {f"d{n}": terms for n, terms in enumerate(NODE_SELECTORS)}
    ours: dict[str, set[str]] = {}
    for name, terms in selectors.items():
        selector = NodeSelector.from_document({"nodeSelectorTerms": terms})
        ours[name] = {node for node, has in NODE_LABELS.items() if selector.matches(node, has)}

    client = cluster.client()
    try:
        for name, carried in NODE_LABELS.items():
            await client.create(NODES, {"metadata": {"name": name, "labels": carried}})
        for name, terms in selectors.items():
            await client.request("POST", DAEMONS, body=daemons(name, terms))

        async def all_settled() -> bool:
            sets = (await client.request_json("GET", DAEMONS))["items"]
            for status in (each["status"] for each in sets):
                assert status.get("observedGeneration")
                assert status["currentNumberScheduled"] == status["desiredNumberScheduled"]
            pods = (await client.request_json("GET", "/api/v1/namespaces/default/pods"))["items"]
            theirs: dict[str, set[str]] = {name: set() for name in selectors}
            for pod in pods:
                theirs[pod["metadata"]["labels"]["of"]].add(chosen_node(pod))
            assert theirs == ours
            return True

        await until(all_settled, waiting_for="daemons on the nodes that we would choose")
    finally:
        await client.close()
