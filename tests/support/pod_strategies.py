"""Hypothesis strategies for pods of all kinds, most of which an API server accepts."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kubeocean.runtime.objects import Json

__all__ = ["pod_bodies", "pods"]

LABELS = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
NAMES = st.one_of(
    LABELS,
    st.lists(LABELS, min_size=1, max_size=4).map(".".join),
    # Names that are cut may end in a dash or a dot.
    st.builds(
        lambda length, end: ("a" * length + end + "b" * 253)[:253],
        st.sampled_from([29, 30, 61, 62, 63, 251]),
        st.sampled_from(["", ".", "-", "-.-".strip("-")]),
    ),
)
OBJECTS = st.sampled_from(["settings", "a.b", "x" * 253, "kube-root-ca.crt", "long-" * 8 + "name"])
KEYS = st.sampled_from(["key", "ca.crt", "A_B"])
PATHS = st.sampled_from(["f0", "b/c", "token", "data.txt"])
TEXTS = st.sampled_from(["", "x", "$(A)", "$$(A)", "$(KUBERNETES_SERVICE_HOST):1", "ü", "a\nb"])
VARIABLES = st.sampled_from(
    ["A", "B", "HOSTNAME", "KUBERNETES_SERVICE_HOST", "KUBERNETES_PORT", "DB_SERVICE_PORT", "a.b-c"]
)
# Names that a container may set; two others are always overridden.
OWN_VARIABLES = st.sampled_from(["A", "B", "KUBERNETES_PORT", "DB_SERVICE_PORT", "a.b-c"])
FIELDS = st.sampled_from(
    [
        *("metadata.name", "metadata.namespace", "metadata.uid"),
        *("metadata.labels['app']", "metadata.annotations['note']"),
        *("spec.nodeName", "spec.serviceAccountName"),
        *("status.podIP", "status.podIPs", "status.hostIP", "status.hostIPs"),
    ]
)
VOLUME_FIELDS = st.sampled_from(
    [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "metadata.labels",
        "metadata.annotations",
    ]
)
QUANTITIES = st.sampled_from(["100m", "1", "2", "64Mi", "1Gi"])
BOOLS = st.booleans()


def maybe(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """Dicts with any subset of these keys."""
    return st.fixed_dictionaries({}, optional=optional)


def having(fixed: Json, **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """Dicts with all required keys and any subset of the optional ones."""
    return maybe(**optional).map(lambda more: fixed | more)


def of(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(fields)


def lists(of_what: st.SearchStrategy[Any], most: int = 2) -> st.SearchStrategy[list[Any]]:
    return st.lists(of_what, max_size=most)


def named(values: list[Json], prefix: str) -> list[Json]:
    """Lists of objects with unique names."""
    return [value | {"name": f"{prefix}{i}"} for i, value in enumerate(values)]


REF = of(name=OBJECTS).flatmap(lambda ref: having(ref, optional=BOOLS))
KEY_REF = of(name=OBJECTS, key=KEYS).flatmap(lambda ref: having(ref, optional=BOOLS))
ENV = st.one_of(
    of(name=VARIABLES, value=TEXTS),
    of(
        name=OWN_VARIABLES,
        valueFrom=st.one_of(
            of(configMapKeyRef=KEY_REF),
            of(secretKeyRef=KEY_REF),
            of(fieldRef=of(fieldPath=FIELDS)),
            of(resourceFieldRef=of(resource=st.sampled_from(["limits.cpu", "requests.memory"]))),
        ),
    ),
)
ENV_FROM = st.one_of(of(configMapRef=REF), of(secretRef=REF, prefix=st.just("P_")))
AMOUNTS = maybe(
    requests=maybe(cpu=st.sampled_from(["100m", "1"]), memory=st.just("64Mi")),
    limits=maybe(cpu=st.just("1"), memory=st.just("1Gi")),
)
PROBE = st.one_of(
    of(httpGet=of(port=st.just(80), path=st.just("/"))),
    of(exec=of(command=st.just(["true"]))),
    of(tcpSocket=of(port=st.just(80)), periodSeconds=st.just(5)),
)
SECURITY = maybe(privileged=BOOLS, runAsUser=st.just(1000), readOnlyRootFilesystem=BOOLS)


def containers(volumes: int) -> st.SearchStrategy[Json]:
    """Containers without names, which mount some of these volumes."""
    mounts = st.lists(
        st.integers(0, max(volumes - 1, 0)), unique=True, max_size=min(volumes, 3)
    ).map(lambda chosen: [{"name": f"v{i}", "mountPath": f"/mnt/{i}"} for i in chosen])
    return having(
        {"image": "app:1"},
        env=lists(ENV, 4),
        envFrom=lists(ENV_FROM),
        resources=AMOUNTS,
        securityContext=SECURITY,
        volumeMounts=mounts,
        command=st.just(["sh", "-c", "echo $(A)"]),
        imagePullPolicy=st.sampled_from(["Always", "IfNotPresent", "Never"]),
        terminationMessagePolicy=st.just("FallbackToLogsOnError"),
    )


APP = maybe(
    readinessProbe=PROBE,
    livenessProbe=PROBE,
    ports=st.sampled_from(
        [
            [{"containerPort": 80}],
            [{"containerPort": 81, "hostPort": 81, "name": "web"}],
            [{"containerPort": 53, "protocol": "UDP"}],
        ]
    ),
    lifecycle=st.just({"preStop": {"exec": {"command": ["true"]}}}),
)
DOWNWARD = of(
    items=st.lists(VOLUME_FIELDS, max_size=3, unique=True).map(
        lambda paths: [{"path": f"f{i}", "fieldRef": {"fieldPath": p}} for i, p in enumerate(paths)]
    )
)
SOURCE = st.one_of(
    of(configMap=REF),
    of(secret=REF),
    of(downwardAPI=DOWNWARD),
    of(
        serviceAccountToken=of(path=PATHS).flatmap(
            lambda token: having(token, audience=st.just("vault"), expirationSeconds=st.just(600))
        )
    ),
    of(clusterTrustBundle=of(name=st.just("b"), path=st.just("ctb"), optional=BOOLS)),
)
TEMPLATE = {
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
}
SECRET_REF = of(name=OBJECTS)
VOLUME = st.one_of(
    of(configMap=REF),
    of(secret=of(secretName=OBJECTS).flatmap(lambda ref: having(ref, defaultMode=st.just(256)))),
    of(projected=of(sources=lists(SOURCE, 4))),
    of(downwardAPI=DOWNWARD),
    of(emptyDir=maybe(medium=st.just("Memory"), sizeLimit=st.just("1Gi"))),
    of(hostPath=of(path=st.just("/var/log"))),
    of(persistentVolumeClaim=of(claimName=OBJECTS, readOnly=BOOLS)),
    of(ephemeral=of(volumeClaimTemplate=st.just(TEMPLATE))),
    of(csi=of(driver=st.just("d.example"), nodePublishSecretRef=SECRET_REF)),
    of(azureFile=of(secretName=OBJECTS, shareName=st.just("s"))),
    of(flexVolume=of(driver=st.just("v/d"), secretRef=maybe(name=OBJECTS))),
    of(rbd=of(monitors=st.just(["m"]), image=st.just("i"), secretRef=SECRET_REF)),
    of(cephfs=of(monitors=st.just(["m"]), secretRef=SECRET_REF)),
    of(
        iscsi=of(
            targetPortal=st.just("1.2.3.4"), iqn=st.just("iqn.2001-04.com.a:b"), lun=st.just(0)
        )
    ),
    of(nfs=of(server=st.just("s"), path=st.just("/"))),
    of(image=of(reference=st.just("data:1"))),
)
SELECTOR = {"labelSelector": {"matchLabels": {"app": "web"}}}
PLACEMENT = maybe(
    nodeSelector=st.just({"zone": "a"}),
    schedulerName=st.just("mine"),
    priorityClassName=st.sampled_from(["forge-never", "forge-high"]),
    runtimeClassName=st.just("forge-runtime"),
    affinity=st.just(
        {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", **SELECTOR}
                ]
            }
        }
    ),
    topologySpreadConstraints=st.just(
        [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", **SELECTOR}]
    ),
    tolerations=lists(
        st.sampled_from(
            [
                {"operator": "Exists"},
                {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9},
                {"key": "b", "value": "c", "effect": "NoSchedule"},
            ]
        )
    ),
    schedulingGates=st.just([{"name": "example.com/gate"}]),
    resourceClaims=st.just([{"name": "gpu", "resourceClaimName": "mine"}]),
)
RESOLVER = maybe(
    nameservers=lists(st.sampled_from(["1.1.1.1", "2.2.2.2", "fd00::1"]), 3),
    searches=st.lists(
        st.integers(0, 99).map(lambda i: f"s{i}.{'e' * 60}.example"), max_size=32, unique=True
    ),
    options=lists(st.sampled_from([{"name": "ndots", "value": "2"}, {"name": "debug"}])),
)
NETWORK = maybe(
    dnsPolicy=st.sampled_from(["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]),
    dnsConfig=RESOLVER,
    hostNetwork=BOOLS,
    hostAliases=lists(st.just({"ip": "1.2.3.4", "hostnames": ["db", "db.example"]}), 1),
    hostname=st.just("host"),
    subdomain=st.just("sub"),
    setHostnameAsFQDN=BOOLS,
)
REST = maybe(
    imagePullSecrets=lists(of(name=OBJECTS)),
    enableServiceLinks=BOOLS,
    automountServiceAccountToken=BOOLS,
    readinessGates=st.just([{"conditionType": "example.com/ready"}]),
    hostPID=BOOLS,
    hostIPC=st.just(True),
    activeDeadlineSeconds=st.just(60),
    terminationGracePeriodSeconds=st.sampled_from([0, 1, 30]),
    restartPolicy=st.sampled_from(["Always", "OnFailure", "Never"]),
    securityContext=maybe(
        fsGroup=st.just(1),
        runAsNonRoot=BOOLS,
        runAsUser=st.just(1),
        sysctls=st.just([{"name": "net.ipv4.tcp_syncookies", "value": "1"}]),
        seccompProfile=st.just({"type": "RuntimeDefault"}),
        appArmorProfile=st.just({"type": "RuntimeDefault"}),
    ),
    os=st.just({"name": "linux"}),
    hostUsers=st.just(True),
    shareProcessNamespace=BOOLS,
    resources=st.just({"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}),
)
OWNER = of(
    apiVersion=st.just("example.com/v1"),
    kind=st.sampled_from(["ReplicaSet", "Job", "MyKind"]),
    name=st.sampled_from(["web-7f", "w" * 253, "a.b"]),
    uid=st.just("5b7ab8f9-7d8f-4e4f-9d1c-111111111111"),
)
METADATA = maybe(
    labels=st.just({"app": "web", "pod-template-hash": "7f", "kubeocean.io/managed-by": "x"}),
    annotations=st.sampled_from(
        [
            {"note": "x"},
            {"large": "x" * 150_000},
            {"larger": "x" * 262_000},
            {"container.apparmor.security.beta.kubernetes.io/app0": "unconfined"},
            {"kubeocean.io/physical-pod-name": "x", "kubeocean.io/virtual-pod-uid": "y"},
        ]
    ),
    ownerReferences=lists(OWNER, 1),
)


@st.composite
def pod_bodies(draw: st.DrawFn, namespace: str = "team") -> Json:
    """Return a pod as a user writes it."""
    volumes = named(draw(lists(VOLUME, 4)), "v")
    container = containers(len(volumes))
    apps = draw(st.lists(st.tuples(container, APP), min_size=1, max_size=2))
    inits = draw(lists(st.tuples(container, maybe(restartPolicy=st.just("Always")))))
    spec: Json = {
        "containers": named([one | more for one, more in apps], "app"),
        "initContainers": named([one | more for one, more in inits], "init"),
        "volumes": volumes,
    }
    for part in (PLACEMENT, NETWORK, REST):
        spec |= draw(part)
    metadata = draw(METADATA) | {"name": draw(NAMES), "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def pods(namespace: str = "team") -> st.SearchStrategy[Json]:
    """Return a pod as a server stores it once it is bound."""

    def bound(body: Json) -> Json:
        spec = body["spec"] | {"nodeName": "vnode-w1-n1", "serviceAccountName": "robot"}
        metadata = body["metadata"] | {"uid": "u-1", "resourceVersion": "1"}
        return body | {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}

    return pod_bodies(namespace).map(bound)
