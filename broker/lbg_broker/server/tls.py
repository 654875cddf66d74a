"""The broker's end of TLS."""

import ssl

from lbg_broker.server.errors import StartError
from lbg_broker.server.settings import TlsSettings

__all__ = ["tls_context"]


def tls_context(tls: TlsSettings) -> ssl.SSLContext:
    """What the listeners use. Raises `StartError` for files that are missing or hold something else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    except OSError as error:
        raise StartError(
            f"cannot use the certificate {tls.certificate_file} with the key {tls.key_file}: {error}"
        ) from error
    if tls.client_ca_file is not None:
        try:
            context.load_verify_locations(tls.client_ca_file)
        except OSError as error:
            raise StartError(f"cannot use the client authorities {tls.client_ca_file}: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
