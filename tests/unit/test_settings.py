"""Settings: variables and flags, all problems at once, secrets masked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import Field, SecretStr

from runtime.settings import Settings, load
from service.config import ServiceSettings


class Example(Settings):
    port: int = Field(1, ge=0, le=9, description="A port.")
    name: str = Field("x", description="A name.")
    secret: SecretStr = Field(SecretStr("s3"), description="A secret.")


def test_flags_win_over_variables_and_variables_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PORT", "2")
    monkeypatch.setenv("HEADRACE_NAME", "env")
    settings = load(Example, ["--name", "flag"], prog="example")
    assert (settings.port, settings.name) == (2, "flag")


def test_all_problems_are_printed_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HEADRACE_GRPC_PORT", "99999")
    with pytest.raises(SystemExit) as ended:
        load(ServiceSettings, ["--slots", "0", "--backend", "nope"], prog="service")
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == [
        "HEADRACE_GRPC_PORT (--grpc-port)",
        "HEADRACE_BACKEND (--backend)",
        "HEADRACE_SLOTS (--slots)",
    ]


def test_what_does_not_fit_together_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(ServiceSettings, ["--tls-client-ca-file", str(tmp_path / "no.pem")], prog="service")
    text = capsys.readouterr().err
    assert "--tls-client-ca-file needs --tls-cert-file" in text
    assert "no such file" in text


def test_print_config_masks_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load(Example, ["--print-config"], prog="example")
    assert ended.value.code == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["port"] == 1
    assert "s3" not in json.dumps(shown)


def test_an_unknown_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load(Example, ["--nope", "1"], prog="example")
    assert ended.value.code == 2
    assert "--nope" in capsys.readouterr().err


def test_every_field_has_a_description() -> None:
    assert all(field.description for field in ServiceSettings.model_fields.values())
