"""What depends on the server's version."""

from __future__ import annotations

import dataclasses

import pytest

from service.backends.triton.versions import SINCE, Abilities, abilities_of


@pytest.mark.parametrize(
    ("version", "is_able"),
    [("2.51.0", False), ("2.67.9", False), ("2.68.0", True), ("2.68.0dev", True), ("v2.70", True), ("3.0.0", True)],
)
def test_the_error_header_is_for_servers_that_survive_it(version: str, *, is_able: bool) -> None:
    assert abilities_of(version).grpc_errors is is_able


@pytest.mark.parametrize("version", ["", "dev", "2", "unknown.1.2"])
def test_a_version_that_cannot_be_read_counts_as_the_oldest(version: str) -> None:
    assert not any(dataclasses.astuple(abilities_of(version)))


def test_every_row_of_the_table_is_an_ability() -> None:
    assert SINCE.keys() == {field.name for field in dataclasses.fields(Abilities)}


def test_each_ability_begins_with_its_version() -> None:
    for name, (major, minor) in SINCE.items():
        assert getattr(abilities_of(f"{major}.{minor}.0"), name)
        assert not getattr(abilities_of(f"{major}.{minor - 1}.0"), name)
