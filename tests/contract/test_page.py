"""How the gateway serves its page: to browsers alone, kept by them, and with a policy that lets nothing else in."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.openai.outcomes import by_reason, by_status
from tests.support.fake_service import fake_service
from tests.support.gateway_harness import RawClient, running_gateway

FOLDER = Path(__file__).parents[2] / "gateway" / "page"
FILES = {file.name: file.read_bytes() for file in sorted(FOLDER.iterdir())}
# What a browser sends when somebody types an address.
BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
MAX_BYTES = 60_000

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def port() -> AsyncIterator[int]:
    async with fake_service() as service, running_gateway(service.address) as gateway:
        yield gateway.port


@pytest_asyncio.fixture(loop_scope="module")
async def client(port: int) -> AsyncIterator[RawClient]:
    async with RawClient(port) as connection:
        yield connection


@pytest.mark.parametrize("name", FILES)
async def test_a_file_is_served_as_it_is_and_kept(name: str, client: RawClient) -> None:
    path = "/" if name == "index.html" else f"/page/{name}"
    response = await client.get(path, headers=BROWSER)
    assert (response.status, response.body) == (200, FILES[name])
    assert response.headers["content-type"] == MEDIA_TYPES[Path(name).suffix]
    assert response.headers["cache-control"] == "no-cache"
    etag = response.headers["etag"]
    assert re.fullmatch(r'"[0-9a-f]{32}"', etag)
    for known in (etag, f'"other", {etag}', f"W/{etag}", "*"):
        again = await client.get(path, headers={**BROWSER, "if-none-match": known})
        assert (again.status, again.headers["etag"]) == (304, etag)
        assert again.headers["content-security-policy"] == response.headers["content-security-policy"]
    assert (await client.get(path, headers={**BROWSER, "if-none-match": '"other"'})).status == 200
    head = await client.get(path, "HEAD", BROWSER)
    assert (head.status, head.headers["content-length"]) == (200, str(len(FILES[name])))


async def test_nothing_from_elsewhere_and_no_markup_from_text_is_let_in(client: RawClient) -> None:
    headers = (await client.get("/", headers=BROWSER)).headers
    policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("accept", [None, "*/*", "application/json"])
async def test_who_is_no_browser_is_told_where_to_go(accept: str | None, client: RawClient) -> None:
    response = await client.get("/", headers={"accept": accept} if accept else None)
    assert response.json()["name"] == "headrace"
    # One address, two answers: caches have to know.
    assert response.headers["vary"] == "accept"
    assert (await client.get("/", headers=BROWSER)).headers["vary"] == "accept"


@pytest.mark.parametrize(
    "path",
    ["/page", "/page/", "/page/index.html", "/page/nope.js", "/page/../app.py", "/page/..%2fapp.py", "/page//page.js"],
)
async def test_there_is_nothing_else_beside_its_files(path: str, client: RawClient) -> None:
    response = await client.get(path, headers=BROWSER)
    assert response.status == 404
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_gateway_can_be_without_it() -> None:
    async with (
        fake_service() as service,
        running_gateway(service.address, page=False) as gateway,
        gateway.connect() as client,
    ):
        response = await client.get("/", headers=BROWSER)
        assert response.json()["name"] == "headrace"
        assert "vary" not in response.headers
        assert (await client.get("/page/page.js")).status == 404


async def test_it_is_light() -> None:
    assert sum(map(len, FILES.values())) <= MAX_BYTES


class _Markup(HTMLParser):
    """Collects what a page names, and what the policy forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.named: set[str] = set()
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.named |= {value for name in ("src", "href") if (value := given.get(name))}
        if tag == "style" or "style" in given or (tag == "script" and "src" not in given):
            self.inline.append(tag)
        self.inline += [name for name in given if name.startswith("on")]


async def test_every_file_is_used_and_nothing_lies_elsewhere() -> None:
    markup = _Markup()
    markup.feed(FILES["index.html"].decode())
    assert markup.inline == []
    imported = {
        f"page/{name}"
        for body in FILES.values()
        for name in re.findall(r'^import .* from "\./(.+)";$', body.decode(), re.MULTILINE)
    }
    assert markup.named | imported == {f"page/{name}" for name in FILES if name != "index.html"}
    for name, body in FILES.items():
        assert set(re.findall(r"https?://[^\"'\s)]+", body.decode())) <= {"http://www.w3.org/2000/svg"}, name


async def test_every_error_code_has_a_sentence() -> None:
    table = FILES["errors.js"].decode().partition("const BY_CODE = {")[2].partition("\n};")[0]
    worded = set(re.findall(r"^  (\w+):", table, re.MULTILINE))
    # What is wrong with a request the API itself says best.
    by_status_alone = {"invalid_value", "unsupported_parameter", "not_implemented", None}
    codes = {outcome.code for known in (by_reason, by_status) for outcome in known.values()}
    assert codes - by_status_alone <= worded
    assert worded - codes == {"request_timeout", "unreachable", "connection_lost"}
