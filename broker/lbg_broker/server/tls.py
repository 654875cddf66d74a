"""The broker's end of TLS, with the certificate that its files hold now."""

import ssl

from lbg_broker.server.errors import StartError
from lbg_broker.server.settings import TlsSettings

__all__ = ["ServerTls"]


class ServerTls:
    """`context` is for the listeners, once and for all. Each handshake gets the certificate that was read last.

    The certificate is not changed in the listeners' context itself: a file that cannot be used, or a key that does
    not belong to it yet, would leave that without any.
    """

    def __init__(self, settings: TlsSettings) -> None:
        """Raises `StartError` for files that are missing or hold something else."""
        self._settings = settings
        self._current = _context(settings)
        self.context = _context(settings)
        self.context.sni_callback = self._choose

    def read_again(self) -> None:
        """Take up what the files hold now, or raise `StartError` and go on with what there was."""
        self._current = _context(self._settings)

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _listening: ssl.SSLContext) -> None:
        """OpenSSL asks for every ClientHello, one without a server name too."""
        connection.context = self._current


def _context(tls: TlsSettings) -> ssl.SSLContext:
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
