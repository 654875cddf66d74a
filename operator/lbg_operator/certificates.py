"""Certificates that the operator issues: an authority of its own, and server certificates signed by it.

The authority is kept and signs the next certificate too: whoever trusts it (a member's mounted Secret, an API service's
caBundle) need not hear of a renewal, which comes to the server and to its clients at different moments.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
CLOCK_SKEW = timedelta(hours=1)
"""Time by which a peer's clock may be behind ours and still find a new certificate valid."""

_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A server's certificate with its key, and the authority that clients trust. All of it PEM.

    `ca_key_pem` is empty for an authority of somebody else's.
    """

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)
    ca_pem: bytes
    ca_key_pem: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def issue(
    names: Sequence[str], *, now: datetime, days: int, former: Certificate | None = None
) -> Certificate:
    """A certificate for a server that is called `names` (host names or IP addresses), valid for `days`.

    Signed by the authority of `former` if that can be read and lasts as long, and by a new one otherwise. `now` knows
    its time zone.
    """
    until = now + timedelta(days=days)
    authority = _former_authority(former, now, until) or _new_authority(now, until)
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(**{name: name == "digital_signature" for name in _USAGES})
    certificate = (
        _builder("LBG server", key, now, until)
        .issuer_name(authority.certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(_issuer_key(authority.key), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return Certificate(
        certificate_pem=certificate.public_bytes(Encoding.PEM),
        key_pem=_key_pem(key),
        ca_pem=authority.certificate.public_bytes(Encoding.PEM),
        ca_key_pem=_key_pem(authority.key),
    )


def renewal_due(certificate_pem: bytes, names: Sequence[str], *, now: datetime) -> bool:
    """True if another one is needed: a third of its time or less is left, it is not for all of `names`, or it cannot
    be read."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        covered = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return True
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < since or until - now <= (until - since) / 3:
        return True
    return not {_general_name(name) for name in names} <= set(covered)


def _new_authority(now: datetime, until: datetime) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(**{name: name in {"key_cert_sign", "crl_sign"} for name in _USAGES})
    # Its name holds its serial number: clients that know two authorities must not take one for the other.
    serial = x509.random_serial_number()
    name = f"LBG authority {serial:x}"[:64]
    builder = _builder(name, key, now, max(until, now + timedelta(days=AUTHORITY_DAYS)), serial)
    certificate = (
        builder.issuer_name(_name(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(_issuer_key(key), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _Authority(certificate, key)


def _former_authority(former: Certificate | None, now: datetime, until: datetime) -> _Authority | None:
    if former is None:
        return None
    try:
        certificate = x509.load_pem_x509_certificate(former.ca_pem)
        key = load_pem_private_key(former.ca_key_pem, password=None)
    except (ValueError, TypeError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        return None
    lasts = certificate.not_valid_before_utc <= now and until <= certificate.not_valid_after_utc
    return _Authority(certificate, key) if lasts else None


def _builder(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    until: datetime,
    serial: int | None = None,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number() if serial is None else serial)
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _issuer_key(key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
