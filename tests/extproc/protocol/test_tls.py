"""Certificates and keys: read, checked, read anew."""

from pathlib import Path

import pytest

from halffull_extproc.tls import KeyPair, Reloading, TlsError, TlsFiles, read, self_signed


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))


def write(files: TlsFiles, pair: KeyPair) -> None:
    Path(files.cert_file).write_bytes(pair.certificate)
    Path(files.key_file).write_bytes(pair.key)


def test_a_pair_is_read_and_checked(files: TlsFiles) -> None:
    pair = self_signed()
    write(files, pair)
    assert read(files) == pair


@pytest.mark.parametrize(
    ("certificate", "key", "complaint"),
    [
        (b"", None, r"tls\.crt: no certificate in PEM form"),
        (b"nonsense", None, r"tls\.crt: no certificate in PEM form"),
        (None, b"", r"tls\.key: no unencrypted key in PEM form"),
        (None, self_signed().key, r"tls\.key: not the key of .*tls\.crt"),
    ],
)
def test_what_cannot_be_used_says_which_file(
    files: TlsFiles, certificate: bytes | None, key: bytes | None, complaint: str
) -> None:
    pair = self_signed()
    write(files, KeyPair(pair.certificate if certificate is None else certificate, pair.key if key is None else key))
    with pytest.raises(TlsError, match=complaint):
        read(files)


def test_missing_files_are_an_error_at_start(files: TlsFiles) -> None:
    with pytest.raises(TlsError, match="No such file"):
        Reloading(files)


def test_a_new_pair_is_told_once_and_a_bad_one_never(files: TlsFiles) -> None:
    write(files, self_signed())
    reloading = Reloading(files)
    assert reloading.changed() is None
    second = self_signed()
    Path(files.cert_file).write_bytes(second.certificate)  # half way: certificate and key disagree
    assert reloading.changed() is None
    Path(files.key_file).write_bytes(second.key)
    assert reloading.changed() == second
    assert reloading.changed() is None
    Path(files.key_file).unlink()
    assert reloading.changed() is None
    assert reloading.pair == second
