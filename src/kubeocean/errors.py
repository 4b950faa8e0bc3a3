"""Every exception that Kubeocean raises on purpose.

    KubeoceanError
    ├── ApiError                  an API server refused a request, or did not answer
    │   ├── BadRequest 400        Unauthorized 401      Forbidden 403        NotFound 404
    │   ├── MethodNotAllowed 405  NotAcceptable 406     Conflict 409         AlreadyExists 409
    │   ├── Gone 410 (Expired)    RequestTooLarge 413   UnsupportedMediaType 415
    │   ├── Invalid 422           TooManyRequests 429   InternalError 500
    │   ├── ServiceUnavailable 503                      ServerTimeout 504 (and reason Timeout)
    │   └── Unreachable           no answer: refused, reset, timed out, not TLS
    │       └── ResponseTooLarge  an answer of more bytes than the client accepts
    ├── ConfigError               the user can fix it; names the field and the value
    ├── LocalError                a cluster on this machine could not be brought up
    ├── Refusal                   a request of a client was refused; carries the HTTP status
    └── InvariantError            a bug of ours; carries the evidence; never swallowed

`api_error` returns the ApiError for an HTTP status and a `Status` body.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "AlreadyExists",
    "ApiError",
    "BadRequest",
    "ConfigError",
    "Conflict",
    "Forbidden",
    "Gone",
    "InternalError",
    "Invalid",
    "InvariantError",
    "KubeoceanError",
    "LocalError",
    "MethodNotAllowed",
    "NotAcceptable",
    "NotFound",
    "Refusal",
    "RequestTooLarge",
    "ResponseTooLarge",
    "ServerTimeout",
    "ServiceUnavailable",
    "StatusCause",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
    "UnsupportedMediaType",
    "api_error",
    "is_status",
    "printable",
    "remedy_of",
]


_VALUE_SHOWN: Final = 256  # characters; enough to recognise a wrong value


def _short(text: str) -> str:
    """Return the beginning of a long text, with its length."""
    if len(text) <= _VALUE_SHOWN:
        return text
    return f"{text[:_VALUE_SHOWN]}… of {len(text)} characters"


class KubeoceanError(Exception):
    """Base class of the errors that Kubeocean raises on purpose; caught where a program ends."""


class ConfigError(KubeoceanError):
    """Invalid input that the user can correct. `field` is a path such as `contexts[0].cluster`,
    `source` the file or flag that contains the field.
    """

    def __init__(
        self, message: str, *, field: str = "", value: object = None, source: str = ""
    ) -> None:
        self.field = field
        self.value = value
        self.source = source
        where = f"{source}: " if source else ""
        what = f"{field}: " if field else ""
        shown = "" if value is None else f" (got {_short(repr(value))})"
        super().__init__(f"{where}{what}{message}{shown}")


class LocalError(KubeoceanError):
    """A cluster on this machine could not be started or stopped, or ended unexpectedly."""


class Refusal(KubeoceanError):
    """Refused request of a client; the client gets the message with this HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class InvariantError(KubeoceanError):
    """Violated invariant: a defect of Kubeocean. `evidence` are the facts for a bug report."""

    def __init__(self, message: str, **evidence: object) -> None:
        self.evidence = evidence
        shown = ", ".join(f"{name}={value!r}" for name, value in evidence.items())
        super().__init__(f"{message} [{shown}]" if shown else message)


class StatusCause(msgspec.Struct, frozen=True, gc=False):
    """Field that an API server rejected, with the reason."""

    reason: str = ""
    message: str = ""
    field: str = ""


class ApiError(KubeoceanError):
    """An API server refused or failed a request; `reason` is that of the server's Status."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        causes: tuple[StatusCause, ...] = (),
        retry_after_s: float | None = None,
        is_status: bool = True,
    ) -> None:
        super().__init__(message)
        self.is_status = is_status  # False: the body was no Status, so perhaps not an API server's
        self.status = status
        self.reason = reason or type(self).__name__
        self.causes = causes
        self.retry_after_s = retry_after_s


class BadRequest(ApiError):
    """400: the server could not interpret the request."""


class Unauthorized(ApiError):
    """401: the server does not accept the credential."""


class Forbidden(ApiError):
    """403: the server authenticated the client, and does not authorize the request."""


class NotFound(ApiError):
    """404: no such object, or no such resource.

    A 404 proves that an object does not exist only if `is_status` is true: a proxy in front of the
    server answers 404 with a page of its own, and API servers always send a Status.
    """


class MethodNotAllowed(ApiError):
    """405: the resource does not support this verb."""


class NotAcceptable(ApiError):
    """406: the server cannot answer with the requested content type."""


class Conflict(ApiError):
    """409: a precondition (resourceVersion, UID, field manager) did not hold."""


class AlreadyExists(ApiError):
    """409: an object of this name exists."""


class Gone(ApiError):
    """410: the requested resourceVersion was compacted; list again."""


class RequestTooLarge(ApiError):
    """413: the body is over the server's limit."""


class UnsupportedMediaType(ApiError):
    """415: the server does not accept this content type."""


class Invalid(ApiError):
    """422: validation failed; `causes` name the fields."""


class TooManyRequests(ApiError):
    """429: the client sends too many requests, or a disruption budget refuses an eviction."""


class InternalError(ApiError):
    """500 and other failures of the server or of a webhook behind it."""


class ServiceUnavailable(ApiError):
    """503: the server cannot serve the request now; retry later."""


class ServerTimeout(ApiError):
    """504: the server did not finish the request in time; a write may have happened or not."""


class Unreachable(ApiError):
    """The server did not answer. `sent` is False if the server cannot have received the request."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class ResponseTooLarge(Unreachable):
    """The answer, or one event of a watch, has more bytes than the client accepts."""


_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    406: NotAcceptable,
    409: Conflict,
    410: Gone,
    413: RequestTooLarge,
    415: UnsupportedMediaType,
    422: Invalid,
    429: TooManyRequests,
    503: ServiceUnavailable,
    504: ServerTimeout,
}

# Reasons win over the number: 409 is two things, and a slow storage is a ServerTimeout with 500.
_BY_REASON: Final[dict[str, type[ApiError]]] = {
    "AlreadyExists": AlreadyExists,
    "Expired": Gone,
    "ServerTimeout": ServerTimeout,
    "Timeout": ServerTimeout,
}


class _Details(msgspec.Struct, frozen=True, rename="camel"):
    causes: list[StatusCause] | None = None
    retry_after_seconds: float | None = None


class _Status(msgspec.Struct, frozen=True):
    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_decode_status = msgspec.json.Decoder(_Status).decode
_BODY_SHOWN = 300  # enough of a foreign error page to recognise it
_MESSAGE_SHOWN = 4096  # characters; a webhook may return any number


def api_error(status: int, body: bytes, *, doing: str, retry_after: str = "") -> ApiError:
    """Return the error for an HTTP answer, or for the object of a watch's ERROR event (status 0).

    Never raises, whatever the body contains.
    """
    try:
        parsed = _decode_status(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        parsed = _Status()
    if parsed.kind != "Status" and not parsed.message:
        parsed = _Status(message=body[:_BODY_SHOWN].decode("utf-8", "replace").strip())
    status = status or parsed.code
    kind = _BY_REASON.get(parsed.reason) or _BY_STATUS.get(status) or InternalError
    details = parsed.details or _Details()
    message = printable(parsed.message[:_MESSAGE_SHOWN]).strip()
    return kind(
        f"could not {doing}: {message or f'HTTP {status}'}",
        status=status,
        reason=parsed.reason,
        causes=tuple(details.causes or ()),
        retry_after_s=_seconds(retry_after) or _seconds(details.retry_after_seconds or 0),
        is_status=parsed.kind == "Status",
    )


def printable(text: str) -> str:
    """Return a text of a foreign server without escape sequences and other control characters.

    Lines and tabs stay; each other character that a terminal does not print becomes a space.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else " " for each in text)


def remedy_of(error: Exception) -> str:
    """Return the remedy for an API server that does not answer or rejects the credential; empty for
    other errors.
    """
    match error:
        case ResponseTooLarge():
            return ""
        case Unreachable():
            return "check that the API server runs, and its address in the kubeconfig"
        case Unauthorized():
            return "the credential in the kubeconfig is invalid or has expired, so renew it"
    return ""


def is_status(body: bytes) -> bool:
    """Whether a body is a Kubernetes `Status`, as API servers send and proxies in front of them do
    not.
    """
    try:
        return _decode_status(body).kind == "Status"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _seconds(retry_after: str | float) -> float | None:
    """Return the seconds of a Retry-After header; None unless it is a positive number.

    API servers do not send the form with a date, which counts as absent.
    """
    try:
        value = float(retry_after)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None
