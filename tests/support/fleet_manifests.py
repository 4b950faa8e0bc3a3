"""Random manifests of ConfigMaps, Services and Deployments that an API server accepts.

Names are few, so that two manifests of one kind mostly name the same items, in another order and
with other values.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kubeocean.runtime.objects import Json

__all__ = ["config_maps", "deployments", "manifests", "services"]

WORDS = ("amber", "birch", "cedar", "delta")
VALUES = st.sampled_from(("1", "2", "three", ""))


def some(of: st.SearchStrategy[Any], **options: Any) -> st.SearchStrategy[list[Any]]:
    return st.lists(of, max_size=3, **options)


def texts() -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=3)


@st.composite
def metadata(draw: st.DrawFn) -> Json:
    meta: Json = {"name": "subject"}
    if labels := draw(texts()):
        meta["labels"] = labels
    if annotations := draw(texts()):
        meta["annotations"] = annotations
    names = st.sampled_from([f"example.com/{word}" for word in WORDS])
    if finalizers := draw(some(names, unique=True)):
        meta["finalizers"] = finalizers
    return meta


def maybe(draw: st.DrawFn, target: Json, **fields: st.SearchStrategy[Any]) -> None:
    """Set some of the fields."""
    for name, strategy in fields.items():
        if draw(st.booleans()):
            target[name] = draw(strategy)


@st.composite
def config_maps(draw: st.DrawFn) -> Json:
    config_map: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": draw(metadata())}
    maybe(draw, config_map, data=texts())
    return config_map


@st.composite
def services(draw: st.DrawFn) -> Json:
    ports = [
        {"name": f"p{port}", "port": port, "targetPort": draw(st.sampled_from((80, "http")))}
        for port in draw(some(st.sampled_from((80, 443, 8080)), unique=True, min_size=1))
    ]
    for port in ports:
        maybe(draw, port, protocol=st.sampled_from(("TCP", "UDP")))
    spec: Json = {"ports": ports}
    maybe(draw, spec, selector=texts(), sessionAffinity=st.sampled_from(("None", "ClientIP")))
    return {"apiVersion": "v1", "kind": "Service", "metadata": draw(metadata()), "spec": spec}


@st.composite
def env(draw: st.DrawFn) -> Json:
    variable: Json = {"name": draw(st.sampled_from(WORDS))}
    if draw(st.booleans()):
        variable["value"] = draw(VALUES)
    else:
        paths = ("metadata.name", "metadata.namespace")
        variable["valueFrom"] = {"fieldRef": {"fieldPath": draw(st.sampled_from(paths))}}
    return variable


@st.composite
def containers(draw: st.DrawFn, volumes: list[str]) -> Json:
    container: Json = {
        "name": draw(st.sampled_from(WORDS)),
        "image": draw(st.sampled_from(("app:1", "app:2"))),
    }
    ports = some(st.sampled_from((80, 443, 8080)), unique=True)
    maybe(
        draw,
        container,
        env=some(env(), unique_by=lambda each: each["name"]),
        ports=ports.map(lambda numbers: [{"containerPort": number} for number in numbers]),
        args=some(VALUES),
        resources=st.just({"limits": {"cpu": "1"}}),
    )
    if volumes:
        mounts = some(st.sampled_from(volumes), unique=True)
        mount = [{"name": name, "mountPath": f"/{name}"} for name in draw(mounts)]
        container["volumeMounts"] = mount
    return container


SOURCES = st.sampled_from(
    (
        {"emptyDir": {}},
        {"configMap": {"name": "amber"}},
        {"secret": {"secretName": "birch"}},
        {"hostPath": {"path": "/tmp"}},
    )
)


@st.composite
def pod_specs(draw: st.DrawFn) -> Json:
    volumes = draw(some(st.sampled_from(WORDS), unique=True))
    container = containers(volumes)
    spec: Json = {
        "containers": draw(some(container, min_size=1, unique_by=lambda each: each["name"])),
        "volumes": [{"name": name, **draw(SOURCES)} for name in volumes],
    }
    names = some(st.sampled_from(WORDS), unique=True)
    spread = {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
    maybe(
        draw,
        spec,
        hostAliases=names.map(lambda all: [{"ip": "10.0.0.1", "hostnames": all}] if all else []),
        imagePullSecrets=names.map(lambda all: [{"name": name} for name in all]),
        nodeSelector=texts(),
        tolerations=names.map(lambda all: [{"key": key, "operator": "Exists"} for key in all]),
        topologySpreadConstraints=names.map(
            lambda all: [{"topologyKey": key, **spread} for key in all]
        ),
        restartPolicy=st.just("Always"),
        terminationGracePeriodSeconds=st.sampled_from((0, 30)),
    )
    return spec


@st.composite
def deployments(draw: st.DrawFn) -> Json:
    labels = {"app": "subject", **draw(texts())}
    spec: Json = {
        "selector": {"matchLabels": {"app": "subject"}},
        "template": {"metadata": {"labels": labels}, "spec": draw(pod_specs())},
    }
    strategy = st.sampled_from(
        (
            {"type": "Recreate"},
            {"type": "RollingUpdate"},
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
            {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
        )
    )
    maybe(draw, spec, replicas=st.sampled_from((0, 1, 3)), strategy=strategy)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": draw(metadata()),
        "spec": spec,
    }


def manifests() -> st.SearchStrategy[tuple[Json, Json, Json]]:
    """Return three manifests of one object: applied last, desired, live."""
    return st.one_of(
        st.tuples(kind(), kind(), kind()) for kind in (config_maps, services, deployments)
    )
