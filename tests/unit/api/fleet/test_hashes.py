"""Hashes of a fleet's objects: KubeFleet's, digit by digit."""

from __future__ import annotations

import base64
import hashlib

from kubeocean.api.fleet import hashes
from kubeocean.api.fleet.placements import NamespacedName


def test_a_hash_is_of_compact_sorted_json() -> None:
    expected = hashlib.sha256('{"a":[1,"ü"],"b":{"c":null,"d":true}}'.encode()).hexdigest()
    assert hashes.content_hash({"b": {"d": True, "c": None}, "a": [1, "ü"]}) == expected


def test_the_number_of_clusters_does_not_change_the_hash_of_a_policy() -> None:
    policy = {"placementType": "PickN", "numberOfClusters": 3}
    assert hashes.policy_hash(policy) == hashes.policy_hash(policy | {"numberOfClusters": 4})
    assert hashes.policy_hash(policy) == hashes.policy_hash({"placementType": "PickN"})
    assert hashes.policy_hash(policy) != hashes.policy_hash({"placementType": "PickAll"})
    assert policy["numberOfClusters"] == 3


def test_hashes_of_override_snapshots_are_of_the_list_or_of_null() -> None:
    # Go encodes a list without entries as null
    assert hashes.names_hash(()) == hashlib.sha256(b"null").hexdigest()
    assert hashes.names_hash(("cro-1-0", "cro-2-3")) == (
        hashlib.sha256(b'["cro-1-0","cro-2-3"]').hexdigest()
    )
    assert hashes.names_hash((NamespacedName(name="ro-1-0", namespace="web"),)) == (
        hashlib.sha256(b'[{"name":"ro-1-0","namespace":"web"}]').hexdigest()
    )


def test_hashes_in_specs_are_base64_of_the_digits() -> None:
    digest = hashes.content_hash({})
    assert base64.b64decode(hashes.hash_bytes(digest)) == digest.encode()


def test_a_hash_escapes_what_the_encoder_of_go_escapes() -> None:
    expected = hashlib.sha256(rb'{"a":"\u003c\u003e\u0026\u2028\u2029"}').hexdigest()
    assert hashes.content_hash({"a": "<>&\u2028\u2029"}) == expected
