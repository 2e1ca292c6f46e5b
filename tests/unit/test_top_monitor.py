"""What `headrace top` shows of pages of metrics: models, replicas, restarts, words."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli import _top_figures
from headrace.cli._rates import Quantile
from headrace.cli._scrape import Address, Page, ScrapeError, page_of
from headrace.cli._top_figures import Figures, ends_of
from headrace.cli._top_lines import fields_of
from headrace.cli._top_monitor import History, ModelView, Monitor, Snapshot
from headrace.cli._top_words import duration, ends_line, goodput_line, latency, share, sparkline
from runtime.metrics import METRICS, Kind
from tests.support.metrics_page import MetricsPage

AT = datetime(2026, 11, 30, 12, tzinfo=UTC)


def read(made: MetricsPage) -> Page:
    return page_of(made.text())


def only(snapshot: Snapshot) -> ModelView:
    (model,) = snapshot.models
    return model


def lately(snapshot: Snapshot) -> Figures:
    figures = only(snapshot).lately
    assert figures is not None
    return figures


def test_every_metric_that_is_read_is_one_of_the_service_with_those_labels() -> None:
    table = {metric.prometheus: metric for metric in METRICS}
    names = [value for value in vars(_top_figures).values() if isinstance(value, str) and "_server_" in value]
    names += [*_top_figures.LATENCIES.values(), _top_figures._SLO, _top_figures._FIRST_CHUNK, _top_figures._LEFT]
    assert len(names) > 15
    assert not [name for name in names if name not in table]
    for name in _top_figures.LATENCIES.values():
        assert table[name].kind is Kind.HISTOGRAM
        assert {"gen_ai.request.model", "headrace.priority"} <= set(table[name].attributes)
    labels = {
        "headrace_server_generations_total": {"headrace.stream.outcome", "headrace.error.reason"},
        "headrace_server_cancelled_total": {"headrace.cancel.cause", "headrace.cancel.phase"},
        "headrace_slo_evaluations_total": {"headrace.slo.name", "headrace.slo.met"},
        "headrace_gateway_disconnects_total": {"headrace.disconnect.phase"},
        "http_server_request_duration_seconds": {"http.route", "http.response.status_code"},
        "headrace_server_model_ready": {"gen_ai.provider.name"},
    }
    for name, expected in labels.items():
        assert expected <= set(table[name].attributes)


def test_before_the_second_round_there_are_totals_and_no_rates() -> None:
    monitor = Monitor(["a"], 30)
    first = monitor.round(0, AT, {0: read(MetricsPage().load().ended(5))})
    assert first.span_s is None
    assert only(first).lately is None
    assert ends_of(only(first).total).completed == 5
    second = monitor.round(2, AT, {0: read(MetricsPage().load().ended(8).ended(1, "rejected", "QUEUE_FULL"))})
    assert second.span_s == 2
    ends = ends_of(lately(second))
    assert (ends.completed, ends.refused, ends.total) == (3, {"QUEUE_FULL": 1}, 4)


def test_replicas_are_added_up_and_one_that_is_down_is_told() -> None:
    monitor = Monitor(["a", "b"], 30)
    busy = MetricsPage("a:1").load(running=4, waiting=3, oldest_s=2.5)
    both = monitor.round(
        0, AT, {0: read(busy), 1: read(MetricsPage("b:1").load(running=1, ready=0, waiting=1, oldest_s=9))}
    )
    load = only(both).load
    assert load is not None
    assert (load.running, load.slots, load.waiting, load.oldest_wait_s) == (5, 8, 4, 9)
    assert (load.ready, load.replicas, both.up) == (1, 2, 2)
    one = monitor.round(2, AT, {0: read(busy), 1: "connection refused"})
    assert one.up == 1
    assert [(replica.problem, replica.down_s) for replica in one.replicas] == [(None, 0), ("connection refused", 0)]
    load = only(one).load
    assert load is not None
    assert (load.running, load.slots, load.replicas) == (4, 4, 1)
    none = monitor.round(7, AT, {0: "no answer", 1: "connection refused"})
    assert (none.up, only(none).load, none.replicas[1].down_s) == (0, None, 5)


def test_a_replica_that_is_late_keeps_what_it_said_and_is_counted_when_it_comes() -> None:
    monitor = Monitor(["a"], 30)
    monitor.round(0, AT, {0: read(MetricsPage().load(running=2).ended(1))})
    late = monitor.round(2, AT, {})
    assert (late.up, ends_of(lately(late)).total) == (1, 0)
    there = monitor.round(4, AT, {0: read(MetricsPage().load().ended(9))})
    assert ends_of(lately(there)).total == pytest.approx(8)


def test_after_a_restart_the_new_process_is_counted_from_its_start() -> None:
    monitor = Monitor(["a"], 30)
    monitor.round(0, AT, {0: read(MetricsPage("host:1").load().ended(50))})
    monitor.round(2, AT, {0: read(MetricsPage("host:1").load().ended(52))})
    monitor.round(4, AT, {0: "connection refused"})
    back = monitor.round(6, AT, {0: read(MetricsPage("host:1").load().ended(3))})  # the same name, as in a container
    assert ends_of(lately(back)).total == pytest.approx(5)
    assert ends_of(only(back).total).total == 3
    assert back.replicas[0].restarted_ago_s == 0
    # More than before, so that no count falls: the process says that it is another one.
    again = monitor.round(8, AT, {0: read(MetricsPage("host:2").load().ended(100))})
    assert ends_of(lately(again)).total == pytest.approx(105)
    assert monitor.round(80, AT, {0: read(MetricsPage("host:2").load().ended(100))}).replicas[0].restarted_ago_s is None


def test_a_series_that_gets_an_empty_label_is_the_same_one() -> None:
    """The exporter gives every series of a metric the labels that one of them has."""
    name = "headrace_server_generations_total"
    monitor = Monitor(["a"], 30)
    labels = {"headrace_stream_outcome": "completed", "headrace_priority": "interactive"}
    monitor.round(0, AT, {0: read(MetricsPage().load().add(name, 50, **labels))})
    after = MetricsPage().load().ended(52).ended(1, "rejected", "QUEUE_FULL")
    shown = monitor.round(2, AT, {0: read(after)})
    assert shown.replicas[0].restarted_ago_s is None
    assert ends_of(lately(shown)).total == 3


def test_replicas_with_different_objectives_have_quantiles_over_the_edges_they_share() -> None:
    monitor = Monitor(["a", "b"], 30)

    def pages(times: int) -> dict[int, Page | str]:
        one = MetricsPage("a:1").load().ttft(("0.1", 0), ("0.3", 6 * times), ("0.5", 10 * times), ("+Inf", 10 * times))
        other = (
            MetricsPage("b:1")
            .load()
            .ttft(("0.1", 10 * times), ("0.2", 10 * times), ("0.5", 10 * times), ("+Inf", 10 * times))
        )
        return {0: read(one), 1: read(other)}

    monitor.round(0, AT, pages(1))
    histogram = lately(monitor.round(2, AT, pages(2))).histogram("interactive", "ttft")
    assert [edge for edge, _ in histogram.buckets[:-1]] == [0.1, 0.5]
    quantile = histogram.quantile(0.75)
    assert quantile is not None
    assert quantile.value == pytest.approx(0.3)


def test_a_value_above_the_last_edge_is_shown_as_such_and_given_as_the_edge() -> None:
    monitor = Monitor(["a"], 30)
    monitor.round(0, AT, {0: read(MetricsPage().load())})
    shown = monitor.round(
        2, AT, {0: read(MetricsPage().load().ended(4).ttft(("40", 1), ("80", 2), ("+Inf", 4), total=300))}
    )
    histogram = lately(shown).histogram("interactive", "ttft")
    assert latency(histogram.quantile(0.95)) == "> 80 s"
    found = fields_of(shown)["models"][0]["window"]["latency_s"]["interactive"]["ttft"]
    assert found == {"count": 4, "mean": 75, "p50": 80, "p95": 80, "p99": 80, "beyond": ["p95", "p99"]}


def test_what_has_no_data_is_null_and_a_dash_and_never_0() -> None:
    monitor = Monitor(["a"], 30)
    page = read(MetricsPage().load(running=1).ended(3).ttft(("0.1", 3), ("+Inf", 3)))
    monitor.round(0, AT, {0: page})
    idle = monitor.round(2, AT, {0: page})
    found = fields_of(idle)["models"][0]["window"]["latency_s"]["interactive"]["ttft"]
    assert found == {"count": 0, "mean": None, "p50": None, "p95": None, "p99": None, "beyond": []}
    assert latency(lately(idle).histogram("interactive", "ttft").quantile(0.95)) == "-"


def test_models_that_are_wanted_are_shown_alone() -> None:
    page = read(MetricsPage().load().add("headrace_server_model_ready", 1, "gauge", gen_ai_request_model="other"))
    assert [model.name for model in Monitor(["a"], 30).round(0, AT, {0: page}).models] == ["m", "other"]
    assert [model.name for model in Monitor(["a"], 30, ["other"]).round(0, AT, {0: page}).models] == ["other"]


def test_a_gateway_is_shown_without_its_probes() -> None:
    lines = [
        "# TYPE http_server_request_duration_seconds histogram",
        'http_server_request_duration_seconds_count{http_route="/readyz",http_response_status_code="200"} 70',
        'http_server_request_duration_seconds_count{http_route="/v1/x",http_response_status_code="200"} 7',
        'http_server_request_duration_seconds_count{http_response_status_code="404"} 2',
        "# TYPE http_server_active_requests gauge",
        'http_server_active_requests{http_request_method="POST"} 3',
    ]
    gateway = Monitor(["a"], 30).round(0, AT, {0: page_of("\n".join(lines) + "\n")}).gateway
    assert gateway is not None
    assert (gateway.active, dict(gateway.total.statuses)) == (3, {"200": 7, "404": 2})


@given(st.lists(st.tuples(st.floats(0.1, 30), st.one_of(st.none(), st.floats(0, 9))), max_size=200))
def test_a_history_has_a_cell_for_every_five_seconds(steps: list[tuple[float, float | None]]) -> None:
    history, now_s, cells = History(), 0.0, dict[int, float | None]()
    for pause_s, value in steps:
        now_s += pause_s
        history.add(now_s, value)
        cell = int(now_s // 5)
        cells[cell] = cells.get(cell) if value is None else value
    if cells:
        expected = [cells.get(cell) for cell in range(min(cells), max(cells) + 1)]
        assert list(history.cells) == expected[-120:]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "<html><body>x</body></html>\n",
        '{"a": 1}\n',
        "a b c\n",
        "x 1\n",
        "# TYPE x counter\nx_total 1\n",
        "\0\n",
    ],
)
def test_what_is_no_page_of_headrace_is_refused(text: str) -> None:
    with pytest.raises(ScrapeError):
        page_of(text)


@given(st.text(max_size=200))
def test_any_text_is_a_page_or_refused(text: str) -> None:
    with suppress(ScrapeError):
        page_of(f"headrace_x 1\n{text}")


def test_values_that_are_no_numbers_are_left_out() -> None:
    page = page_of("# TYPE headrace_x counter\nheadrace_x_total NaN\n# TYPE headrace_y gauge\nheadrace_y +Inf\n")
    assert (dict(page.counts), dict(page.gauges)) == ({}, {})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("127.0.0.1:9464", "http://127.0.0.1:9464/metrics"),
        ("host", "http://host/metrics"),
        ("https://host:1/", "https://host:1/metrics"),
        ("http://host/a/b?c=d", "http://host/a/b?c=d"),
        ("http://[::1]:9464", "http://[::1]:9464/metrics"),
        ("http://user:secret@host:1/m", "http://host:1/m"),
    ],
)
def test_an_address_may_leave_out_what_is_plain_and_is_shown_without_secrets(text: str, shown: str) -> None:
    address = Address.parsed(text)
    assert address.shown == shown
    assert "secret" not in repr(address)


@pytest.mark.parametrize(
    "text", ["", "ftp://x", "http://", "http://host:port", "http://a b", "http://a\n", "file:///x"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Address.parsed(text)


def test_an_address_that_is_refused_keeps_its_secret() -> None:
    with pytest.raises(ValueError, match=r"no http or https URL") as refused:
        Address.parsed("ftp://user:secret@host")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"), (0, "0 ms"), (0.0004, "0.4 ms"), (0.00994, "9.9 ms"), (0.00996, "10 ms"), (0.126, "126 ms"),
        (0.9994, "999 ms"), (0.9996, "1.00 s"), (1.239, "1.24 s"), (9.994, "9.99 s"), (9.996, "10 s"), (99.4, "99 s"),
        (99.6, "2 min"), (3600, "60 min"), (7200, "2 h"),
    ],
)  # fmt: skip
def test_durations_have_three_digits_and_a_unit(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("quantile", "shown"),
    [
        (None, "-"),
        (Quantile(value=0.25, edge=0.3), "250 ms"),
        (Quantile(value=80, edge=80, is_beyond=True), "> 80 s"),
        (Quantile(value=0.004, edge=0.005, is_below=True), "< 5 ms"),
    ],
)
def test_a_quantile_outside_of_all_edges_is_said_to_be_there(quantile: Quantile | None, shown: str) -> None:
    assert latency(quantile) == shown


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (0, 0, "-"),
        (0, 3, "0 %"),
        (2, 3, "67 %"),
        (9999, 10_000, "99.9 %"),
        (999_999, 1_000_000, "99.9 %"),
        (3, 3, "100 %"),
    ],
)
def test_a_share_is_100_percent_only_if_nothing_is_missing(part: float, whole: float, shown: str) -> None:
    assert share(part, whole) == shown


def test_ends_are_told_with_their_reasons() -> None:
    figures = Figures()
    figures.outcomes |= {
        ("completed", ""): 10,
        ("client_cancelled", ""): 2,
        ("rejected", "QUEUE_FULL"): 3,
        ("backend_error", "BACKEND_ERROR"): 1,
        ("deadline_exceeded", ""): 2,
    }
    figures.cancelled |= {("client", "prefill"): 2, ("deadline", "decode"): 2}
    assert ends_line(ends_of(figures), figures.cancelled) == (
        "10 completed, 2 cancelled (client in prefill), 3 failed (2 deadline_exceeded, 1 BACKEND_ERROR), "
        "3 refused (QUEUE_FULL)"
    )
    assert goodput_line({"all": (2, 3), "ttft": (2, 3), "tpot": (3, 3)}) == "67 % of 3   ttft 67 %, tpot 100 %"


def test_a_sparkline_stands_on_0_and_has_blanks_where_nothing_is_known() -> None:
    assert sparkline([None, 0, 1, 8, None, 4]) == " ▁▂█ ▅"
    assert sparkline([0, 0]) == "▁▁"
