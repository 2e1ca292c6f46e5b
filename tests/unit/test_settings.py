"""Settings: variables and flags, all problems at once, secrets masked."""

from __future__ import annotations

import json
from contextlib import nullcontext
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
    needs, missing = capsys.readouterr().err.splitlines()
    named = "service: HEADRACE_TLS_CLIENT_CA_FILE (--tls-client-ca-file)"
    assert needs.startswith(f"{named} needs --tls-cert-file")
    assert missing.startswith(f"{named}: no such file: ")


@pytest.mark.parametrize(("maximum", "default", "ends"), [("60", None, False), ("60", "61", True), ("60", "60", False)])
def test_only_a_default_that_somebody_set_can_exceed_the_longest_deadline(
    maximum: str, default: str | None, *, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_MAX_DEADLINE_S", maximum)
    argv = [] if default is None else ["--default-deadline-s", default]
    with pytest.raises(SystemExit) if ends else nullcontext():
        load(ServiceSettings, argv, prog="service")


def test_a_variable_that_looks_like_a_misspelt_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("QUEU_TIMEOUT_S", "TARGET", "ADMIN_TARGET", "GATEWAY_PORT", "GATEWAY_LOG_LEVEL"):
        monkeypatch.setenv(f"HEADRACE_{name}", "7")
    assert load(ServiceSettings, [], prog="service").queue_timeout_s == 60
    assert capsys.readouterr().err == (
        "service: HEADRACE_QUEU_TIMEOUT_S is no setting; is HEADRACE_QUEUE_TIMEOUT_S meant?\n"
    )


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
