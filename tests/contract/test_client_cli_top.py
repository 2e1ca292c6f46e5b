"""`headrace top` as a process, against pages of metrics that a test serves."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.cli._scrape import MAX_BYTES, Address, ScrapeError, reader_of
from tests.support.command_line import WAIT_S, Done, end, run, start
from tests.support.credentials import certificate
from tests.support.metrics_page import MetricsPage, serving_pages, whole
from tests.support.processes import free_ports

NOWHERE = "127.0.0.1:1"  # no service of gRPC is asked
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def growing(process: str = "host:1") -> Callable[[], str]:
    """Return pages of a busy model: each has 3 more completed, 1 more refused, and 120 more tokens."""
    count = 0

    def page() -> str:
        nonlocal count
        count += 1
        made = MetricsPage(process).load(running=3, waiting=2, oldest_s=1.5)
        made.ended(3 * count).ended(count, "rejected", "QUEUE_FULL")
        made.ttft(("0.2", count), ("0.4", 3 * count), ("+Inf", 3 * count), total=0.9 * count)
        return made.add("headrace_server_output_tokens_total", 120 * count, headrace_priority="interactive").text()

    return page


async def top(*arguments: str) -> Done:
    return await run(NOWHERE, "top", *arguments)


async def failure(url: str, timeout_s: float = 5) -> str:
    """Return why a page cannot be read."""
    read = reader_of(ssl.create_default_context(), timeout_s)
    with pytest.raises(ScrapeError) as failed:
        await asyncio.to_thread(read, Address.parsed(url))
    return str(failed.value)


async def test_once_prints_an_interval_and_what_was_counted_since_the_start() -> None:
    async with serving_pages(growing()) as pages:
        done = await top("--url", pages.url, "--once", "-n", "0.5")
        assert (done.code, done.err) == (0, "")
        assert len(pages.heads) == 2
        interval, _, total = done.out.partition("since the start")
        for text in (
            "m  ready",
            "3 of 4",
            "2 interactive (the oldest for 1.50 s)",
            "3 completed, 1 refused (QUEUE_FULL)",
        ):
            assert text in interval
        assert re.search(r"TTFT +250 ms +385 ms +397 ms +3", interval)
        assert re.search(r"tokens +2\d\d /s out", interval)
        assert "6 completed, 2 refused (QUEUE_FULL)" in total
        assert re.search(r"TTFT +250 ms +385 ms +397 ms +6", total)
        assert "240 out, 0 in" in total
        assert "\x1b" not in done.out


async def test_json_is_one_object_an_interval_until_ctrl_c() -> None:
    async with serving_pages(growing()) as pages:
        process = await start(NOWHERE, "top", "--url", pages.url, "--json", "-n", "0.2", "--window", "60")
        assert process.stdout is not None
        lines = [json.loads(await asyncio.wait_for(process.stdout.readline(), WAIT_S)) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        done = await end(process)
        assert (done.code, done.err) == (0, "")
        for number, line in enumerate(lines, 1):
            (model,) = line["models"]
            window = model["window"]
            assert window["ended"] == {
                "completed": 3 * number,
                "cancelled": 0,
                "failed": {},
                "refused": {"QUEUE_FULL": number},
            }
            assert window["output_tokens"] == 120 * number
            assert window["output_tokens_per_s"] == pytest.approx(120 * number / line["window_s"], rel=1e-3)
            assert window["latency_s"]["interactive"]["ttft"]["p50"] == pytest.approx(0.25)
            assert model["total"]["ended"]["completed"] == 3 * (number + 1)
            assert model["classes"]["interactive"] == {"running": 3, "slots": 4, "waiting": 2, "oldest_wait_s": 1.5}


async def test_replicas_are_added_up_and_one_that_is_down_is_said() -> None:
    (port,) = free_ports(1)
    async with serving_pages(growing("a:1")) as first, serving_pages(growing("b:1")) as second:
        down = f"http://127.0.0.1:{port}/metrics"
        arguments = ["--url", first.url, "--url", second.url, "--url", down, "--once", "-n", "0.2"]
        line = json.loads((await top(*arguments, "--json")).out)
        assert [(replica["is_up"], replica["problem"]) for replica in line["replicas"]] == [
            (True, None),
            (True, None),
            (False, "connection refused"),
        ]
        (model,) = line["models"]
        assert (model["ready_replicas"], model["replicas"]) == (2, 2)
        assert model["classes"]["interactive"]["slots"] == 8
        assert model["window"]["ended"]["completed"] == 6
        shown = (await top(*arguments)).out
        assert "2 of 3 replicas answer" in shown
        assert f"! {down}: connection refused" in shown


async def test_without_a_terminal_there_is_a_row_for_each_model_and_an_outage_is_told_once() -> None:
    async with serving_pages(growing()) as pages:
        process = await start(NOWHERE, "top", "--url", pages.url, "-n", "0.2")
        assert process.stdout is not None
        assert process.stderr is not None

        async def row() -> list[str]:
            assert process.stdout is not None
            return (await asyncio.wait_for(process.stdout.readline(), WAIT_S)).decode().split()

        names = await row()
        first = dict(zip(names, await row(), strict=True))
        assert (first["model"], first["ready"], first["slots"], first["wait"], first["oldest"]) == (
            *("m", "1/1", "3/4", "2", "1.50s"),
        )
        assert (first["ttft50"], first["ttft95"], first["done"], first["refuse"]) == ("250ms", "385ms", "3", "1")
        assert (first["queue95"], first["goodput"]) == ("-", "-")
        pages.is_down = True
        told = (await asyncio.wait_for(process.stderr.readline(), WAIT_S)).decode()
        assert told == f"{pages.url}: it closes the connection without an answer\n"
        while dict(zip(names, await row(), strict=True))["ready"] != "-":
            pass
        pages.is_down = False
        while dict(zip(names, await row(), strict=True))["ready"] != "1/1":
            pass
        process.send_signal(signal.SIGINT)
        done = await end(process)
        assert (done.code, done.err) == (0, "")


async def test_who_reads_may_leave() -> None:
    async with serving_pages(growing()) as pages:
        command = f"{sys.executable} -m headrace.cli top --url {pages.url} -n 0.2 | head -1"
        process = await asyncio.create_subprocess_exec(
            *("bash", "-o", "pipefail", "-c", command), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), WAIT_S)
        assert (process.returncode, err) == (0, b"")
        assert out.startswith(b"time ")


async def test_nobody_there_is_one_line_that_says_what_to_do() -> None:
    (port,) = free_ports(1)
    done = await top("--url", f"127.0.0.1:{port}", "--timeout", "3")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"error: UNAVAILABLE: http://127.0.0.1:{port}/metrics: connection refused; the service shows its metrics if it "
        "is started with --metrics-port\n"
    )


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (whole("<html><body>Hello</body></html>\n"), "what is there is no Prometheus text"),
        (whole('{"status": "ok"}'), "what is there is no Prometheus text"),
        (whole("\xff\xfe"), "what is there is no Prometheus text"),
        (whole(""), "the page is empty"),
        (whole("# TYPE node_load1 gauge\nnode_load1 0.3\n"), "what is there has no metrics of Headrace"),
        (whole("nothing here\n", "404 Not Found"), "it answers HTTP 404"),
        (whole("# TYPE headrace_x counter\nheadrace_x_total 1\n")[:-5], "the page is cut off"),
        (whole("# TYPE headrace_x counter\nheadrace_x_total 1"), "the page is cut off"),
        (b"220 mail.example ESMTP\r\n", "it does not speak HTTP"),
        (b"", "it closes the connection without an answer"),
        (whole("", "302 Found\r\nLocation: ftp://127.0.0.1/x"), "unknown url type: ftp"),
    ],
)
async def test_what_is_no_page_of_headrace_is_said_to_be_none(answer: bytes, told: str) -> None:
    async with serving_pages(raw=answer) as pages:
        assert await failure(pages.url) == told


async def test_an_address_that_shows_something_else_is_one_line() -> None:
    async with serving_pages(lambda: "<html></html>\n") as pages:
        done = await top("--url", pages.url, "--once")
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith(f"error: UNAVAILABLE: {pages.url}: what is there is no Prometheus text; ")
        assert len(done.err.splitlines()) == 1


async def test_a_page_has_a_bound() -> None:
    async with serving_pages(raw=b"HTTP/1.1 200 OK\r\n\r\n" + b"# x\n" * (MAX_BYTES // 4 + 1)) as pages:
        assert await failure(pages.url, timeout_s=20) == "the page has more than 16 MB"


async def test_who_answers_by_the_byte_is_given_up() -> None:
    async with serving_pages(raw=b"HTTP/1.1 200 OK\r\n\r\n") as pages:
        pages.drip = b"#"
        assert await failure(pages.url, timeout_s=0.3) == "no answer within 0.3 s"


async def test_who_does_not_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert await failure(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.3) == "no answer within 0.3 s"


async def test_a_head_that_comes_by_the_byte_holds_up_nothing_else() -> None:
    async with serving_pages(growing()) as pages, serving_pages(raw=b"HTTP/1.1 200 OK\r\n") as slow:
        slow.drip = b"x"
        done = await top("--url", pages.url, "--url", slow.url, "--once", "--json", "-n", "0.2", "--timeout", "0.3")
        line = json.loads(done.out)
        assert [replica["problem"] for replica in line["replicas"]] == [None, "no answer within 0.3 s"]
        assert line["models"][0]["window"]["ended"]["completed"] == 3


async def test_a_page_over_tls_is_read_with_the_authority_that_is_given(tmp_path: Path) -> None:
    subject = ("-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test")
    made = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", *subject), cwd=tmp_path, stderr=asyncio.subprocess.DEVNULL
    )
    assert await made.wait() == 0
    certificate(tmp_path, "server", "localhost", "IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    async with serving_pages(growing(), tls=context) as pages:
        url = pages.url.replace("http:", "https:")
        assert (await top("--url", url, "--once", "-n", "0.2", "--tls-ca", str(tmp_path / "ca.pem"))).code == 0
        refused = await top("--url", url, "--once", "-n", "0.2")
        assert refused.code == 1
        assert "its certificate is not accepted" in refused.err


async def test_credentials_of_an_address_are_sent_and_not_shown() -> None:
    async with serving_pages(growing()) as pages:
        done = await top("--url", pages.url.replace("//", "//user:s%40cret@"), "--once", "-n", "0.2")
        assert done.code == 0
        assert "cret" not in done.out
        assert "authorization: basic dxnlcjpzqgnyzxq=" in pages.heads[0].lower()


async def test_the_variable_may_have_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_pages(growing("a:1")) as first, serving_pages(growing("b:1")) as second:
        monkeypatch.setenv("HEADRACE_METRICS_URL", f"{first.url} {second.url}")
        assert len(json.loads((await top("--once", "--json", "-n", "0.2")).out)["replicas"]) == 2


async def test_a_model_that_is_not_there_is_an_error() -> None:
    async with serving_pages(growing()) as pages:
        done = await top("--url", pages.url, "--model", "other", "--once")
        assert (done.code, done.err) == (1, "error: NOT_FOUND: no model other\n")


@pytest.mark.parametrize("arguments", [["--url", "ftp://x"], ["-n", "0"], ["--window", "0"], ["--tls-ca", "/no/such"]])
async def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert (await top(*arguments)).code == 2


class Terminal:
    """The command in a terminal of its own; `text` is all that it has shown, without what moves the cursor."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.process = process
        self.raw = bytearray()
        self._master = master
        self._changed = asyncio.Event()

    @property
    def modes(self) -> list[object]:
        return termios.tcgetattr(self._master)

    def on_output(self) -> None:
        try:
            self.raw += os.read(self._master, 65_536)
        except OSError:  # the other side is closed
            asyncio.get_running_loop().remove_reader(self._master)
        self._changed.set()

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    async def shows(self, text: str) -> None:
        """Wait until it shows a text once more."""
        seen = len(self.raw)
        await self.until(lambda: text in ANSI.sub("", self.raw[seen:].decode(errors="ignore")))

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for what its output makes true."""
        async with asyncio.timeout(WAIT_S):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), WAIT_S)


@asynccontextmanager
async def terminal(columns: int, rows: int, *arguments: str, **variables: str) -> AsyncIterator[Terminal]:
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (rows, columns))
    env = {name: text for name, text in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli", "top", *arguments),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=env | {"TERM": "xterm-256color"} | variables,
        # Its controlling terminal, so that Ctrl-C reaches it.
        preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
    )
    os.close(slave)
    shown = Terminal(process, master)
    loop = asyncio.get_running_loop()
    loop.add_reader(master, shown.on_output)
    try:
        yield shown
    finally:
        loop.remove_reader(master)
        os.close(master)
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("columns", [80, 140])
async def test_in_a_terminal_it_is_a_screen_that_survives_an_outage_until_q(columns: int) -> None:
    async with serving_pages(growing()) as pages, terminal(columns, 24, "--url", pages.url, "-n", "0.2") as shown:
        before = shown.modes
        await shown.shows("m  ready")
        assert b"\x1b[?1049h" in shown.raw
        await shown.shows("3 of 4")
        assert shown.modes != before
        pages.is_down = True
        await shown.shows("without an answer")
        await shown.shows("m  no answer")
        pages.is_down = False
        await shown.shows("m  ready")
        shown.press(b"q")
        assert await shown.ended() == 0
        assert shown.modes == before
        assert shown.raw.endswith(b"\x1b[?25h\x1b[?1049l")


async def test_ctrl_c_leaves_the_screen_with_0() -> None:
    async with serving_pages(growing()) as pages, terminal(80, 24, "--url", pages.url, "-n", "0.2") as shown:
        before = shown.modes
        await shown.shows("m  ready")
        shown.press(b"\x03")
        assert await shown.ended() == 0
        assert shown.modes == before


async def test_a_terminal_is_given_back_also_after_sigterm() -> None:
    async with serving_pages(growing()) as pages, terminal(80, 24, "--url", pages.url, "-n", "0.2") as shown:
        before = shown.modes
        await shown.shows("m  ready")
        shown.process.terminate()
        assert await shown.ended() == 128 + signal.SIGTERM
        assert shown.modes == before
        assert shown.raw.endswith(b"\x1b[?1049l")


async def test_ctrl_z_gives_the_terminal_back_until_it_goes_on() -> None:
    async with serving_pages(growing()) as pages, terminal(80, 24, "--url", pages.url, "-n", "0.2") as shown:
        await shown.shows("m  ready")
        shown.process.send_signal(signal.SIGTSTP)
        await shown.until(lambda: shown.raw.endswith(b"\x1b[?1049l"))
        # A shell knows when it has stopped; SIGCONT before that would be lost.
        await asyncio.to_thread(os.waitid, os.P_PID, shown.process.pid, os.WSTOPPED | os.WNOWAIT)
        shown.process.send_signal(signal.SIGCONT)
        await shown.shows("m  ready")
        shown.press(b"q")
        assert await shown.ended() == 0


async def test_tab_goes_on_to_the_next_of_several_models() -> None:
    def page() -> str:
        return "".join(MetricsPage(model=name).load(running=1).text() for name in ("one", "two"))

    async with serving_pages(page) as pages, terminal(80, 20, "--url", pages.url, "-n", "0.2") as shown:
        await shown.shows("── one")
        await shown.shows("Tab: the next model")
        shown.press(b"\t")
        await shown.shows("── two")
        shown.press(b"q")
        assert await shown.ended() == 0


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {}])
async def test_there_are_colours_unless_no_color_is_set(variables: dict[str, str]) -> None:
    async with (
        serving_pages(growing()) as pages,
        terminal(80, 24, "--url", pages.url, "-n", "0.2", **variables) as shown,
    ):
        await shown.shows("m  ready")
        await shown.shows("reader lag")
        colours = re.findall(rb"\x1b\[(?:\d+;)*3\d(?:;\d+)*m", shown.raw)
        assert bool(colours) != bool(variables)
        shown.press(b"q")
        assert await shown.ended() == 0


async def test_a_terminal_that_can_do_nothing_gets_rows() -> None:
    async with (
        serving_pages(growing()) as pages,
        terminal(80, 24, "--url", pages.url, "-n", "0.2", TERM="dumb") as shown,
    ):
        await shown.shows("250ms")
        assert b"\x1b" not in shown.raw
        shown.press(b"\x03")
        assert await shown.ended() == 0
