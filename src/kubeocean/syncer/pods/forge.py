"""Physical pods: the pod that runs in the worker for a pod of the computing cluster.

`forge` makes the whole pod. Fields that no function of this module handles are copied as they are.
The worker's service account, API server, Services and priorities are kept out of the pod; names of
copies, DNS, environment and downward API are such that a container sees the computing cluster.

The pod runs on the one node that its virtual node stands for. The fields that led to that node
(selectors, affinity, spreading, gates, priority) are dropped: in the worker they would be checked
against other nodes and other pods. Tolerations are kept.
"""

from __future__ import annotations

from typing import Final

from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.dns import hostname, translate_dns, translate_hosts
from kubeocean.syncer.pods.env import inherited, translate_env
from kubeocean.syncer.pods.forge_context import Context, Privileges, Refused
from kubeocean.syncer.pods.metadata import digest, forge_metadata
from kubeocean.syncer.pods.pod_security import problems
from kubeocean.syncer.pods.volumes import translate_volumes, volume_problems

__all__ = [
    "DROPPED",
    "IMAGES",
    "RESOURCES",
    "TOLERATIONS",
    "check",
    "forge",
    "image_of",
    "place",
    "spec_record",
]

DROPPED: Final = frozenset(
    {
        "affinity",
        "nodeName",
        "nodeSelector",
        "schedulerName",
        "schedulingGates",
        "schedulingGroup",
        "topologySpreadConstraints",
        "workloadRef",
        # The worker's admission sets these from the PriorityClass and refuses any others.
        "priority",
        "preemptionPolicy",
        # The same holds for the RuntimeClass, which has its own overhead in each cluster.
        "overhead",
    }
)


def place(context: Context) -> Json:
    """Return the fields of a physical pod's spec that bind it to its node, and its PriorityClass.

    The pod carries the binding's node selector, so that scheduler and kubelets of the worker check
    the selector, too: an admission policy of the worker may require it.
    """
    ours: Json = {"priorityClassName": context.priority_class or context.domain.priority_class}
    terms: list[Json] = [dict(term) for term in context.node_terms]
    if context.direct_scheduling:
        ours["nodeName"] = context.node
    else:
        on_node = {"key": "metadata.name", "operator": "In", "values": [context.node]}
        terms = [
            term | {"matchFields": [on_node, *term.get("matchFields", ())]}
            for term in terms or [{}]
        ]
    if terms:
        required = {"nodeSelectorTerms": terms}
        node_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        ours["affinity"] = {"nodeAffinity": node_affinity}
    return ours


# The parts of a spec that are recorded in a physical pod's annotation
IMAGES: Final = "images"
RESOURCES: Final = "resources"
TOLERATIONS: Final = "tolerations"

# Never copied: service accounts are the worker's own, and ephemeral containers are added later.
_NOT_COPIED: Final = DROPPED | {"serviceAccount", "serviceAccountName", "ephemeralContainers"}


def check(pod: Json, privileges: Privileges) -> None:
    """Raise Refused if no worker can run a virtual pod, whichever objects are copied for it."""
    for problem in (*problems(pod, privileges), *volume_problems(pod)):
        raise problem
    if claims := pod["spec"].get("resourceClaims"):
        message = "devices that are claimed by ResourceClaims cannot be lent; not supported"
        raise Refused("spec.resourceClaims", message, value=claims[0].get("name"))


def forge(pod: Json, context: Context) -> Json:
    """Return the manifest of the physical pod of a virtual pod.

    :raises Refused: `check` refuses the pod, or its annotations and ours together are too large.
    """
    check(pod, context.privileges)
    spec: Json = pod["spec"]
    common = inherited(pod, context)
    result = {key: value for key, value in spec.items() if key not in _NOT_COPIED}
    result |= place(context)
    result |= {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": spec.get("hostname") or hostname(pod["metadata"]["name"]),
        **translate_dns(pod, context),
    }
    lists = {
        "volumes": translate_volumes(pod, context),
        "hostAliases": translate_hosts(pod, context),
        "imagePullSecrets": _pull_secrets(spec, context),
        "initContainers": [translate_env(pod, c, context, common) for c in _init(spec)],
        "containers": [translate_env(pod, c, context, common) for c in spec["containers"]],
    }
    for key, value in lists.items():
        result.pop(key, None)
        if value:
            result[key] = value
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": forge_metadata(pod, context, spec_record(pod)),
        "spec": result,
    }


def spec_record(pod: Json) -> dict[str, str]:
    """Return digests of the parts of the spec that may change while a pod runs.

    The image of each container has a digest of its own: where one image changed, the others stay as
    the worker's admission may have rewritten them.
    """
    spec: Json = pod["spec"]
    containers = [*_init(spec), *spec["containers"]]
    return {
        IMAGES: digest({c["name"]: c.get("image") for c in containers}),
        RESOURCES: digest({c["name"]: c.get("resources") for c in containers}),
        TOLERATIONS: digest(spec.get("tolerations") or []),
        **{image_of(c["name"]): digest(c.get("image")) for c in containers},
    }


def image_of(container: str) -> str:
    """Return the key of a container's image in `spec_record`."""
    return f"{IMAGES}/{container}"


def _init(spec: Json) -> list[Json]:
    return spec.get("initContainers") or []


def _pull_secrets(spec: Json, context: Context) -> list[Json]:
    """Return the image pull Secrets that exist; a kubelet ignores missing ones, too."""
    named = (each.get("name", "") for each in spec.get("imagePullSecrets") or ())
    return [
        {"name": context.names.secrets[name]} for name in named if name in context.names.secrets
    ]
