from __future__ import annotations

import json
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean import errors
from kubeocean.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    ConfigError,
    Conflict,
    Forbidden,
    Gone,
    InternalError,
    Invalid,
    InvariantError,
    KubeoceanError,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    RequestTooLarge,
    ServerTimeout,
    ServiceUnavailable,
    StatusCause,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    UnsupportedMediaType,
    api_error,
)


def status(**fields: object) -> bytes:
    return msgspec.json.encode({"kind": "Status", "apiVersion": "v1"} | fields)


# --- the tree


def test_everything_has_one_root_and_is_in_the_picture() -> None:
    picture = errors.__doc__ or ""
    for name in errors.__all__:
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert issubclass(kind, KubeoceanError)
            assert name in picture


def test_a_config_error_says_where_what_and_why() -> None:
    error = ConfigError("is not a port", field="server", value=0, source="~/config")
    assert str(error) == "~/config: server: is not a port (got 0)"
    assert (error.field, error.value, error.source) == ("server", 0, "~/config")
    assert str(ConfigError("is bad")) == "is bad"


def test_an_invariant_error_carries_its_evidence() -> None:
    error = InvariantError("two leaders", first="a", second="b")
    assert str(error) == "two leaders [first='a', second='b']"
    assert error.evidence == {"first": "a", "second": "b"}
    assert str(InvariantError("impossible")) == "impossible"


def test_an_error_names_its_own_reason_where_the_server_gave_none() -> None:
    assert NotFound("x").reason == "NotFound"
    assert NotFound("x", reason="Gone away").reason == "Gone away"
    assert Unreachable("x").sent
    assert not Unreachable("x", sent=False).sent


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("x", sent=False),
        ConfigError("m", field="f", value=1, source="s"),
        InvariantError("m", a=1),
        Conflict("m", status=409, causes=(StatusCause("r", "m", "f"),), retry_after_s=2.0),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_a_journey_between_processes(error: KubeoceanError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), vars(back)) == (str(error), vars(error))


# --- from an answer


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", BadRequest),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", MethodNotAllowed),
        (406, "NotAcceptable", NotAcceptable),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Gone", Gone),
        (410, "Expired", Gone),
        (413, "RequestEntityTooLarge", RequestTooLarge),
        (415, "UnsupportedMediaType", UnsupportedMediaType),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", InternalError),
        (500, "ServerTimeout", ServerTimeout),
        (502, "", InternalError),
        (503, "ServiceUnavailable", ServiceUnavailable),
        (504, "Timeout", ServerTimeout),
        (302, "", InternalError),
        (418, "Teapot", InternalError),
    ],
)
def test_each_reason_has_its_own_type(code: int, reason: str, kind: type[ApiError]) -> None:
    body = status(message="why", reason=reason, code=code)
    error = api_error(code, body, doing="get pods a/b")
    assert type(error) is kind
    assert str(error) == "could not get pods a/b: why"
    assert (error.status, error.reason) == (code, reason or kind.__name__)
    # The object of a watch's ERROR event has no status line.
    assert type(api_error(0, body, doing="watch")) is kind


def test_the_fields_that_were_refused_are_told() -> None:
    causes = [{"reason": "FieldValueInvalid", "message": "too long", "field": "metadata.name"}]
    error = api_error(422, status(message="m", details={"causes": causes}), doing="create")
    assert error.causes == (StatusCause("FieldValueInvalid", "too long", "metadata.name"),)


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [
        ("", {}, None),
        ("3", {}, 3.0),
        ("3", {"retryAfterSeconds": 9}, 3.0),
        ("", {"retryAfterSeconds": 9}, 9.0),
        ("0", {"retryAfterSeconds": 9}, 9.0),
        ("0", {}, None),
        ("-1", {}, None),
        ("inf", {}, None),
        ("nan", {}, None),
        ("Fri, 31 Dec 1999 23:59:59 GMT", {}, None),
        ("", {"retryAfterSeconds": -5}, None),
        ("", {"retryAfterSeconds": None}, None),
    ],
)
def test_when_to_come_back(header: str, details: object, seconds: float | None) -> None:
    error = api_error(429, status(details=details), doing="x", retry_after=header)
    assert error.retry_after_s == seconds


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"", "HTTP 503"),
        (b"upstream is down\n", "upstream is down"),
        (b"<html>" + b"x" * 1000, "<html>" + "x" * 294),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"[1]", "[1]"),
        (b'{"kind":"Pod"}', '{"kind":"Pod"}'),
        (b'{"kind":"Status"}', "HTTP 503"),
        (b'{"message":"no kind"}', "no kind"),
        (b'{"kind":"Status","message":5}', '{"kind":"Status","message":5}'),
    ],
)
def test_a_foreign_answer_is_shown_as_it_is(body: bytes, shown: str) -> None:
    error = api_error(503, body, doing="x")
    assert type(error) is ServiceUnavailable
    assert str(error) == f"could not x: {shown}"


def test_only_a_status_proves_that_an_object_does_not_exist() -> None:
    for body, proven in (
        (b'{"kind":"Status","reason":"NotFound","code":404}', True),
        (b"<html><h1>default backend - 404</h1></html>", False),
        (b"404 page not found\n", False),
        (b'{"message":"no such route"}', False),
    ):
        error = api_error(404, body, doing="get nodes n")
        assert isinstance(error, NotFound)
        assert error.is_status is proven


DEEP = b'{"kind":"Status","unknown":' + b"[" * 100_000
HUGE = b'{"kind":"Status","details":{"retryAfterSeconds":' + b"9" * 400 + b"}}"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["kind", "message", "reason", "code", "details", "status"])
DETAILS = st.dictionaries(st.sampled_from(["causes", "retryAfterSeconds"]), JSON)
STATUSES = st.dictionaries(FIELDS, JSON | DETAILS | st.just("Status")).map(msgspec.json.encode)


@pytest.mark.parametrize("body", [DEEP, HUGE], ids=["deep", "huge"])
def test_a_hostile_answer_is_an_error_like_any_other(body: bytes) -> None:
    assert isinstance(api_error(500, body, doing="x"), InternalError)


def test_escape_sequences_of_a_server_are_not_shown() -> None:
    escape = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egood\r"
    status = json.dumps({"kind": "Status", "message": f"line one\n{escape}"}).encode()
    for body in (status, f"line one\n{escape}".encode()):
        message = str(api_error(403, body, doing="get pod a"))
        assert message.startswith("could not get pod a: line one\n")
        assert message.endswith("good")
        assert all(each.isprintable() or each == "\n" for each in message)


def test_a_long_message_of_a_server_is_cut() -> None:
    body = json.dumps({"kind": "Status", "message": "x" * 1_000_000}).encode()
    assert len(str(api_error(403, body, doing="get pod a"))) < 5000


@given(st.integers(0, 999), st.binary() | STATUSES, st.text())
def test_no_answer_whatever_breaks_the_error(code: int, body: bytes, header: str) -> None:
    error = api_error(code, body, doing="do it", retry_after=header)
    assert str(error).startswith("could not do it: ")
    assert error.retry_after_s is None or error.retry_after_s > 0
