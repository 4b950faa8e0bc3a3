"""The levels of a binding allow exactly the pods that a real API server's PodSecurity allows."""

from __future__ import annotations

import uuid

import pytest

from kubeocean.api.bindings import BindingSpec, ClusterBinding, PodPrivileges, PodSecurityLevel
from kubeocean.errors import Forbidden
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NAMESPACES, PODS
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.pod_security import privileges_of, problems
from support.pod_security_cases import CASES, restricted_pod
from support.wait import until


async def admitted(client: Client, namespace: str, pod: Json) -> bool:
    """Whether the API server's admission lets a pod into a namespace."""
    try:
        await client.create(PODS, pod, namespace=namespace, dry_run=True)
    except Forbidden as error:
        assert "violates PodSecurity" in str(error), error
        return False
    return True


@pytest.mark.parametrize("level", PodSecurityLevel)
async def test_a_level_allows_the_pods_that_an_api_server_admits(
    client: Client, level: PodSecurityLevel
) -> None:
    namespace = f"pss-{uuid.uuid4().hex[:8]}"
    labels = {
        "pod-security.kubernetes.io/enforce": level.value,
        "pod-security.kubernetes.io/enforce-version": "v1.34",
    }
    await client.create(NAMESPACES, {"metadata": {"name": namespace, "labels": labels}})

    async def usable() -> bool:
        try:
            return await admitted(client, namespace, restricted_pod())
        except AssertionError:
            return False  # the namespace has no service account yet

    await until(usable)
    privileges = privileges_of(
        ClusterBinding(spec=BindingSpec(pod_privileges=PodPrivileges(level=level)))
    )
    differing = {
        case.name
        for case in CASES
        if await admitted(client, namespace, case.pod) != (not list(problems(case.pod, privileges)))
    }
    assert differing == set()
