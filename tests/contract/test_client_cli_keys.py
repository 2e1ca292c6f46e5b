"""`headrace keys` as a process, and the variable that has a key for the other commands."""

import asyncio
import json
from pathlib import Path

import pytest

from headrace.cli._keys_file import read
from service.core.identity import Identity
from service.tenancy.keys import parse_keys
from tests.support.command_line import run
from tests.support.fake_service import fake_service

NOW = 1_900_000_000.0
NOBODY = "127.0.0.1:1"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "keys.toml")


async def test_a_key_is_shown_once_and_then_only_its_id(path: str) -> None:
    done = await run(NOBODY, "keys", "create", "--file", path, "--tenant", "acme", "--expires", "520w", "--note", "[b]")
    key = done.out.strip()
    assert done.code == 0
    assert parse_keys(text_of(path), "keys.toml").identify(key, NOW) == Identity(
        tenant="acme", subject=f"key:{key[3:11]}"
    )
    assert key not in done.err
    shown = await run(NOBODY, "keys", "list", "--file", path)
    assert key[3:11] in shown.out
    assert "[b]" in shown.out
    assert read(Path(path))[0]["sha256"] not in shown.out


async def test_the_commands_speak_json(path: str) -> None:
    made = await run(NOBODY, "keys", "create", "--file", path, "--tenant", "t", "--models", "a, b", "--json")
    fields = json.loads(made.out)
    assert (fields["tenant"], fields["models"], fields["expires"]) == ("t", ["a", "b"], None)
    assert fields["key"].startswith(f"hr_{fields['id']}_")
    for state in ("active", "revoked"):
        (row,) = json.loads((await run(NOBODY, "keys", "list", "--file", path, "--json")).out)
        assert (row["id"], row["state"], row["models"]) == (fields["id"], state, ["a", "b"])
        # The whole key names it too, and is not repeated.
        done = await run(NOBODY, "keys", "revoke", "--file", path, fields["key"])
        assert (done.code, fields["key"] in done.out + done.err) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["create"], 2),
        (["create", "--tenant", "a b"], 2),
        (["create", "--tenant", "t", "--expires", "soon"], 2),
        (["create", "--tenant", "t", "--expires", "2001-01-01"], 2),
        (["create", "--tenant", "t", "--models", "a,,b"], 2),
        (["revoke", "hr_secret"], 2),
        (["revoke", "00000000"], 1),
        (["list"], 1),
    ],
    ids=str,
)
async def test_mistakes_are_told_and_write_nothing(path: str, arguments: list[str], code: int) -> None:
    done = await run(NOBODY, "keys", arguments[0], "--file", path, *arguments[1:])
    assert (done.code, done.out) == (code, "")
    assert done.err
    assert "hr_secret" not in done.err
    assert not is_there(path)


async def test_several_writers_lose_no_key(path: str) -> None:
    made = await asyncio.gather(
        *(run(NOBODY, "keys", "create", "--file", path, "--tenant", f"t{n}", "--json") for n in range(4))
    )
    ids = {json.loads(done.out)["id"] for done in made}
    assert {table["id"] for table in read(Path(path))} == ids
    assert len(ids) == 4


async def test_the_variable_s_key_goes_with_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_service() as fake:
        monkeypatch.setenv("HEADRACE_API_KEY", "hr_1")
        await run(fake.address, "generate", "hi", "--model", "m")
        assert (await fake.next_call()).header("authorization") == "Bearer hr_1"
        await run(fake.address, "generate", "hi", "--model", "m", "--api-key", "hr_2")
        assert (await fake.next_call()).header("authorization") == "Bearer hr_2"
        await run(fake.address, "generate", "hi", "--model", "m", "--metadata", "authorization=Basic x")
        assert (await fake.next_call()).header("authorization") == "Basic x"
        monkeypatch.setenv("HEADRACE_API_KEY", "canary\u00e9")
        done = await run(fake.address, "models")
        assert (done.code, "canary" in done.err) == (2, False)


def is_there(path: str) -> bool:
    return Path(path).exists()


def text_of(path: str) -> str:
    return Path(path).read_text("utf-8")
