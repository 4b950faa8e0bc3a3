"""Messages of a kubelet, with the names of the virtual objects."""

from __future__ import annotations

from kubeocean.api import naming
from kubeocean.runtime.objects import decode_object, encode
from kubeocean.syncer.pods.events import translate
from kubeocean.syncer.pods.views import PhysicalPod, VirtualPod

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


def translated(message: str) -> str:
    return translate(message, VPOD, PPOD)


def test_a_pod_in_a_message_has_its_virtual_name() -> None:
    assert translated(f"failed in {NAME}_mount(p1)") == "failed in web_team(u1)"
    assert translated(f"pod mount/{NAME} is bad") == "pod team/web is bad"
    assert translated("Started container c") == "Started container c"


def test_copies_in_a_message_have_the_names_of_their_originals() -> None:
    config, secret = naming.physical_name("cfg", "team"), naming.physical_name("key", "team")
    assert translated(f'configmap "{config}" not found') == 'configmap "cfg" not found'
    assert (
        translated(f'object "mount"/"{secret}" not registered')
        == 'object "team"/"key" not registered'
    )
    assert translated(f"secret mount/{secret}") == "secret team/key"
