"""The audit log: its requests, by user."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kubeocean.local.audit import Audit


def _line(user: str, verb: str, **more: object) -> bytes:
    event = {"verb": verb, "user": {"username": user, "groups": ["g"]}, "unknown": {}} | more
    return msgspec.json.encode(event) + b"\n"


def test_requests_are_counted_by_user_program_and_time(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.log")
    assert audit.mark() == 0
    assert audit.requests() == []
    audit.path.write_bytes(_line("ann", "get", userAgent="kubectl/1") + _line("bob", "list"))
    assert [request.verb for request in audit.requests()] == ["get", "list"]
    assert [request.user for request in audit.requests(user="bob")] == ["bob"]
    assert [request.user for request in audit.requests(user_agent="kubectl/")] == ["ann"]
    mark = audit.mark()
    with audit.path.open("ab") as file:
        file.write(_line("ann", "patch"))
    assert [request.verb for request in audit.requests(user="ann", since=mark)] == ["patch"]


def test_a_request_says_what_was_done_to_what(tmp_path: Path) -> None:
    about = {"resource": "pods", "subresource": "status", "namespace": "n", "name": "p"}
    audit = Audit(tmp_path / "audit.log")
    line = _line("ann", "update", objectRef=about, responseStatus={"code": 409}, requestURI="/x?y")
    audit.path.write_bytes(line)
    (request,) = audit.requests()
    assert (request.resource, request.subresource) == ("pods", "status")
    assert (request.namespace, request.name) == ("n", "p")
    assert (request.code, request.uri) == (409, "/x?y")


def test_a_line_that_is_being_written_is_not_read_yet(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.log")
    audit.path.write_bytes(_line("ann", "get") + _line("ann", "list")[:20])
    assert [request.verb for request in audit.requests()] == ["get"]
