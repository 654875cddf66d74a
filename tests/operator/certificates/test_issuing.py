"""Certificates of the operator, judged by those who must accept them: OpenSSL and the Web PKI rules of cryptography."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from lbg_operator.certificates import CLOCK_SKEW, Certificate, issue, renewal_due

NAMES = ("main.shop.svc", "main.shop.svc.cluster.local", "localhost", "127.0.0.1", "::1")
NOW = datetime(2031, 5, 17, 12, 0, tzinfo=UTC)
DAYS = 90


def verify(certificate: Certificate, name: str, *, at: datetime, ca: bytes | None = None) -> int:
    """Length of the chain of trust. Raises VerificationError."""
    authorities = Store([x509.load_pem_x509_certificate(ca or certificate.ca_pem)])
    verifier = PolicyBuilder().store(authorities).time(at).build_server_verifier(x509.DNSName(name))
    return len(verifier.verify(x509.load_pem_x509_certificate(certificate.certificate_pem), []))


def shake_hands(certificate: Certificate, name: str, folder: Path, *, ca: bytes | None = None) -> str:
    """The version that both sides agree on; a client with every check that OpenSSL has."""
    (folder / "tls.crt").write_bytes(certificate.certificate_pem)
    (folder / "tls.key").write_bytes(certificate.key_pem)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    trusting = ssl.create_default_context(cadata=(ca or certificate.ca_pem).decode())
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(down, up, server_hostname=name)
    server = serving.wrap_bio(up, down, server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    version = client.version()
    assert version is not None
    return version


def leaf_of(certificate: Certificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate.certificate_pem)


@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_trusts_the_authority_accepts_every_name(name: str, tmp_path: Path) -> None:
    assert shake_hands(issue(NAMES, now=datetime.now(UTC), days=DAYS), name, tmp_path) == "TLSv1.3"


def test_a_client_refuses_another_name_and_another_authority(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    ours, other = issue(NAMES, now=now, days=DAYS), issue(NAMES, now=now, days=DAYS)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(ours, "main.bank.svc", tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        shake_hands(ours, NAMES[0], tmp_path, ca=other.ca_pem)


@pytest.mark.parametrize(
    "at", [NOW - CLOCK_SKEW, NOW, NOW + timedelta(days=DAYS)], ids=["skewed", "new", "last"]
)
def test_it_is_valid_from_a_skewed_clock_to_its_last_moment(at: datetime) -> None:
    assert verify(issue(NAMES, now=NOW, days=DAYS), NAMES[0], at=at) == 2


@pytest.mark.parametrize(
    "at", [NOW - CLOCK_SKEW - timedelta(seconds=1), NOW + timedelta(days=DAYS, seconds=1)]
)
def test_it_is_not_valid_outside_of_its_time(at: datetime) -> None:
    with pytest.raises(VerificationError):
        verify(issue(NAMES, now=NOW, days=DAYS), NAMES[0], at=at)


def test_it_is_good_for_serving_and_for_nothing_else() -> None:
    certificate = issue(NAMES, now=NOW, days=DAYS)
    extensions = leaf_of(certificate).extensions
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.digital_signature, usage.key_cert_sign, usage.key_encipherment) == (True, False, False)
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    (purpose,) = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert purpose == x509.oid.ExtendedKeyUsageOID.SERVER_AUTH


def test_the_authority_signs_servers_and_no_further_authority() -> None:
    authority = x509.load_pem_x509_certificate(issue(NAMES, now=NOW, days=DAYS).ca_pem)
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    usage = authority.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (constraints.ca, constraints.path_length) == (True, 0)
    assert (usage.key_cert_sign, usage.digital_signature) == (True, False)


def test_no_key_is_shown() -> None:
    certificate = issue(NAMES, now=NOW, days=DAYS)
    assert "PRIVATE" not in repr(certificate)


# Renewal


def test_a_renewed_one_is_trusted_by_who_trusts_the_former() -> None:
    former = issue(NAMES, now=NOW, days=DAYS)
    later = NOW + timedelta(days=60)
    renewed = issue((*NAMES, "another.shop.svc"), now=later, days=DAYS, former=former)
    verify(renewed, "another.shop.svc", at=later + timedelta(days=80), ca=former.ca_pem)
    assert renewed.ca_pem == former.ca_pem
    assert renewed.key_pem != former.key_pem
    assert leaf_of(renewed).serial_number != leaf_of(former).serial_number


@pytest.mark.parametrize("broken", ["expiring", "keyless", "garbled", "mismatched"])
def test_an_authority_that_cannot_sign_is_replaced(broken: str) -> None:
    former, later = issue(NAMES, now=NOW, days=DAYS), NOW + timedelta(days=60)
    if broken == "expiring":
        later = NOW + timedelta(days=3600)
    elif broken == "keyless":
        former = Certificate(former.certificate_pem, former.key_pem, former.ca_pem)
    elif broken == "garbled":
        former = Certificate(former.certificate_pem, former.key_pem, b"no PEM", former.ca_key_pem)
    else:
        another = issue(NAMES, now=NOW, days=DAYS)
        former = Certificate(former.certificate_pem, former.key_pem, former.ca_pem, another.ca_key_pem)
    renewed = issue(NAMES, now=later, days=DAYS, former=former)
    assert renewed.ca_pem != former.ca_pem
    verify(renewed, NAMES[0], at=later)
    with pytest.raises(VerificationError):
        verify(renewed, NAMES[0], at=later, ca=issue(NAMES, now=NOW, days=DAYS).ca_pem)


def test_a_certificate_that_outlives_the_usual_authority_has_one_that_lasts() -> None:
    certificate = issue(NAMES, now=NOW, days=5000)
    assert verify(certificate, NAMES[0], at=NOW + timedelta(days=4999)) == 2


@pytest.mark.parametrize(("days_later", "is_due"), [(0, False), (59, False), (61, True), (91, True)])
def test_renewal_is_due_in_the_last_third(days_later: int, is_due: bool) -> None:
    certificate = issue(NAMES, now=NOW, days=DAYS)
    now = NOW + timedelta(days=days_later)
    assert renewal_due(certificate.certificate_pem, NAMES, now=now) is is_due


def test_renewal_is_due_for_a_name_more_and_not_for_one_less() -> None:
    pem = issue(NAMES, now=NOW, days=DAYS).certificate_pem
    assert renewal_due(pem, (*NAMES, "10.0.0.1"), now=NOW)
    assert not renewal_due(pem, NAMES[:2], now=NOW)


@pytest.mark.parametrize("pem", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_renewal_is_due_for_what_cannot_be_read(pem: bytes) -> None:
    assert renewal_due(pem, NAMES, now=NOW)


def test_renewal_is_due_for_an_authority_and_for_a_certificate_of_the_future() -> None:
    certificate = issue(NAMES, now=NOW, days=DAYS)
    assert renewal_due(certificate.ca_pem, NAMES, now=NOW)
    assert renewal_due(certificate.certificate_pem, NAMES, now=NOW - timedelta(days=1))
