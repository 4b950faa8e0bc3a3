"""CustomResourceDefinitions of ClusterBinding and ResourceLeasingPolicy.

An API server with these definitions accepts every object that the earlier implementation called
valid, except bindings without the name of a Secret, and refuses obvious mistakes with a message
that names the correction. Stored objects stay usable: since Kubernetes 1.30 an API server accepts
an invalid field that an update does not touch.

CEL has no time zones, so the rule for them lists the names; new names of the IANA database are
known after an upgrade. An enumeration would do the same, and answer with all six hundred names.

`scripts/crds` writes the files in `crds/`, which `render` returns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from kubeocean.api.bindings import (
    CLUSTER_BINDINGS,
    CLUSTER_ID,
    CLUSTER_ID_LONGEST,
    SECRET_NAMESPACES_MOST,
    BindingPhase,
    PodSecurityLevel,
    Privilege,
    WorkerTrust,
)
from kubeocean.api.group import APP_PART_OF, CATEGORY, DEFAULT
from kubeocean.api.policies import (
    DAY_HINT,
    DAYS,
    RESOURCE_LEASING_POLICIES,
    SHOWN,
    TIME_HINT,
    TIME_OF_DAY,
    ZONE_HINT,
)
from kubeocean.api.schema import (
    array,
    conditions,
    flag,
    node_selector,
    number,
    obj,
    quantity,
    rule,
    text,
    time,
)
from kubeocean.api.validation import zone_names
from kubeocean.runtime.documents import PlainDumper
from kubeocean.runtime.objects import Json, ObjectT, Resource

__all__ = ["binding_definition", "definitions", "policy_definition", "render", "write"]

_DIRECTORY: Final = Path(__file__).parent / "crds"
_NOTE: Final = "# Made from kubeocean.api.crds by scripts/crds; do not edit.\n"


def definitions() -> tuple[Json, ...]:
    """Return the CustomResourceDefinitions of ClusterBinding and ResourceLeasingPolicy."""
    return binding_definition(), policy_definition()


def render() -> dict[str, str]:
    """Return the CustomResourceDefinitions as YAML, by file name."""
    return {
        f"{each['spec']['names']['plural']}.yaml": _NOTE
        + yaml.dump(each, Dumper=PlainDumper, sort_keys=False, width=100)
        for each in definitions()
    }


def write(directory: Path = _DIRECTORY) -> None:
    """Write the CustomResourceDefinitions as YAML files to `directory`."""
    for name, content in render().items():
        (directory / name).write_text(content, encoding="utf-8")


# ClusterBinding


def binding_definition() -> Json:
    """Return the CustomResourceDefinition of ClusterBinding, for the computing cluster."""
    unchanged = rule(
        "!has(oldSelf.spec) || (has(self.spec) && self.spec.clusterID == oldSelf.spec.clusterID)",
        "cannot be changed, because virtual nodes are named after it;"
        " delete the binding and create another",
        fieldPath=".spec.clusterID",
        reason="FieldValueForbidden",
    )
    kept = rule(
        "!has(oldSelf.spec) || !has(oldSelf.spec.mountNamespace)"
        " || oldSelf.spec.mountNamespace == '' || (has(self.spec)"
        " && has(self.spec.mountNamespace)"
        " && self.spec.mountNamespace == oldSelf.spec.mountNamespace)",
        "cannot be changed, because pods run there that would be left behind;"
        " delete the binding and create another",
        fieldPath=".spec.mountNamespace",
        reason="FieldValueForbidden",
    )
    schema = obj(
        "A worker cluster, bound to this computing cluster: its nodes are shown here as virtual"
        " nodes, as far as policies in the worker lend them.",
        unchanged,
        kept,
        spec=_binding_spec(),
        status=_binding_status(),
    )
    columns = (
        _column("ClusterID", ".spec.clusterID"),
        _column("Phase", ".status.phase"),
        _column("Nodes", ".status.virtualNodes", type_="integer", wide=True),
        _column("Reason", '.status.conditions[?(@.type=="Ready")].reason', wide=True),
        _column("Age", ".metadata.creationTimestamp", type_="date"),
    )
    return _definition(CLUSTER_BINDINGS, "cb", schema, columns)


def _binding_spec() -> Json:
    secret = obj(
        "The Secret of this cluster whose key `kubeconfig` has the kubeconfig of the worker.",
        rule(
            "has(self.name) && self.name != '' && has(self.namespace) && self.namespace != ''",
            "must have the name and the namespace of the Secret with the kubeconfig of the worker",
        ),
        name=text("The name of the Secret."),
        namespace=text("The namespace of the Secret."),
    )
    return obj(
        "The desired state of the binding.",
        required=("clusterID", "secretRef"),
        clusterID=text(
            "Identifies the worker. It is part of the names of virtual nodes, and so unique and"
            " never changed.",
            maxLength=CLUSTER_ID_LONGEST,
            pattern=f"^{CLUSTER_ID}$",
        ),
        secretRef=secret | {"x-kubernetes-map-type": "atomic"},
        nodeSelector=node_selector(
            "Which nodes of the worker may become virtual nodes; all, if it is not set."
        ),
        mountNamespace=text(
            "The namespace of the worker in which pods and copies are created; it must exist. Once"
            " it is set it cannot be changed."
        ),
        serviceNamespaces=array(
            "Namespaces whose Services are replicated to the worker.", {"type": "string"}
        ),
        disableNodeDefaultTaint=flag(
            f"Virtual nodes do not get the taint {DEFAULT.taint_vnode}:NoSchedule."
        ),
        podPriorityClassName=text(
            f"The PriorityClass of pods in the worker; {DEFAULT.priority_class}, which is"
            " created there, if it is not set."
        ),
        runningDaemonsetByDefault=flag(
            "Pods of DaemonSets run in the worker, also without the annotation"
            f" {DEFAULT.running_daemonset}."
        ),
        directScheduling=flag(
            "Pods are assigned to their node in the worker without the worker's scheduler."
        ),
        podPrivileges=_pod_privileges(),
        workerTrust=text(
            "How far labels and annotations that the worker puts on nodes and pods are shown here."
            " Kubelet: nodes get the labels that Kubernetes lets a kubelet set, pods get no labels,"
            " and annotations on which controllers act stay in the worker. Full: all labels, and"
            " all annotations of pods. The default is Kubelet.",
            enum=[each.value for each in WorkerTrust],
        ),
        workerCIDRs=array(
            "The networks of the worker's pods and nodes, such as 10.8.0.0/14. If any is named,"
            " addresses of pods and their hosts outside of them are not shown here.",
            {"type": "string"},
        ),
    )


def _pod_privileges() -> Json:
    words = [each.value for each in Privilege]

    def privilege(description: str) -> Json:
        return text(f"{description} The default is Allow.", enum=words)

    return obj(
        "Which parts of the worker's nodes pods may access. A pod that requests a denied access is"
        " not created in the worker, and an event of the pod has the reason.",
        level=text(
            "The level of Kubernetes' Pod Security Standards that pods have to meet: privileged,"
            " baseline, which denies everything below, or restricted. If the level and a single"
            " privilege differ, the stricter one applies. The default is privileged.",
            enum=[each.value for each in PodSecurityLevel],
        ),
        hostNetwork=privilege("The network of the node, ports of the node among it."),
        hostPID=privilege("The processes of the node."),
        hostIPC=privilege("The shared memory and semaphores of the node."),
        hostPath=privilege("Files of the node."),
        privileged=privilege(
            "Containers that are confined less than usual: privileged ones, further capabilities,"
            " other seccomp, AppArmor or SELinux profiles, sysctls, an unmasked /proc."
        ),
    )


def _binding_status() -> Json:
    return obj(
        "The observed state of the binding.",
        phase=text("Pending, Ready or Failed.", enum=["", *(each.value for each in BindingPhase)]),
        conditions=conditions(
            "Conditions of the binding: whether it is ready, whether the worker can be reached."
        ),
        lastSyncTime=time("When the binding became Ready."),
        observedGeneration=number(
            "The generation of the object that the status describes.", wide=True
        ),
        virtualNodes=number("The number of virtual nodes of the binding."),
        credentialExpirationTime=time(
            "When the credential in the kubeconfig Secret expires, if that is known. The manager"
            " renews credentials that kubeocean join made."
        ),
        secretNamespaces=_secret_namespaces(),
    )


def _secret_namespaces() -> Json:
    namespace: Json = {"type": "string", "maxLength": 63}
    most = SECRET_NAMESPACES_MOST
    refused = obj(
        "A namespace in which the syncer may not read Secrets.",
        required=("namespace",),
        namespace=text("The name of the namespace.", maxLength=63),
        reason=text("Why the syncer may not read Secrets there."),
    )
    return obj(
        "Where the account of the syncer reads Secrets that pods and volumes need.",
        requested=array("Namespaces that the syncer needs.", namespace, most=most),
        granted=array(
            "Namespaces in which a RoleBinding of the manager lets the syncer read Secrets.",
            namespace,
            most=most,
        ),
        refused=array("Requested namespaces that are not granted.", refused, most=most),
    )


# ResourceLeasingPolicy


def policy_definition() -> Json:
    """Return the CustomResourceDefinition of ResourceLeasingPolicy, for worker clusters."""
    schema = obj(
        "Which nodes and resources of this cluster its owner lends to a computing cluster, when,"
        " and how they are reclaimed.",
        spec=_policy_spec(),
        status=_policy_status(),
    )
    columns = (
        _column("Cluster", ".spec.cluster"),
        _column("Phase", ".status.phase"),
        _column("Active", ".status.activeTimeWindow", type_="boolean"),
        _column("Nodes", ".status.leasedNodes", type_="integer", wide=True),
        _column("Zone", ".spec.timeZone", wide=True),
        _column("Next", ".status.nextTransitionTime", wide=True),
        _column("Age", ".metadata.creationTimestamp", type_="date"),
    )
    return _definition(RESOURCE_LEASING_POLICIES, "rlp", schema, columns)


def _policy_spec() -> Json:
    return obj(
        "The desired state of the policy.",
        required=("cluster",),
        cluster=text("The name of the ClusterBinding in the computing cluster.", minLength=1),
        nodeSelector=node_selector(
            "Which nodes are lent, of those that the binding selects; all, if it is not set."
        ),
        timeWindows=array(
            "When the nodes are lent; always, if there is no window.", _time_window(), most=256
        ),
        timeZone=text(
            "The IANA time zone of the windows, such as Europe/Berlin; if it is not set, that of"
            " the syncer.",
            rule(
                f"self == '' || self in [{', '.join(map(repr, sorted(zone_names())))}]",
                ZONE_HINT,
                shown="self",
            ),
            maxLength=64,
        ),
        resourceLimits=array(
            "How much of each resource of a node is lent; of a resource without a limit, everything"
            " that other pods leave over.",
            _resource_limit(),
            most=512,
        ),
        forceReclaim=flag(
            "Evict the pods of nodes that are reclaimed. If it is not set, running pods stay, and"
            " no new pods are admitted."
        ),
        gracefulReclaimPeriodSeconds=number(
            "How long pods may run, after the reclaim of their node has begun, before they are"
            " evicted."
        ),
        forceReclaimDeadlineSeconds=number(
            "How long evictions respect disruption budgets, from the end of the grace period;"
            " pods that remain after that are deleted. 300, if it is not set."
        ),
        maxEvictionsPerMinute=number(
            "The maximum number of pods that are evicted in a minute; no limit, if it is not set.",
            least=1,
        ),
        coolDownSeconds=number(
            "How long a node is not lent again after pods were evicted from it, so that frequent"
            " changes of the policy do not cause repeated evictions."
        ),
        reclaim=obj(
            "How nodes are reclaimed.",
            respectTolerations=flag(
                "Pods that tolerate the taint of a closed window stay for as long as they tolerate"
                " it, also with forceReclaim. The default is true; with false, the policy alone"
                " decides when pods leave."
            ),
        ),
    )


def _time_window() -> Json:
    time_rule = rule(
        f"self.matches('^{TIME_OF_DAY}$')",
        TIME_HINT,
        shown="self",
    )
    day = text(
        "Monday to Sunday, in English; upper and lower case are the same.",
        rule(
            f"self.lowerAscii() in {list(DAYS)}",
            DAY_HINT,
            shown="self",
        ),
        maxLength=64,
    )
    return obj(
        "A part of the day, on some days of the week.",
        required=("start", "end"),
        start=text("The first minute, as HH:MM.", time_rule, maxLength=64),
        end=text(
            "The last minute, as HH:MM. If it is before the start, the window ends on the next"
            " day, and belongs to the day on which it starts.",
            time_rule,
            maxLength=64,
        ),
        days=array("The days of the week; every day, if there is none in the list.", day, most=64),
    )


def _resource_limit() -> Json:
    return obj(
        "How much of a resource is lent; with a quantity and a percentage, the smaller one.",
        required=("resource",),
        resource=text("The resource, such as cpu, memory or nvidia.com/gpu.", minLength=1),
        quantity=quantity("At most this amount; 0 lends none."),
        percent=number(
            "At most this percentage of the amount that the pods of this cluster leave over.",
            least=1,
            most=100,
        ),
    )


def _policy_status() -> Json:
    return obj(
        "The observed state of the policy.",
        phase=text("Pending, Active, Inactive or Failed."),
        conditions=conditions(
            "Conditions of the policy: whether it is valid, whether it lends nodes."
        ),
        lastAppliedTime=time("When the phase last changed."),
        activeTimeWindow=flag("Whether the policy lends nodes at present."),
        observedGeneration=number(
            "The generation of the object that the status describes.", wide=True
        ),
        nextTransitionTime=time("When the next time window opens or closes."),
        leasedNodes=number("The number of nodes that the policy lends."),
        forceReclaimTime=time(
            "Since when the policy reclaims nodes with forceReclaim, if it does."
        ),
        reclaim=_reclaim_status(),
    )


def _reclaim_status() -> Json:
    eviction = obj(
        "A pod that was evicted.",
        namespace=text("The namespace of the pod in the computing cluster."),
        name=text("The name of the pod."),
        node=text("The virtual node that the pod ran on."),
        time=time("When the pod was evicted."),
        reason=text("The reason of the eviction, in one word."),
        message=text("The reason of the eviction, in a sentence."),
    )
    node = obj(
        "A virtual node that is being reclaimed.",
        name=text("The name of the virtual node."),
        cause=text("Why the node is reclaimed, in one word."),
        phase=text("The phase of the reclaim: Notice, Held, Evicting or Forcing."),
        since=time("Since when the node admits no new pods."),
        pending=number("The number of pods of the node that have to be evicted."),
    )
    pod = obj(
        "A pod that still runs on a node that is being reclaimed.",
        namespace=text("The namespace of the pod in the computing cluster."),
        name=text("The name of the pod."),
        node=text("The virtual node that the pod runs on."),
        reason=text(
            "Why the pod still runs, in one word: Grace, Tolerates, ToleratesForNow, NotForced,"
            " Pace, Budget, Retry or Terminating."
        ),
        until=time("Until when that reason can delay the eviction."),
    )
    return obj(
        f"The progress of the present or the last reclaim. Lists contain at most {SHOWN} entries;"
        " numbers count all.",
        cause=text("The cause of the reclaim, in one word."),
        startTime=time("Since when the nodes admit no new pods."),
        evictionTime=time("When the grace period ends, and evictions start."),
        deadlineTime=time("When disruption budgets are no longer respected."),
        completionTime=time("When the reclaim was completed."),
        pendingNodes=number("Virtual nodes that are not reclaimed yet."),
        pending=number("Pods that have to be evicted."),
        evicted=number("Pods that were evicted."),
        blocked=number("Pods whose eviction a disruption budget does not allow at present."),
        nodes=array("Virtual nodes that are not reclaimed yet.", node, most=100),
        pods=array("Pods that still run; those that are evicted first come first.", pod, most=100),
        lastEvictions=array("The latest evictions.", eviction, most=100),
    )


# Parts of every definition


def _column(name: str, path: str, *, type_: str = "string", wide: bool = False) -> Json:
    column: Json = {"name": name, "type": type_, "jsonPath": path}
    return column | ({"priority": 1} if wide else {})


def _definition(
    resource: Resource[ObjectT], short: str, schema: Json, columns: tuple[Json, ...]
) -> Json:
    schema["properties"] = {
        "apiVersion": text("The version of this representation."),
        "kind": text("The kind of this object."),
        "metadata": {"type": "object"},
        **schema["properties"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{resource.plural}.{resource.group}",
            "labels": {APP_PART_OF: DEFAULT.product},
        },
        "spec": {
            "group": resource.group,
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": [short],
                "categories": [CATEGORY],
            },
            "scope": "Cluster",
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": list(columns),
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }
