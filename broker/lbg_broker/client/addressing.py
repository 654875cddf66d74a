"""Where a broker is and who asks, as people say it: by options on a command line, or in an environment."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lbg_broker.client.credentials import CredentialFiles
from lbg_broker.client.errors import AddressConflict
from lbg_broker.client.settings import ConnectionSettings, TlsSettings

__all__ = ["BrokerAddress", "split_urls"]

# A password may hold a comma; what follows the one between two addresses is a scheme.
_BETWEEN_URLS = re.compile(r"\s*,\s*(?=[a-z]+://)")


def split_urls(*texts: str) -> tuple[str, ...]:
    """The addresses in texts that hold one each, or several with commas between them."""
    return tuple(url for text in texts for url in _BETWEEN_URLS.split(text.strip()) if url)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """One broker, a cluster perhaps. Raises `SettingsError`: `AddressConflict` where only the whole is wrong. Neither
    shows a password.

    - `urls`: of its nodes, tried in turn: amqp[s]://user:password@host:port/vhost, see `ConnectionSettings.parse`.
    - `management_urls`: of its management API; none: on its usual port. None: whoever asks has no use for it.
    - `cafile`, `certfile`, `keyfile`: for every address with TLS, in place of what it says itself.
    - `username`: the user to log in as, in place of the address's.
    - `username_file`, `password_file`: their first lines, read again for every connection; they count first.
    """

    urls: tuple[str, ...] = field(repr=False)
    management_urls: tuple[str, ...] | None = field(default=None, repr=False)
    cafile: Path | None = None
    certfile: Path | None = None
    keyfile: Path | None = None
    username: str | None = None
    username_file: Path | None = None
    password_file: Path | None = None

    def __post_init__(self) -> None:
        self.places()

    def places(self) -> tuple[ConnectionSettings, ...]:
        """What to connect to, in turn."""
        places = [ConnectionSettings.parse(url) for url in self.urls]
        files = self.tls_files
        if files is not None:
            self._check_use_of_tls_files(places)
            places = [replace(place, tls=files) if place.tls else place for place in places]
        if len({place.vhost for place in places}) > 1:
            raise AddressConflict("the broker's addresses name different virtual hosts")
        return tuple(map(self._with_login, places))

    def spread_places(self, chance: random.Random | None = None) -> tuple[ConnectionSettings, ...]:
        """The same in an order of chance, for processes of which there are many: a cluster's nodes share their
        connections, and when one goes, its clients do not all go to the same other one."""
        places = self.places()
        return tuple((chance or random.Random()).sample(places, len(places)))

    @property
    def tls_files(self) -> TlsSettings | None:
        if not any((self.cafile, self.certfile, self.keyfile)):
            return None
        cafile, certfile, keyfile = (
            None if file is None else str(file) for file in (self.cafile, self.certfile, self.keyfile)
        )
        return TlsSettings(cafile, certfile, keyfile)

    def _check_use_of_tls_files(self, places: Sequence[ConnectionSettings]) -> None:
        is_used = any(place.tls for place in places)
        is_used = is_used or any(url.startswith("https:") for url in self.management_urls or ())
        if not is_used:
            needed = "an amqps://" if self.management_urls is None else "an amqps:// or https://"
            raise AddressConflict(f"cafile, certfile and keyfile need {needed} address")

    def _with_login(self, place: ConnectionSettings) -> ConnectionSettings:
        username = self.username_file or self.username or place.username
        if self.username_file or self.password_file:
            return replace(place, credentials=CredentialFiles(username, self.password_file or place.password))
        return replace(place, username=str(username))
