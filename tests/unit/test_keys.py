"""API keys and the file that has them: what is taken, what is refused, and that no secret is told."""

from __future__ import annotations

import hmac
import logging
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.cli import _keys
from headrace.cli._keys_file import KeysFileProblem, add, new_key, read, revoke
from service.core.identity import Identity
from service.tenancy import keys as service_keys
from service.tenancy.key_file import KeyFile
from service.tenancy.keys import KeySet, KeysFileError, parse_keys
from service.tenancy.refusal import Refused
from tests.support.credentials import made_key

NOW = 1_900_000_000.0
HASH = "ab" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def parsed(path: Path) -> KeySet:
    return parse_keys(path.read_text("utf-8"), "keys.toml")


def cause(keys: KeySet, text: str) -> str:
    with pytest.raises(Refused) as refused:
        keys.identify(text, NOW)
    return refused.value.cause


# Keys


def test_a_key_that_the_command_made_shows_whose_it_is(path: Path) -> None:
    key = made_key(path, "acme", models=["sim", 'od"d'], note='for "us"\n[[keys]]')
    other = made_key(path, "beta")
    assert re.fullmatch(r"hr_[0-9a-f]{8}_[A-Za-z0-9_-]{43}", key.text)
    keys = parsed(path)
    assert keys.identify(key.text, NOW) == Identity(
        tenant="acme", subject=f"key:{key.id}", models=frozenset({"sim", 'od"d'})
    )
    assert keys.identify(other.text, NOW) == Identity(tenant="beta", subject=f"key:{other.id}")
    secret = key.text.rpartition(key.id)[2][1:]
    assert secret not in path.read_text("utf-8")
    assert secret not in repr(key)
    assert path.stat().st_mode & 0o777 == 0o600


def test_wrong_credentials_are_refused_for_a_cause_without_their_secret(path: Path) -> None:
    key = made_key(path)
    keys, secret = parsed(path), "x" * 43
    assert cause(keys, f"hr_{key.id}_{secret}") == f"wrong secret for the API key {key.id}"
    assert cause(keys, f"hr_00000000_{secret}") == "no API key has the id 00000000"
    for text in (
        "",
        "hr_",
        key.text[:-1],
        key.text + "a",
        key.text.upper(),
        f"hr_{key.id}_{'ü' * 43}",
        key.text + "\n",
    ):
        assert cause(keys, text) == "malformed API key"


def test_an_expired_and_a_revoked_key_are_refused(path: Path) -> None:
    moment = datetime.fromtimestamp(NOW, UTC)
    old, good, gone = (made_key(path, expires=moment + timedelta(seconds=s)) for s in (0, 1, 1))
    assert revoke(path, gone.id)
    assert not revoke(path, gone.id)
    keys = parsed(path)
    assert cause(keys, old.text) == f"the API key {old.id} has expired"
    assert cause(keys, gone.text) == f"the API key {gone.id} is revoked"
    assert keys.identify(good.text, NOW).tenant == "acme"


@pytest.mark.parametrize(("written", "is_revoked"), [("true", True), ("2020-01-01T00:00:00Z", True), ("false", False)])
def test_a_person_may_revoke_a_key_by_hand(path: Path, written: str, *, is_revoked: bool) -> None:
    key = made_key(path)
    path.write_text(path.read_text() + f"revoked = {written}\n")
    if is_revoked:
        assert "revoked" in cause(parsed(path), key.text)
        assert not revoke(path, key.id)
    else:
        assert parsed(path).identify(key.text, NOW)
        assert revoke(path, key.id)
        assert "revoked" in cause(parsed(path), key.text)


def test_an_unknown_id_is_compared_like_a_wrong_secret(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = made_key(path)
    keys, compared = parsed(path), []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for key_id in (key.id, "00000000"):
        cause(keys, f"hr_{key_id}_{'x' * 43}")
    assert compared == [(32, 32), (32, 32)]


@given(st.text())
def test_no_text_breaks_the_check_or_the_parser(text: str) -> None:
    with pytest.raises(Refused):
        KeySet().identify(text, NOW)
    with suppress(KeysFileError):
        parse_keys(text, "keys.toml")


def test_the_command_and_the_service_have_the_same_rule_for_tenants() -> None:
    assert f"^{_keys._TENANT.pattern}$" == service_keys.TENANT_PATTERN


# Subjects of certificates

SUBJECTS = """
[[subjects]]
name = "payments"
tenant = "acme"
models = ["sim"]
[[subjects]]
name = "spiffe://prod/search"
tenant = "beta"
"""


def test_a_certificate_is_known_by_its_uri_or_its_common_name() -> None:
    keys = parse_keys(SUBJECTS, "keys.toml")
    found = Identity(tenant="acme", subject="certificate:payments", models=frozenset({"sim"}))
    assert keys.identify_peer(["payments"], []) == found
    by_uri = keys.identify_peer(["whatever"], ["spiffe://prod/search"])
    assert by_uri == Identity(tenant="beta", subject="certificate:spiffe://prod/search")
    assert keys.identify_peer(["gateway"], ["spiffe://prod/gateway"]) is None
    assert keys.identify_peer([], []) is None


def test_a_name_counts_only_where_it_belongs() -> None:
    keys = parse_keys(SUBJECTS, "keys.toml")
    assert keys.identify_peer(["spiffe://prod/search"], []) is None
    assert keys.identify_peer([], ["payments"]) is None


def test_names_of_two_tenants_are_nobodys() -> None:
    with pytest.raises(Refused, match="several tenants"):
        parse_keys(SUBJECTS, "keys.toml").identify_peer(["payments"], ["spiffe://prod/search"])


# The file


def test_all_problems_of_a_file_are_told_with_their_lines_and_without_values() -> None:
    text = f"""
[[keys]]
id = "hr_0a0a0a0a_secret"
tenant = "a b"
sha256 = "{HASH}"
modles = ["sim"]

[[keys]]
id = "0a0a0a0a"
tenant = "acme"
sha256 = "secret"
expires = 2030-01-01T00:00:00
created = "yesterday"

[[keys]]
id = "0a0a0a0a"
tenant = "acme"

[[subjects]]
name = ""
"""
    with pytest.raises(KeysFileError) as wrong:
        parse_keys(text, "keys.toml")
    places = [problem.split(": ")[:2] for problem in wrong.value.problems]
    assert places == [
        ["keys.toml:2", "keys[0].id"],
        ["keys.toml:2", "keys[0].modles"],
        ["keys.toml:2", "keys[0].tenant"],
        ["keys.toml:8", "keys[1].created"],
        ["keys.toml:8", "keys[1].expires"],
        ["keys.toml:8", "keys[1].sha256"],
        ["keys.toml:15", "keys[2].id"],
        ["keys.toml:15", "keys[2].sha256"],
        ["keys.toml:19", "subjects[0].name"],
        ["keys.toml:19", "subjects[0].tenant"],
    ]
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize("text", ["keys = 3", "[keys]\nid = 1", "users = []", "[[keys]\n", "\x00"])
def test_what_is_no_file_of_keys_is_refused(text: str) -> None:
    with pytest.raises(KeysFileError, match=r"keys\.toml"):
        parse_keys(text, "keys.toml")


def test_a_file_that_changes_is_read_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    key = made_key(path)
    file = KeyFile(path)
    file.look()
    assert not caplog.records
    revoke(path, key.id)
    file.look()
    assert "revoked" in cause(file.keys, key.text)
    assert [record.levelname for record in caplog.records] == ["INFO"]


@pytest.mark.parametrize("break_it", [lambda path: path.write_text("[[keys"), lambda path: path.unlink()])
def test_a_file_that_breaks_changes_nothing_and_is_told_once_and_when_it_is_mended(
    path: Path, break_it: Any, caplog: pytest.LogCaptureFixture
) -> None:
    key = made_key(path)
    file, good = KeyFile(path), path.read_text()
    break_it(path)
    file.look()
    file.look()
    assert file.keys.identify(key.text, NOW)
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert str(path) in record.getMessage()
    path.write_text(good)
    revoke(path, key.id)
    file.look()
    assert "revoked" in cause(file.keys, key.text)


@pytest.mark.parametrize("text", [None, "[[keys", b"\xff"])
def test_a_file_that_is_wrong_from_the_start_is_an_error(path: Path, text: str | bytes | None) -> None:
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(KeysFileError):
        KeyFile(path)


# What the command writes


def test_what_people_wrote_stays(path: Path) -> None:
    path.write_text('# ours\nkeys = []\n[[subjects]]\nname = "x" # the gateway\ntenant = "t"\n')
    with pytest.raises(KeysFileProblem, match="by hand"):  # an array that is written in one line cannot be added to
        add(path, new_key("acme"))
    path.write_text(path.read_text().replace("keys = []\n", ""))
    one, other = made_key(path), made_key(path)
    path.write_text(path.read_text().replace(f'id = "{one.id}"', f'id = "{one.id}" # Ann\'s'))
    path.chmod(0o640)
    revoke(path, one.id)
    text = path.read_text()
    assert "# ours" in text
    assert "# the gateway" in text
    assert "# Ann's" in text
    assert path.stat().st_mode & 0o777 == 0o640
    assert [("revoked" in table) for table in read(path)] == [True, False]
    assert parsed(path).identify(other.text, NOW)
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_the_file_on_the_page_is_a_good_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tenancy.md").read_text("utf-8")
    (block,) = re.findall(r"```toml\n(\[\[keys\]\].*?)```", page, re.DOTALL)
    assert len(parse_keys(block, "keys.toml")) == 2


def test_a_link_stays_one(path: Path) -> None:
    link = path.with_name("link.toml")
    made_key(path)
    link.symlink_to(path.name)
    made_key(link)
    assert link.is_symlink()
    assert len(read(path)) == 2


def test_what_is_written_oddly_is_left_alone(path: Path) -> None:
    text = f'keys = [{{id = "0a0a0a0a", tenant = "t", sha256 = "{HASH}"}}]\n'
    path.write_text(text)
    with pytest.raises(KeysFileProblem, match="by hand"):
        revoke(path, "0a0a0a0a")
    assert path.read_text() == text
    assert [found.name for found in path.parent.iterdir()] == [path.name]


@given(
    note=st.text(st.characters(exclude_categories=["Cs"])),
    models=st.none() | st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), max_size=3),
)
@example(note="\u2028[[keys]]\u2028revoked = true", models=["\x7f"])
def test_any_note_and_any_model_come_back(
    tmp_path_factory: pytest.TempPathFactory, note: str, models: list[str] | None
) -> None:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    key = made_key(path, models=models, note=note)
    revoke(path, made_key(path, note=note).id)
    found = read(path)[0]
    assert (found.get("note", ""), found.get("models")) == (note, models)
    identity = parsed(path).identify(key.text, NOW)
    assert identity.models == (None if models is None else frozenset(models))
