"""Failures: why there was no answer, in words, and whether the request can have been seen.

Both the pooled connections and the tunnels fail in the ways of sockets, TLS and HTTP; here is one
sentence for each of them.
"""

from __future__ import annotations

import ssl

import aiohttp

__all__ = ["explain", "never_sent"]


def explain(error: Exception) -> str:
    """What went wrong, as the end of a sentence about the server."""
    # An error of TLS has its reason only where OpenSSL itself raised it.
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorSSLError):
        error = error.os_error
    if isinstance(error, ssl.SSLCertVerificationError):
        why = str(getattr(error, "verify_message", "") or error)
        return f"its certificate is not trusted ({why.rstrip('.')})"
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy refused to connect ({error.status} {error.message})"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"its answer is not HTTP ({error.message.partition(':')[0]})"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "its answer is broken or not whole"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({getattr(error, 'reason', '') or error})"
    return str(error) or type(error).__name__


def never_sent(error: Exception) -> bool:
    """Whether the connection itself did not come about: the server cannot have seen a request."""
    return isinstance(
        error,
        aiohttp.ClientConnectorError
        | aiohttp.ConnectionTimeoutError
        | aiohttp.ClientHttpProxyError
        | aiohttp.InvalidURL,
    )
