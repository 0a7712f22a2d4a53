"""Which extension a method belongs to."""

from typing import Any

import pytest

from gateway.protocol.extensions import MOST_NAME_CHARS, MOST_NAMES, Declared, closest, match
from tests.requirements import requirement
from transports.jsonrpc import encode


@requirement("ext.relay")
@pytest.mark.parametrize(
    ("method", "declared", "how_closely"),
    [
        ("com.acme/search", "com.acme/search", 3),
        ("com.acme/search/query", "com.acme/search", 3),
        ("notifications/com.acme/search/done", "com.acme/search", 3),
        ("com.acme/searches", "com.acme/search", 2),
        ("com.acme/other", "com.acme/search", 2),
        ("notifications/com.acme/other", "com.acme/search", 2),
        ("search/query", "com.acme/search", 1),
        ("search", "com.acme/search", 1),
        ("notifications/search", "com.acme/search", 1),
        ("search/query", "search", 1),
        ("com.acme.evil/search", "com.acme/search", 0),
        ("com.acm", "com.acme/search", 0),
        ("searching/query", "com.acme/search", 0),
        ("query", "com.acme/search", 0),
    ],
)
def test_a_method_belongs_to_an_extension_by_its_beginning(method: str, declared: str, how_closely: int) -> None:
    assert match(method, declared) == how_closely


@requirement("ext.relay")
@pytest.mark.parametrize(
    ("capabilities", "names", "is_open"),
    [
        ({"tools": {}, "tasks": {}, "sampling": {}}, (), False),
        ({"extensions": {"io.modelcontextprotocol/ui": {}}}, ("io.modelcontextprotocol/ui",), False),
        ({"extensions": {"com.acme/a": {}}}, ("com.acme/a",), True),
        ({"experimental": {"a": {}}}, ("a",), True),
        ({"widgets": {}}, ("widgets",), True),
        ({"extensions": [], "experimental": None}, (), False),
        ([], (), False),
    ],
)
def test_what_a_party_declares_beyond_the_core(capabilities: object, names: tuple[str, ...], is_open: bool) -> None:
    found = Declared.of(encode(capabilities))
    assert found == Declared(names, is_open=is_open)
    assert found.takes("any/method") is is_open


@requirement("ext.relay")
def test_the_closest_declaration_counts() -> None:
    exact, vendor, name, other = (Declared((n,)) for n in ("com.acme/a", "com.acme/b", "a", "z"))
    parties = {"other": other, "name": name, "vendor": vendor, "exact": exact, "exact too": exact}
    assert closest("com.acme/a/do", parties.items()) == ["exact", "exact too"]
    assert closest("com.acme/c", parties.items()) == ["vendor", "exact", "exact too"]
    assert closest("a/do", parties.items()) == ["name", "exact", "exact too"]
    assert closest("q/do", parties.items()) == []


@requirement("ext.relay")
def test_so_many_names_count_and_no_longer_ones() -> None:
    long = "com.acme/" + "a" * MOST_NAME_CHARS
    many: dict[str, Any] = {"extensions": {long: {}} | {f"com.a{number}/x": {} for number in range(MOST_NAMES + 10)}}
    found = Declared.of(encode(many | {"own": {}}))
    assert len(found.names) == MOST_NAMES and found.left_off == 12
    assert found.match("com.a0/do") == 2 and found.match(f"com.a{MOST_NAMES}/do") == found.match(long) == 0
    assert not Declared.of(encode({"extensions": {long: {}}})).is_open
