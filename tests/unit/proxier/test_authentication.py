"""Callers of client certificates."""

from __future__ import annotations

from kubeocean.proxier.authentication import Caller, from_certificate


def test_the_subject_of_a_certificate_names_user_and_groups() -> None:
    certificate = {
        "subject": (
            (("organizationName", "system:masters"),),
            (("organizationName", "others"),),
            (("commonName", "kube-apiserver"),),
        )
    }
    assert from_certificate(certificate) == Caller(
        "kube-apiserver", ("system:masters", "others", "system:authenticated")
    )


def test_a_certificate_without_exactly_one_common_name_has_no_caller() -> None:
    assert from_certificate(None) is None
    assert from_certificate({}) is None
    assert from_certificate({"subject": ((("organizationName", "x"),),)}) is None
    twice = {"subject": ((("commonName", "a"),), (("commonName", "b"),))}
    assert from_certificate(twice) is None
