"""The limits file, what a request reserves, what it has used in the end, and what callers are told of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from service.core.account import Closing, Opening
from service.core.errors import Reason, ServiceError
from service.core.events import Timing, Usage
from service.core.identity import Identity
from service.core.request import Priority
from service.tenancy.limits.demand import Reservation, asks_of, check_size, refusal, reservation_of, used_tokens
from service.tenancy.limits.file import LimitsFile, LimitsFileError, parse_limits
from service.tenancy.limits.headers import duration_text, headers_of
from service.tenancy.limits.rules import Rule, Rules
from service.tenancy.limits.windows import UNKNOWN_MS, Answer, Ask, Limit, State

FILE = """
[default]
requests_per_minute = 60
tokens_per_minute = 10_000
queue_share = 0.5

[default.model."big"]
concurrent_streams = 2

[tenant.acme]
requests_per_minute = "unlimited"
max_output_tokens = 1000

[tenant.acme.model."big"]
max_output_tokens = 200
concurrent_streams = "unlimited"
queue_share = 1

[tenant."umlaut ä"]
tokens_per_day = 5
"""

OPENING = Opening(
    generation_id="gen_1",
    request_id="req_1",
    identity=Identity(tenant="acme"),
    model="big",
    priority=Priority.INTERACTIVE,
    choices=2,
    prompt_tokens=100,
    max_output_tokens=None,
    end_user="",
    received_at_s=0.0,
)
TIMING = Timing(queue_s=0, prefill_s=None, ttft_s=None, decode_s=None, total_s=0, output_tokens_per_s=0)


def closing(usage: Usage, *, ttft_s: float | None = None) -> Closing:
    timing = replace(TIMING, ttft_s=ttft_s)
    return Closing(usage=usage, timing=timing, outcome="", reason=None, finish_reasons=(), ended_at_s=0.0)


def test_a_tenant_has_its_own_limits_over_those_of_everybody() -> None:
    rules = parse_limits(FILE, "limits.toml")
    assert rules.of("anybody") == Rule(requests_per_minute=60, tokens_per_minute=10_000, queue_share=0.5)
    assert rules.of("") == rules.of("anybody")
    assert rules.of("acme") == Rule(tokens_per_minute=10_000, queue_share=0.5, max_output_tokens=1000)
    assert rules.of("umlaut ä").tokens_per_day == 5
    assert rules.of_model("anybody", "big") == Rule(concurrent_streams=2)
    assert rules.of_model("acme", "big") == Rule(max_output_tokens=200, queue_share=1)
    assert rules.of_model("acme", "small") == Rule()
    assert (rules.max_output_tokens("acme", "big"), rules.max_output_tokens("acme", "small")) == (200, 1000)
    assert (rules.queue_share("acme", "big"), rules.queue_share("acme", "small")) == (1, 0.5)
    assert rules.models == {"big"}


def test_every_problem_of_the_file_is_told_at_once_with_its_place() -> None:
    text = """
    surplus = 1
    [default]
    request_per_minute = 60
    tokens_per_minute = 0
    concurrent_streams = true
    queue_share = 1.5
    [tenant.a.model."b"]
    tokens_per_day = 0
    model = 3
    [tenant."a b"]
    model = 3
    tokens_per_day = "no"
    """
    with pytest.raises(LimitsFileError) as refused:
        parse_limits(text, "limits.toml")
    assert refused.value.problems == [
        "limits.toml: surplus: unknown; there are default and tenant",
        "limits.toml: default.request_per_minute: unknown; is requests_per_minute meant?",
        'limits.toml: default.tokens_per_minute: must be a whole number of at least 1, or "unlimited", got 0',
        'limits.toml: default.concurrent_streams: must be a whole number of at least 1, or "unlimited", got True',
        'limits.toml: default.queue_share: must be above 0 and at most 1, or "unlimited", got 1.5',
        'limits.toml: tenant.a.model."b".tokens_per_day: must be a whole number of at least 1, or "unlimited", got 0',
        'limits.toml: tenant.a.model."b".model: unknown',
        'limits.toml: tenant."a b".model: must be tables, as in [tenant."a b".model."ID"]',
        'limits.toml: tenant."a b".tokens_per_day: must be a whole number of at least 1, or "unlimited", got \'no\'',
    ]


@pytest.mark.parametrize("text", ["[default", "default = 3", "tenant = 3", "[tenant]\nacme = 3"])
def test_what_is_no_limits_file_is_refused(text: str) -> None:
    with pytest.raises(LimitsFileError):
        parse_limits(text, "limits.toml")


def test_a_file_that_changes_is_taken_over_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[default]\nrequests_per_minute = 1\n")
    file = LimitsFile(path)
    assert not file.look()
    path.write_text("[default]\nrequests_per_minute = 22\n")
    assert file.look()
    assert file.rules.of("x").requests_per_minute == 22
    with caplog.at_level(logging.ERROR, "headrace.limits"):
        path.write_text("[default]\nrequests_per_minute = -333\n")
        assert not file.look()
        assert not file.look()
        assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]  # the problem, and what it means
        path.unlink()
        assert not file.look()
    assert file.rules.of("x").requests_per_minute == 22
    assert file.problem is not None
    path.write_text("[default]\nrequests_per_minute = 4444\n")
    assert file.look()
    assert file.problem is None


@pytest.mark.parametrize(
    ("asked", "values", "output"),
    [
        (50, {}, 100),
        (None, {}, 1024),
        (None, {"default_output_tokens": 30}, 60),
        (None, {"default_output_tokens": 30, "max_output_tokens": 20}, 40),
        (None, {"max_output_tokens": 20}, 40),
        # What nobody has asked for is not what a request fails by.
        (None, {"tokens_per_minute": 150}, 50),
        (None, {"tokens_per_day": 80}, 0),
    ],
)
def test_the_output_of_every_choice_is_reserved(asked: int | None, values: dict[str, int], output: int) -> None:
    rules = parse_limits("[default]\n" + "".join(f"{name} = {value}\n" for name, value in values.items()), "")
    assert reservation_of(replace(OPENING, max_output_tokens=asked), rules) == Reservation(100, output)


def test_a_request_is_held_against_the_limits_of_its_tenant_and_of_its_model() -> None:
    rules = parse_limits(FILE, "limits.toml")
    opening = replace(OPENING, identity=Identity(tenant="a/b}"), max_output_tokens=10)
    asks = asks_of(opening, rules, reservation_of(opening, rules))
    place = "headrace:limits:{tenant=a%2Fb%7D}"
    assert asks == [
        Ask(f"{place}:requests_per_minute", Limit.REQUESTS, 60, 1),
        Ask(f"{place}:tokens_per_minute", Limit.TOKENS, 10_000, 120),
        Ask(f"{place}:model=big:concurrent_streams", Limit.STREAMS, 2, 1, "big"),
    ]


def test_what_no_wait_makes_right_is_a_mistake_of_the_request() -> None:
    rules = parse_limits("[default]\nmax_output_tokens = 20\ntokens_per_minute = 130\n", "")

    def refused(**changes: int | None) -> str:
        opening = replace(OPENING, **changes)  # type: ignore[arg-type]
        asks = asks_of(opening, rules, reservation_of(opening, rules))
        with pytest.raises(ServiceError) as error:
            check_size(opening, rules, asks)
        assert error.value.reason is Reason.INVALID_FIELD
        return error.value.violations[0].field

    assert refused(max_output_tokens=21) == "sampling.max_output_tokens"
    assert refused(max_output_tokens=20) == "sampling.max_output_tokens"  # two choices of it
    assert refused(max_output_tokens=1, prompt_tokens=131) == "input"
    assert refused(prompt_tokens=131) == "input"
    opening = replace(OPENING, max_output_tokens=15)
    check_size(opening, rules, asks_of(opening, rules, reservation_of(opening, rules)))


@pytest.mark.parametrize(
    ("ended", "used"),
    [
        (closing(Usage(prompt_tokens=7, output_tokens=3)), 10),
        (closing(Usage(prompt_tokens=7, output_tokens=0)), 7),
        # It had begun, and nobody told all of it: what was reserved is taken to be used.
        (closing(Usage(output_tokens=3)), 103),
        (closing(Usage(prompt_tokens=7)), 57),
        (closing(Usage(), ttft_s=0.1), 150),
        # The engine had not answered yet.
        (closing(Usage(output_tokens=0)), 0),
        (closing(Usage()), 0),
    ],
)
def test_what_was_used_is_what_the_engine_told(ended: Closing, used: int) -> None:
    assert used_tokens(Reservation(prompt=100, output=50), ended) == used


def test_of_several_limits_the_one_that_takes_longest_is_told() -> None:
    asks = [
        Ask("", Limit.REQUESTS, 60, 1),
        Ask("", Limit.TOKENS, 1000, 200, "big"),
        Ask("", Limit.STREAMS, 3, 1),
        Ask("", Limit.DAY_TOKENS, 5000, 200),
    ]
    states = [State(60, 50_000, 1_500), State(900, 60_000, 30_000), State(3, 0, UNKNOWN_MS), State(10, 10**7, 0)]
    headers = headers_of(asks, states)
    error = refusal(OPENING, asks, Answer(is_taken=False, at_ms=0, states=tuple(states)), headers)
    assert (error.reason, error.retry_after_s) == (Reason.RATE_LIMITED, 30.0)
    assert error.metadata == {"limit": "tokens_per_minute", "limitValue": "1000", "model": "big"}
    assert error.violations[0].field == "tenant:acme"
    assert error.headers == headers
    assert error.message == (
        "Limit reached for model big on tokens per minute: limit 1000, used 900, this request may take 200. "
        "Try again in 30 s."
    )
    states[3] = State(4900, 10**7, 10**7)
    error = refusal(OPENING, asks, Answer(is_taken=False, at_ms=0, states=tuple(states)), ())
    assert (error.reason, error.retry_after_s) == (Reason.QUOTA_EXHAUSTED, 10_000.0)
    states = [State(1, 0, 0), State(1, 0, 0), State(3, 0, UNKNOWN_MS), State(1, 0, 0)]
    error = refusal(OPENING, asks, Answer(is_taken=False, at_ms=0, states=tuple(states)), ())
    assert error.metadata["limit"] == "concurrent_streams"
    assert error.retry_after_s == 1.0


def test_headers_are_of_the_limit_that_has_less_left() -> None:
    asks = [Ask("", Limit.REQUESTS, 60, 1), Ask("", Limit.REQUESTS, 20, 1, "big"), Ask("", Limit.DAY_TOKENS, 9, 1)]
    assert headers_of(asks, [State(50, 1500, 0), State(5, 20, 0), State(9, 9, 0)]) == (
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-remaining-requests", "10"),
        ("x-ratelimit-reset-requests", "1.5s"),
    )


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0s"),
        (-5, "0s"),
        (20, "20ms"),
        (999, "999ms"),
        (1000, "1s"),
        (8640, "8.64s"),
        (59_999, "59.999s"),
        (60_000, "1m0s"),
        (90_500, "1m30.5s"),
        (360_000, "6m0s"),
        (86_400_000, "24h0m0s"),
        (3_661_001, "1h1m1.001s"),
    ],
)
def test_durations_are_written_as_openai_does(duration_ms: int, text: str) -> None:
    assert duration_text(duration_ms) == text


def test_there_may_be_no_rules_at_all() -> None:
    assert asks_of(OPENING, Rules(), Reservation(1, 1)) == []
