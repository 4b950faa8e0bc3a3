from __future__ import annotations

import errno
import socket
import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from kubeocean.runtime.retries import explain, never_sent


def verification(message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = message
    return error


KEY = ConnectionKey("host", 443, True, True, None, None, None)
KEY6 = KEY._replace(host="::1")
REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 443)")
UNROUTED = OSError(errno.EHOSTUNREACH, "Connect call failed ('::1', 443, 0, 0)")
BOTH_FAILED = OSError(f"Multiple exceptions: {REFUSED}, {UNROUTED}")
UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
ABOUT = None  # aiohttp's description of the request, which is not used
TLS = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
PROXY = aiohttp.ClientHttpProxyError(ABOUT, (), status=407, message="Who")
GARBLED = aiohttp.ClientResponseError(ABOUT, (), message="Bad head: x\ny")


@pytest.mark.parametrize(
    ("error", "text", "sent"),
    [
        (TimeoutError(), "it did not answer in time", True),
        (aiohttp.ConnectionTimeoutError("x"), "it did not answer in time", False),
        (verification("no issuer."), "its certificate is not trusted (no issuer)", True),
        (
            aiohttp.ClientConnectorCertificateError(KEY, verification("Hostname mismatch.")),
            "its certificate is not trusted (Hostname mismatch)",
            False,
        ),
        (aiohttp.ClientConnectorSSLError(KEY, TLS), f"TLS failed ({TLS})", False),
        (ssl.SSLCertVerificationError(1, "odd."), "its certificate is not trusted (odd)", True),
        (TLS, f"TLS failed ({TLS})", True),
        (PROXY, "the proxy refused to connect (407 Who)", False),
        (GARBLED, "its answer is not HTTP (Bad head)", True),
        (aiohttp.ClientPayloadError("x"), "its answer is broken or not whole", True),
        (aiohttp.InvalidURL("x"), "x", False),
        (ConnectionResetError(), "ConnectionResetError", True),
        (aiohttp.ClientConnectorError(KEY, REFUSED), "connection refused (host:443)", False),
        (aiohttp.ClientConnectorError(KEY6, REFUSED), "connection refused ([::1]:443)", False),
        (REFUSED, "connection refused", True),
        (
            aiohttp.ClientConnectorError(KEY, BOTH_FAILED),
            "connection refused, no route to host (host:443)",
            False,
        ),
        (
            aiohttp.ClientConnectorDNSError(KEY, UNKNOWN),
            "name or service not known (host:443)",
            False,
        ),
        (aiohttp.ServerDisconnectedError(), "Server disconnected", True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_failure_is_a_sentence_and_a_verdict(error: Exception, text: str, sent: bool) -> None:
    assert explain(error) == text
    assert never_sent(error) is not sent
