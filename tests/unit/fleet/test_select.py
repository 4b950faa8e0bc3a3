"""Resource selectors: the objects that they read, mistakes, and the content of a snapshot."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeocean.errors import ConfigError
from kubeocean.fleet.selection.rules import ApiFilter, NamespaceFilter
from kubeocean.fleet.selection.select import HubKinds, Query, queries, selected
from kubeocean.runtime.objects import GroupVersionKind, Json, Key
from kubeocean.runtime.selectors import LabelSelector

NAMESPACE = GroupVersionKind("", "v1", "Namespace")
CONFIG_MAP = GroupVersionKind("", "v1", "ConfigMap")
POD = GroupVersionKind("", "v1", "Pod")
DEPLOYMENT = GroupVersionKind("apps", "v1", "Deployment")
OLD_DEPLOYMENT = GroupVersionKind("apps", "v1beta1", "Deployment")
CLUSTER_ROLE = GroupVersionKind("rbac.authorization.k8s.io", "v1", "ClusterRole")

HUB = HubKinds(
    kinds={
        NAMESPACE: False,
        CONFIG_MAP: True,
        POD: True,
        DEPLOYMENT: True,
        OLD_DEPLOYMENT: True,
        CLUSTER_ROLE: False,
    },
    preferred={NAMESPACE, CONFIG_MAP, POD, DEPLOYMENT, CLUSTER_ROLE},
    namespaces={
        "web": {"team": "a"},
        "shop": {"team": "a"},
        "skipped": {"team": "a"},
        "kube-system": {"team": "a"},
        "default": {},
    },
    allowed_namespaces=NamespaceFilter(frozenset({"skipped"})),
)
TEAM = {"labelSelector": {"matchLabels": {"team": "a"}}}
CRP, RP = Key("", "crp"), Key("web", "rp")


def selector(kind: GroupVersionKind, **more: Any) -> Json:
    return {**msgspec.structs.asdict(kind), **more}


def namespace(scope: str = "NamespaceWithResources", **more: Any) -> Json:
    return selector(NAMESPACE, selectionScope=scope, **more)


def read_for(*selectors: Json, placement: Key = CRP, hub: HubKinds = HUB) -> list[Query]:
    return list(queries(selectors, placement, hub))


WEB = [Query(NAMESPACE, name="web"), Query(CONFIG_MAP, "web"), Query(DEPLOYMENT, "web")]


def test_a_namespace_comes_with_everything_in_it() -> None:
    assert read_for(namespace(name="web")) == WEB
    default = selector(NAMESPACE, name="web")
    assert read_for(default) == WEB
    without = HubKinds(HUB.kinds, HUB.preferred, HUB.namespaces, ApiFilter.parse(skipped="apps"))
    assert read_for(namespace(name="web"), hub=without) == WEB[:2]


def test_namespaces_are_selected_by_labels_unless_they_are_reserved() -> None:
    names = [query.name for query in read_for(namespace("NamespaceOnly", **TEAM))]
    assert names == ["shop", "web"]
    names = [query.name for query in read_for(namespace("NamespaceOnly"))]
    assert names == ["shop", "web"]


def test_a_namespace_may_come_alone() -> None:
    assert read_for(namespace("NamespaceOnly", name="web")) == WEB[:1]


def test_a_namespace_may_come_with_what_other_selectors_name() -> None:
    mode = namespace("NamespaceWithResourceSelectors", name="web")
    assert read_for(mode) == WEB[:1]
    labelled = LabelSelector.from_labels({"team": "a"})
    assert read_for(
        selector(CONFIG_MAP, name="settings"),
        mode,
        selector(DEPLOYMENT, **TEAM),
        selector(CLUSTER_ROLE),
    ) == [
        Query(CONFIG_MAP, "web", "settings"),
        *WEB[:1],
        Query(DEPLOYMENT, "web", labels=labelled),
        Query(CLUSTER_ROLE),
    ]


@pytest.mark.parametrize(
    ("placement", "selectors", "message"),
    [
        (CRP, [namespace(name="kube-system")], "kube-system is not allowed"),
        (CRP, [namespace("NamespaceOnly", name="fleet-system")], "fleet-system is not allowed"),
        (CRP, [namespace(name="skipped")], "skipped is not allowed"),
        (CRP, [namespace(name="default")], "default is not allowed"),
        (CRP, [selector(CONFIG_MAP, name="a")], "namespaced kind ConfigMap"),
        (Key("kube-system", "rp"), [selector(CONFIG_MAP)], "kube-system is not allowed"),
        (Key("skipped", "rp"), [selector(CONFIG_MAP)], "skipped is not allowed"),
        (RP, [selector(CLUSTER_ROLE, name="a")], "cluster-scoped kind ClusterRole"),
        (RP, [selector(NAMESPACE, name="web")], "cluster-scoped kind Namespace"),
        *(
            (
                CRP,
                [namespace("NamespaceWithResourceSelectors", name=name)],
                "NamespaceWithResourceSelectors mode requires exactly one namespace, but no"
                " namespaces were selected",
            )
            for name in ("absent", "kube-system", "skipped")
        ),
        (
            CRP,
            [namespace("NamespaceWithResourceSelectors", **TEAM)],
            "exactly one namespace, but 2 namespaces",
        ),
        (CRP, [selector(CLUSTER_ROLE, labelSelector={"matchLabels": {"a": "b c"}})], "label"),
    ],
)
def test_mistakes(placement: Key, selectors: list[Json], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_for(*selectors, placement=placement)


@pytest.mark.parametrize(
    ("placement", "chosen"),
    [
        (CRP, namespace(name="absent")),
        (CRP, selector(GroupVersionKind("example.com", "v1", "Widget"), name="a")),
        (CRP, selector(POD)),
        (RP, selector(POD, name="a")),
        (Key("being-deleted", "rp"), selector(CONFIG_MAP)),
    ],
)
def test_what_selects_nothing(placement: Key, chosen: Json) -> None:
    assert read_for(chosen, placement=placement) == []


def test_a_resource_placement_may_select_in_the_default_namespace() -> None:
    placement = Key("default", "rp")
    assert read_for(selector(CONFIG_MAP), placement=placement) == [Query(CONFIG_MAP, "default")]


def test_a_resource_placement_selects_in_its_namespace() -> None:
    assert read_for(selector(CONFIG_MAP), selector(DEPLOYMENT, name="a"), placement=RP) == [
        Query(CONFIG_MAP, "web"),
        Query(DEPLOYMENT, "web", "a"),
    ]


# --- content


def obj(kind: GroupVersionKind, name: str, namespace: str = "") -> Json:
    version = f"{kind.group}/{kind.version}" if kind.group else kind.version
    metadata = {"name": name, "uid": "u", **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": version, "kind": kind.kind, "metadata": metadata, "status": {}}


def content(*objects: Json) -> list[Json]:
    return selected(objects, hub_runs_workloads=True, services=())


def test_the_content_is_filtered_cleaned_and_ordered() -> None:
    objects = content(
        obj(DEPLOYMENT, "app", "web"),
        obj(CONFIG_MAP, "kube-root-ca.crt", "web"),
        obj(CONFIG_MAP, "settings", "web"),
        obj(NAMESPACE, "web"),
    )
    assert [each["kind"] for each in objects] == ["Namespace", "ConfigMap", "Deployment"]
    assert all(each.keys() == {"apiVersion", "kind", "metadata"} for each in objects)
    assert objects[0]["metadata"] == {"name": "web"}
    assert content() == []


def test_an_object_selected_twice_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="ConfigMap web/settings is selected more than once"):
        content(obj(CONFIG_MAP, "settings", "web"), obj(CONFIG_MAP, "settings", "web"))
    twice_skipped = obj(CONFIG_MAP, "kube-root-ca.crt", "web")
    assert content(twice_skipped, twice_skipped) == []
