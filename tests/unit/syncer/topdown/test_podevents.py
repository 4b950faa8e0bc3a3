"""A kubelet's words with the names that users know."""

from __future__ import annotations

from kubeocean.api import naming
from kubeocean.runtime.codec import decode_object, encode
from kubeocean.syncer.podviews import PhysicalPod, VirtualPod
from kubeocean.syncer.topdown.podevents import translate

ENV = [{"configMapRef": {"name": "cfg"}}, {"secretRef": {"name": "key"}}]
VPOD = decode_object(
    VirtualPod,
    encode(
        {
            "metadata": {"name": "web", "namespace": "team", "uid": "u1"},
            "spec": {"containers": [{"name": "c", "envFrom": ENV}]},
        }
    ),
    keep_raw=True,
)
NAME = naming.physical_name("web", "team")
PPOD = decode_object(
    PhysicalPod,
    encode({"metadata": {"name": NAME, "namespace": "mount", "uid": "p1"}}),
    keep_raw=True,
)


def said(message: str) -> str:
    return translate(message, VPOD, PPOD)


def test_the_pod_is_called_by_its_own_name() -> None:
    assert said(f"failed in {NAME}_mount(p1)") == "failed in web_team(u1)"
    assert said(f"pod mount/{NAME} is bad") == "pod team/web is bad"
    assert said("Started container c") == "Started container c"


def test_copies_are_called_as_their_originals() -> None:
    config, secret = naming.physical_name("cfg", "team"), naming.physical_name("key", "team")
    assert said(f'configmap "{config}" not found') == 'configmap "cfg" not found'
    assert said(f'object "mount"/"{secret}" not registered') == 'object "team"/"key" not registered'
    assert said(f"secret mount/{secret}") == "secret team/key"
