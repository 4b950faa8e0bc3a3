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
from kubeocean.runtime.objects import Json, ObjectT, Resource

__all__ = ["binding_definition", "definitions", "policy_definition", "render", "write"]

_DIRECTORY: Final = Path(__file__).parent / "crds"
_NOTE: Final = "# Made from kubeocean.api.crds by scripts/crds; do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """A YAML dumper without aliases: people read these files."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def definitions() -> tuple[Json, ...]:
    """Both CustomResourceDefinitions: for the computing cluster, for the worker."""
    return binding_definition(), policy_definition()


def render() -> dict[str, str]:
    """The definitions as YAML, by file name."""
    return {
        f"{each['spec']['names']['plural']}.yaml": _NOTE
        + yaml.dump(each, Dumper=_Dumper, sort_keys=False, width=100)
        for each in definitions()
    }


def write(directory: Path = _DIRECTORY) -> None:
    """Put the definitions where they are checked in."""
    for name, content in render().items():
        (directory / name).write_text(content, encoding="utf-8")


# ClusterBinding


def binding_definition() -> Json:
    """Return the definition of ClusterBinding, for the computing cluster."""
    unchanged = rule(
        "!has(oldSelf.spec) || (has(self.spec) && self.spec.clusterID == oldSelf.spec.clusterID)",
        "cannot be changed, because virtual nodes are named after it;"
        " delete the binding and make another",
        fieldPath=".spec.clusterID",
        reason="FieldValueForbidden",
    )
    kept = rule(
        "!has(oldSelf.spec) || !has(oldSelf.spec.mountNamespace)"
        " || oldSelf.spec.mountNamespace == '' || (has(self.spec)"
        " && has(self.spec.mountNamespace)"
        " && self.spec.mountNamespace == oldSelf.spec.mountNamespace)",
        "cannot be changed, because pods run there that would be left behind;"
        " delete the binding and make another",
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
        "The Secret of this cluster whose key `kubeconfig` reaches the worker.",
        rule(
            "has(self.name) && self.name != '' && has(self.namespace) && self.namespace != ''",
            "must have the name and the namespace of the Secret with the kubeconfig of the worker",
        ),
        name=text("Its name."),
        namespace=text("Its namespace."),
    )
    return obj(
        "What is wanted.",
        required=("clusterID", "secretRef"),
        clusterID=text(
            "Identifies the worker. It is part of the names of virtual nodes, and so unique and"
            " never changed.",
            maxLength=CLUSTER_ID_LONGEST,
            pattern=f"^{CLUSTER_ID}$",
        ),
        secretRef=secret | {"x-kubernetes-map-type": "atomic"},
        nodeSelector=node_selector(
            "Which nodes of the worker may become virtual nodes; all, if there is none."
        ),
        mountNamespace=text(
            "The namespace of the worker that receives everything; it must exist. Once it is set it"
            " is never changed."
        ),
        serviceNamespaces=array(
            "Namespaces whose Services are wanted in the worker.", {"type": "string"}
        ),
        disableNodeDefaultTaint=flag(
            f"Virtual nodes do not get the taint {DEFAULT.taint_vnode}:NoSchedule."
        ),
        podPriorityClassName=text(
            f"The PriorityClass of pods in the worker; {DEFAULT.priority_class}, which is made"
            " there, if there is none."
        ),
        runningDaemonsetByDefault=flag(
            "Pods of DaemonSets run in the worker, also without the annotation"
            f" {DEFAULT.running_daemonset}."
        ),
        directScheduling=flag(
            "Pods are put on their node in the worker without asking its scheduler."
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
        "What of the worker's machines pods may reach into. A pod that asks for what is denied is"
        " not created in the worker, and an event on it says why.",
        level=text(
            "The level of Kubernetes' Pod Security Standards that pods have to meet: privileged,"
            " baseline, which denies everything below, or restricted. Where a single privilege says"
            " otherwise, the stricter one counts. The default is privileged.",
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
        "What became of it.",
        phase=text("Pending, Ready or Failed.", enum=["", *(each.value for each in BindingPhase)]),
        conditions=conditions("Whether it works, whether the worker answers, and why not."),
        lastSyncTime=time("When it became Ready."),
        observedGeneration=number("The generation that the status is about.", wide=True),
        virtualNodes=number("How many virtual nodes it has."),
    )


# ResourceLeasingPolicy


def policy_definition() -> Json:
    """Return the definition of ResourceLeasingPolicy, for worker clusters."""
    schema = obj(
        "What the owner of this cluster lends to a computing cluster, when, and how it is taken"
        " back.",
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
        "What the owner wants.",
        required=("cluster",),
        cluster=text("The name of the ClusterBinding in the computing cluster.", minLength=1),
        nodeSelector=node_selector(
            "Which nodes are lent, of those that the binding may use; all, if there is none."
        ),
        timeWindows=array(
            "When they are lent; always, if there is none.", _time_window(), most=256
        ),
        timeZone=text(
            "The IANA time zone of the windows, such as Europe/Berlin; that of the syncer's"
            " process, if there is none.",
            rule(
                f"self == '' || self in [{', '.join(map(repr, sorted(zone_names())))}]",
                ZONE_HINT,
                shown="self",
            ),
            maxLength=64,
        ),
        resourceLimits=array(
            "How much of a node is lent; of what is not listed, all that is left over.",
            _resource_limit(),
            most=512,
        ),
        forceReclaim=flag(
            "When nodes are taken back, pods that do not leave are evicted. Without it they stay,"
            " and no new ones come."
        ),
        gracefulReclaimPeriodSeconds=number(
            "How long pods may stay after their node is taken back, before they are evicted."
        ),
        forceReclaimDeadlineSeconds=number(
            "How long evictions respect disruption budgets, from the end of the grace period; what"
            " is still there after that is deleted. 300, if there is none."
        ),
        maxEvictionsPerMinute=number(
            "At most so many pods are evicted in a minute; any number, if there is none.", least=1
        ),
        coolDownSeconds=number(
            "How long a node that pods were evicted from is not lent again, so that changes in"
            " quick succession do not evict again and again."
        ),
        reclaim=obj(
            "How nodes are taken back.",
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
            "The last minute, as HH:MM. Before the start it means that of the next day, and the"
            " whole window belongs to the day that it starts on.",
            time_rule,
            maxLength=64,
        ),
        days=array("On which days; every day, if there is none.", day, most=64),
    )


def _resource_limit() -> Json:
    return obj(
        "How much of a resource is lent; with a quantity and a percentage, the smaller one.",
        required=("resource",),
        resource=text("The resource, such as cpu, memory or nvidia.com/gpu.", minLength=1),
        quantity=quantity("At most this amount; 0 lends none."),
        percent=number(
            "At most this percentage of what the pods of this cluster leave over.",
            least=1,
            most=100,
        ),
    )


def _policy_status() -> Json:
    return obj(
        "What became of it.",
        phase=text("Pending, Active, Inactive or Failed."),
        conditions=conditions("Whether it is well-formed, whether it lends, and why not."),
        lastAppliedTime=time("When the phase changed last."),
        activeTimeWindow=flag("Whether it lends now."),
        observedGeneration=number("The generation that the status is about.", wide=True),
        nextTransitionTime=time("When that changes next."),
        leasedNodes=number("How many nodes it lends."),
        forceReclaimTime=time("Since when it takes back by force, if it does."),
        reclaim=_reclaim_status(),
    )


def _reclaim_status() -> Json:
    eviction = obj(
        "A pod that had to go.",
        namespace=text("Its namespace in the computing cluster."),
        name=text("Its name."),
        node=text("The virtual node that it ran on."),
        time=time("When it was evicted."),
        reason=text("Why, in one word."),
        message=text("Why, in a sentence."),
    )
    node = obj(
        "A virtual node that is on its way back.",
        name=text("Its name."),
        cause=text("Why it is taken back, in one word."),
        phase=text("How far it is: Notice, Held, Evicting or Forcing."),
        since=time("Since when no new pods are let in."),
        pending=number("How many of its pods still have to go."),
    )
    pod = obj(
        "A pod that is still there.",
        namespace=text("Its namespace in the computing cluster."),
        name=text("Its name."),
        node=text("The virtual node that it runs on."),
        reason=text(
            "What keeps it, in one word: Grace, Tolerates, ToleratesForNow, NotForced, Pace,"
            " Budget, Retry or Terminating."
        ),
        until=time("Until when that can keep it."),
    )
    return obj(
        "How taking back goes, or went the last time. Lists name the first of many; numbers count"
        " all.",
        cause=text("Why, in one word."),
        startTime=time("When no new pods were let in any more."),
        evictionTime=time("When the grace period ends, and evictions start."),
        deadlineTime=time("When disruption budgets are no longer respected."),
        completionTime=time("When it was over."),
        pendingNodes=number("Virtual nodes that are not back yet."),
        pending=number("Pods that still have to go."),
        evicted=number("Pods that were evicted."),
        blocked=number("Pods that a disruption budget holds back."),
        nodes=array("Virtual nodes that are not back yet.", node, most=100),
        pods=array("Pods that are still there, those that have to go first.", pod, most=100),
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
