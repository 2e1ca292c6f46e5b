"""Where the service listens, and what it refuses before it does."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from runtime.addresses import is_loopback
from runtime.settings import load
from service.composition import open_authenticator
from service.config import ServiceSettings
from service.tenancy.keys import KeysFileError

JWT = ["--jwt-issuer", "https://issuer.example", "--jwt-audience", "headrace"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("[::]", False),
        ("10.0.0.1", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, *, expected: bool) -> None:
    assert is_loopback(host) is expected


def problems(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """Return what the settings are refused for."""
    with suppress(SystemExit):
        load(ServiceSettings, argv, prog="service")
    return capsys.readouterr().err.splitlines()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    for name in ("keys.toml", "cert.pem", "key.pem", "ca.pem"):
        (tmp_path / name).write_text("")
    return {path.name: str(path) for path in tmp_path.iterdir()}


def test_an_address_that_others_reach_needs_somebody_who_asks_who_calls(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    tls = ["--tls-cert-file", files["cert.pem"], "--tls-key-file", files["key.pem"]]
    for host in ("0.0.0.0", "::", "10.0.0.1", "service.example"):
        (line,) = problems(capsys, "--host", host)
        assert line.startswith(f"service: HEADRACE_HOST (--host) {host}: others can reach this address")
        for way in ("KEYS_FILE", "JWT_ISSUER", "TLS_CLIENT_CA_FILE", "ALLOW_INSECURE=true"):
            assert f"HEADRACE_{way}" in line
        assert len(problems(capsys, "--host", host, *tls)) == 1  # which tells nobody apart
        for way in (
            ["--keys-file", files["keys.toml"]],
            JWT,
            [*tls, "--tls-client-ca-file", files["ca.pem"]],
            ["--allow-insecure"],
        ):
            assert problems(capsys, "--host", host, *way) == []


def test_the_port_for_operators_needs_certificates_where_others_reach_it(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    admin = ["--admin-host", "0.0.0.0", "--admin-port", "0"]
    (line,) = problems(capsys, *admin, "--keys-file", files["keys.toml"])
    assert line.startswith("service: HEADRACE_ADMIN_HOST (--admin-host) 0.0.0.0: ")
    mutual = ["--tls-cert-file", files["cert.pem"], "--tls-key-file", files["key.pem"]]
    assert problems(capsys, *admin, *mutual, "--tls-client-ca-file", files["ca.pem"]) == []
    assert problems(capsys, *admin, "--allow-insecure") == []
    assert problems(capsys, "--admin-host", "0.0.0.0") == []  # there is no such port


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--jwt-audience", "x", "--jwt-models-claim", "m"], ["JWT_AUDIENCE", "JWT_MODELS_CLAIM"]),
        (["--jwt-issuer", "https://issuer.example"], ["JWT_AUDIENCE"]),
        (["--jwt-issuer", "issuer", "--jwt-audience", "x"], ["JWT_ISSUER"]),
        ([*JWT, "--jwt-jwks", "http://issuer.example/jwks"], ["JWT_JWKS"]),
        ([*JWT, "--jwt-jwks", "no-such-file"], ["JWT_JWKS"]),
        ([*JWT, "--jwt-algorithms", "ES256,HS256,none"], ["JWT_ALGORITHMS"]),
        ([*JWT, "--jwt-algorithms", ","], ["JWT_ALGORITHMS"]),
        (["--keys-file", "no-such-file"], ["KEYS_FILE"]),
    ],
)
def test_settings_of_identity_that_do_not_fit_are_named(
    argv: list[str], named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = problems(capsys, *argv)
    assert [line.split(" ")[1] for line in lines] == [f"HEADRACE_{name}" for name in named]


def test_the_issuer_s_name_is_free_where_its_keys_come_from_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    jwks = ["--jwt-issuer", "accounts", "--jwt-audience", "x", "--jwt-jwks", "https://issuer.example/jwks"]
    assert problems(capsys, *jwks) == []


def test_nobody_is_asked_unless_the_settings_say_so(files: dict[str, str]) -> None:
    assert open_authenticator(load(ServiceSettings, [], prog="service")) is None
    assert open_authenticator(load(ServiceSettings, ["--keys-file", files["keys.toml"]], prog="service"))
    assert open_authenticator(load(ServiceSettings, JWT, prog="service"))


def test_a_keys_file_that_is_wrong_stops_the_start(files: dict[str, str]) -> None:
    Path(files["keys.toml"]).write_text("[[keys]]\nid = 3\n")
    with pytest.raises(KeysFileError) as wrong:
        open_authenticator(load(ServiceSettings, ["--keys-file", files["keys.toml"]], prog="service"))
    assert len(wrong.value.problems) == 3
