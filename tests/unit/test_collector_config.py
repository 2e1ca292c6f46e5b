"""The Collector configuration of deploy/observability: whole in itself, and about attributes that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gateway.config import GatewaySettings
from runtime import semconv
from runtime.slo import keep_reason
from service.config import ServiceSettings

FILE: Final = Path(__file__).parents[2] / "deploy" / "observability" / "collector.yml"
# As the Collector does it: the text is replaced, and then read as YAML.
VARIABLE: Final = re.compile(r"\$\{env:([A-Z_]+)(?::-([^}]*))?\}")
ATTRIBUTES: Final = {value for value in vars(semconv).values() if isinstance(value, str)}


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    document = yaml.safe_load(VARIABLE.sub(lambda found: found[2], FILE.read_text("utf-8")))
    assert isinstance(document, dict)
    return document


def policies(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {policy["type"]: policy for policy in config["processors"]["tail_sampling"]["policies"]}


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


def test_every_variable_has_a_default() -> None:
    found = VARIABLE.findall("\n".join(line.split("#")[0] for line in FILE.read_text("utf-8").splitlines()))
    assert found
    assert [name for name, default in found if not default] == []


@pytest.mark.parametrize("kind", ["receivers", "processors", "exporters"])
def test_pipelines_name_what_is_defined_and_all_of_it(config: dict[str, Any], kind: str) -> None:
    named = {name for pipeline in config["service"]["pipelines"].values() for name in pipeline[kind]}
    assert named == config[kind].keys()


def test_traces_and_metrics_pass_the_memory_limit_first_and_the_batch_last(config: dict[str, Any]) -> None:
    pipelines = config["service"]["pipelines"]
    assert pipelines.keys() == {"traces", "metrics"}
    for pipeline in pipelines.values():
        assert pipeline["processors"][0] == "memory_limiter"
        assert pipeline["processors"][-1] == "batch"
    assert "tail_sampling" in pipelines["traces"]["processors"]
    assert "tail_sampling" not in pipelines["metrics"]["processors"]


def test_it_listens_on_loopback_only(config: dict[str, Any]) -> None:
    protocols = config["receivers"]["otlp"]["protocols"]
    assert {name: of["endpoint"] for name, of in protocols.items()} == {
        "grpc": "127.0.0.1:4317",
        "http": "127.0.0.1:4318",
    }


def test_every_policy_has_its_own_settings_and_asks_for_an_attribute_that_exists(config: dict[str, Any]) -> None:
    listed = config["processors"]["tail_sampling"]["policies"]
    assert len({policy["name"] for policy in listed}) == len(listed)
    for policy in listed:
        assert policy.keys() == {"name", "type", policy["type"]}
    keys = [policy[policy["type"]]["key"] for policy in listed if "key" in policy[policy["type"]]]
    assert keys == [semconv.KEEP, semconv.SLO_TTFT_MET]
    assert set(keys) <= ATTRIBUTES


def test_what_the_service_marks_is_kept_for_every_reason(config: dict[str, Any]) -> None:
    found = policies(config)
    kept = found["string_attribute"]["string_attribute"]
    reasons = {
        keep_reason({}, failed=True, max_gap_s=0, stall_s=None),
        keep_reason({"ttft": False}, failed=False, max_gap_s=0, stall_s=None),
        keep_reason({}, failed=False, max_gap_s=9, stall_s=1),
    }
    assert len(reasons) == 3
    assert kept["enabled_regex_matching"] is True
    for reason in reasons:
        assert reason is not None
        assert any(re.fullmatch(value, reason) for value in kept["values"])
    assert found["boolean_attribute"]["boolean_attribute"]["value"] is False
    assert found["status_code"]["status_code"]["status_codes"] == ["ERROR"]
    assert 0 < found["probabilistic"]["probabilistic"]["sampling_percentage"] < 100


def test_the_decision_waits_for_the_longest_stream_of_a_caller_who_names_no_deadline(config: dict[str, Any]) -> None:
    sampling = config["processors"]["tail_sampling"]
    wait_s = seconds(sampling["decision_wait"])
    assert wait_s > ServiceSettings.model_fields["default_deadline_s"].default
    assert wait_s > GatewaySettings.model_fields["default_timeout_s"].default
    # More than what the SDK's batches hold back: OTEL_BSP_SCHEDULE_DELAY is 5 s unless it is set.
    assert 5 < seconds(sampling["decision_wait_after_root_received"]) < wait_s
    assert sampling["decision_cache"]["sampled_cache_size"] > sampling["num_traces"]
