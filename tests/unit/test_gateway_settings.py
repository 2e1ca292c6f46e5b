"""The gateway's settings, deadlines and event framing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import sse
from gateway.config import GatewaySettings
from gateway.exchange import request_id_from
from gateway.openai.errors import ApiError
from gateway.timeouts import timeout_s
from runtime.settings import load
from tests.support.gateway_harness import read_events


def test_every_setting_says_what_it_is() -> None:
    for name, field in GatewaySettings.model_fields.items():
        assert field.description, name


def test_settings_come_from_variables_and_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_GATEWAY_PORT", "81")
    monkeypatch.setenv("HEADRACE_GATEWAY_HEARTBEAT_S", "7")
    settings = load(GatewaySettings, ["--port", "82", "--cors-origins", "http://a,http://b"], prog="gateway")
    assert (settings.port, settings.heartbeat_s, settings.cors_origins) == (82, 7, ["http://a", "http://b"])


def test_origins_are_separated_by_commas_in_a_variable_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_GATEWAY_CORS_ORIGINS", "http://a, http://b")
    assert load(GatewaySettings, [], prog="gateway").cors_origins == ["http://a", "http://b"]


def test_all_wrong_settings_are_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load(
            GatewaySettings, ["--port", "-1", "--send-timeout-s", "0", "--trust-inbound-trace", "maybe"], prog="gateway"
        )
    assert caught.value.code == 2
    errors = capsys.readouterr().err
    for flag in ("--port", "--send-timeout-s", "--trust-inbound-trace"):
        assert flag in errors


@pytest.mark.parametrize("argv", [["--tls-cert-file", "x"], ["--default-timeout-s", "10", "--max-timeout-s", "5"]])
def test_settings_that_contradict_each_other_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(GatewaySettings, argv, prog="gateway")
    assert capsys.readouterr().err


def test_tls_is_used_as_soon_as_anything_of_it_is_set() -> None:
    assert not GatewaySettings().uses_tls
    assert GatewaySettings(tls=True).uses_tls
    assert GatewaySettings(tls_server_name="x").uses_tls


@given(st.text(max_size=20))
def test_no_header_value_breaks_the_deadline(text: str) -> None:
    try:
        seconds = timeout_s({"request-timeout-ms": text}, default_s=60, max_s=100)
    except ApiError as error:
        assert error.http_status == 400  # noqa: PT017 - either a deadline or a refusal
    else:
        assert 0 < seconds <= 100
    assert 0 < timeout_s({"x-stainless-timeout": text}, default_s=60, max_s=100) <= 60


@given(st.text(max_size=150))
def test_a_request_id_is_always_short_visible_ascii(text: str) -> None:
    found = request_id_from({"x-request-id": text})
    assert 1 <= len(found) <= 128
    assert all(" " < character <= "~" for character in found)


@given(st.lists(st.text(max_size=20), max_size=5))
def test_every_document_is_one_event_whatever_is_in_it(values: list[str]) -> None:
    body = b"".join(sse.event(json.dumps(value)) + sse.PING for value in values)
    assert [json.loads(data) for data in read_events(body)] == values
