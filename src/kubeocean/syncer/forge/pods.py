"""Physical pods: what runs in the worker for a pod of the computing cluster.

`forge` makes the whole pod. What is not named here is copied as it is. The worker's own service
account, API server, Services and priorities stay out of it; names of copies, DNS, environment and
downward API are such that a container cannot tell that it runs elsewhere.
"""

from __future__ import annotations

from typing import Final

from kubeocean.runtime.objects import Json
from kubeocean.syncer.forge.podcontext import Context, Privileges, Refused
from kubeocean.syncer.forge.poddns import hostname, translate_dns, translate_hosts
from kubeocean.syncer.forge.podenv import inherited, translate_env
from kubeocean.syncer.forge.podmetadata import digest, forge_metadata
from kubeocean.syncer.forge.podprivileges import problems
from kubeocean.syncer.forge.podscheduling import LEFT_BEHIND, place
from kubeocean.syncer.forge.podvolumes import translate_volumes, volume_problems

__all__ = ["IMAGES", "RESOURCES", "TOLERATIONS", "check", "forge", "spec_record"]

# The parts of a spec that are remembered
IMAGES: Final = "images"
RESOURCES: Final = "resources"
TOLERATIONS: Final = "tolerations"

# Never copied: the account is the worker's below, and containers to debug with come later.
_OURS: Final = LEFT_BEHIND | {"serviceAccount", "serviceAccountName", "ephemeralContainers"}


def check(pod: Json, privileges: Privileges) -> None:
    """Raises Refused if a pod cannot run below as it is, whatever is copied for it."""
    for problem in (*problems(pod["spec"], privileges), *volume_problems(pod)):
        raise problem
    if claims := pod["spec"].get("resourceClaims"):
        message = "devices that are claimed by ResourceClaims cannot be lent; not supported"
        raise Refused("spec.resourceClaims", message, value=claims[0].get("name"))


def forge(pod: Json, context: Context) -> Json:
    """The physical pod of a virtual one; `check`s it.

    Also refused is a pod whose annotations leave no room for ours.
    """
    check(pod, context.privileges)
    spec: Json = pod["spec"]
    around = inherited(pod, context)
    then = {key: value for key, value in spec.items() if key not in _OURS}
    then |= place(context)
    then |= {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": spec.get("hostname") or hostname(pod["metadata"]["name"]),
        **translate_dns(pod, context),
    }
    lists = {
        "volumes": translate_volumes(pod, context),
        "hostAliases": translate_hosts(pod, context),
        "imagePullSecrets": _pull_secrets(spec, context),
        "initContainers": [translate_env(pod, c, context, around) for c in _init(spec)],
        "containers": [translate_env(pod, c, context, around) for c in spec["containers"]],
    }
    for key, value in lists.items():
        then.pop(key, None)
        if value:
            then[key] = value
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": forge_metadata(pod, context, spec_record(pod)),
        "spec": then,
    }


def spec_record(pod: Json) -> dict[str, str]:
    """What is wanted of those parts of the spec that may change while a pod runs."""
    spec: Json = pod["spec"]
    containers = [*_init(spec), *spec["containers"]]
    return {
        IMAGES: digest({c["name"]: c.get("image") for c in containers}),
        RESOURCES: digest({c["name"]: c.get("resources") for c in containers}),
        TOLERATIONS: digest(spec.get("tolerations") or []),
    }


def _init(spec: Json) -> list[Json]:
    return spec.get("initContainers") or []


def _pull_secrets(spec: Json, context: Context) -> list[Json]:
    """Those that exist; a kubelet does without the others, too."""
    named = (each.get("name", "") for each in spec.get("imagePullSecrets") or ())
    return [
        {"name": context.names.secrets[name]} for name in named if name in context.names.secrets
    ]
