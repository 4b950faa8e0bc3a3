"""AdmissionReviews: the requests that API servers send, and the answers to them.

Any client can send any body to a webhook's port: a body that is not a complete AdmissionReview is a
`BadReview`, whose text names the wrong field and repeats no content.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from kubeocean.errors import KubeoceanError
from kubeocean.runtime.objects import GroupVersionKind, Json, ObjectT

__all__ = [
    "ALLOWED",
    "REVIEW_VERSIONS",
    "AdmissionDecision",
    "AdmissionRequest",
    "BadReview",
    "Operation",
    "Review",
    "UserInfo",
    "aggregate",
    "denied",
]

REVIEW_VERSIONS: Final = ("v1", "v1beta1")
_API_VERSIONS: Final = frozenset(f"admission.k8s.io/{version}" for version in REVIEW_VERSIONS)
_KIND: Final = "AdmissionReview"
_LONGEST_MESSAGE: Final = 16 * 1024  # characters; the API server repeats the text to its user
_FORBIDDEN: Final = 403


class BadReview(KubeoceanError):
    """A body that is not an AdmissionReview, or one whose object cannot be read."""


class Operation(StrEnum):
    """Operations on objects that admission webhooks review."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    CONNECT = "CONNECT"


class UserInfo(msgspec.Struct, frozen=True, gc=False):
    """The user who sent a request to the API server."""

    username: str = ""
    groups: tuple[str, ...] = ()


class AdmissionRequest(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True):
    """The request in an AdmissionReview; `request_kind` is the kind that the user wrote."""

    uid: str
    kind: GroupVersionKind
    operation: Operation
    request_kind: GroupVersionKind | None = None
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def written_kind(self) -> GroupVersionKind:
        """The kind of the object in the API version that the user wrote."""
        return self.request_kind or self.kind

    def decoded(self, type_: type[ObjectT]) -> ObjectT:
        """Return the object of the request as it would be stored, decoded as `type_`.

        :raises BadReview: the request has no object, or its fields have other types.
        """
        return _decoded(self.object, type_, "request.object")

    def old(self, type_: type[ObjectT]) -> ObjectT:
        """Return the object that is stored now, decoded as `type_`.

        :raises BadReview: the request has no old object, or its fields have other types.
        """
        return _decoded(self.old_object, type_, "request.oldObject")

    def document(self) -> Json:
        """Return the object of the request as it would be stored, with all of its fields.

        :raises BadReview: the request has no object.
        """
        return _document(self.object, "request.object")

    def old_document(self) -> Json:
        """Return the object that is stored now, with all of its fields.

        :raises BadReview: the request has no old object.
        """
        return _document(self.old_object, "request.oldObject")


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """Answer to an admission request; `patch` holds JSON Patch operations for the object."""

    allowed: bool
    message: str = ""
    patch: tuple[Json, ...] = ()


ALLOWED: Final = AdmissionDecision(True)


def denied(message: str) -> AdmissionDecision:
    """Return a Decision that denies the request, with a message for the user."""
    return AdmissionDecision(False, message)


class _Envelope(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None


_decode_envelope: Final = msgspec.json.Decoder(_Envelope).decode


@dataclass(frozen=True, slots=True)
class Review:
    """A received AdmissionReview."""

    api_version: str
    request: AdmissionRequest

    @classmethod
    def parse(cls, body: bytes) -> Review:
        """Parse the body of an HTTP request.

        :raises BadReview: the body is not an AdmissionReview with a request.
        """
        try:
            envelope = _decode_envelope(body)
        except msgspec.ValidationError as error:
            raise BadReview(f"not an AdmissionReview: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadReview("not an AdmissionReview: the body is not JSON") from None
        if envelope.api_version not in _API_VERSIONS or envelope.kind != _KIND:
            raise BadReview("not an AdmissionReview: apiVersion or kind is wrong")
        if envelope.request is None or not envelope.request.uid:
            raise BadReview("not an AdmissionReview: request.uid is missing")
        return cls(envelope.api_version, envelope.request)

    def answer(self, decision: AdmissionDecision) -> bytes:
        """Return the AdmissionReview, as JSON, that answers this review with `decision`."""
        response: Json = {"uid": self.request.uid, "allowed": decision.allowed}
        if not decision.allowed:
            message = decision.message[:_LONGEST_MESSAGE]
            response["status"] = {"code": _FORBIDDEN, "reason": "Forbidden", "message": message}
        elif decision.patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(msgspec.json.encode(decision.patch)).decode()
        return msgspec.json.encode(
            {"apiVersion": self.api_version, "kind": _KIND, "response": response}
        )


def aggregate(problems: list[str]) -> str:
    """Join problems as Go prints aggregate errors: a single one as is, several in brackets."""
    unique = list(dict.fromkeys(problems))
    return unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]"


def _decoded(raw: msgspec.Raw, type_: type[ObjectT], field: str) -> ObjectT:
    try:
        return msgspec.json.decode(raw, type=type_)
    except msgspec.ValidationError as error:
        raise BadReview(f"{field} cannot be read: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadReview(f"{field} cannot be read: it is not JSON") from None


def _document(raw: msgspec.Raw, field: str) -> Json:
    try:
        document: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadReview(f"{field} cannot be read: it is not JSON") from None
    if not isinstance(document, dict):
        raise BadReview(f"{field} cannot be read: it is not an object")
    return document
