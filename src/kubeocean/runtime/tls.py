"""TLS: the ssl.SSLContext for an Access.

TLS 1.2 or newer, HTTP/1.1 only, and the same trust as in Go's clients: any certificate in the
bundle is a root, also an intermediate one, and a server is known by its subject alternative names
alone. Without a bundle the machine's own roots are trusted. Which name the server must prove
(`tls_server_name`) is said by whoever connects.
"""

from __future__ import annotations

import ssl

from kubeocean.errors import ConfigError
from kubeocean.runtime.access import Access
from kubeocean.runtime.pem import load_pair, trust

__all__ = ["ssl_context"]


def ssl_context(access: Access) -> ssl.SSLContext | None:
    """A fresh context for one Access; None for plain HTTP. Raises ConfigError on bad material."""
    if not access.server.startswith("https:"):
        return None
    # Not create_default_context: newer Pythons make it strict about extensions that many cluster
    # certificates lack.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["http/1.1"])
    try:
        _verify(context, access)
        if access.certificate is not None and access.private_key is not None:
            load_pair(context, access.certificate, access.private_key)
    except ssl.SSLError as error:
        reason = error.reason or "not PEM"
        raise ConfigError(f"cannot use its certificates: {reason}", source=access.origin) from None
    return context


def _verify(context: ssl.SSLContext, access: Access) -> None:
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif access.ca is not None:
        trust(context, access.ca)
    else:
        context.load_default_certs()
