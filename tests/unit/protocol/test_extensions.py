"""Which extension a method belongs to."""

from typing import Any

import pytest

from gateway.protocol.extensions import MOST_NAME_CHARS, MOST_NAMES, Declared, closest, match
from tests.requirements import requirement
from transports.jsonrpc import encode

pytestmark = requirement("ext.relay")


@pytest.mark.parametrize(
    ("how_closely", "methods"),
    [
        (3, ("com.acme/search", "com.acme/search/query", "notifications/com.acme/search/done")),
        (2, ("com.acme/searches", "com.acme/other", "notifications/com.acme/other")),
        (1, ("search/query", "search", "notifications/search")),
        (0, ("com.acme.evil/search", "com.acm", "searching/query", "query")),
    ],
)
def test_a_method_belongs_to_an_extension_by_its_beginning(how_closely: int, methods: tuple[str, ...]) -> None:
    assert {method: match(method, "com.acme/search") for method in methods} == dict.fromkeys(methods, how_closely)
    assert match("search/query", "search") == 1, "one without a vendor"


@pytest.mark.parametrize(
    ("capabilities", "names", "is_open"),
    [
        ({"tools": {}, "tasks": {}, "sampling": {}}, (), False),
        ({"extensions": {"io.modelcontextprotocol/ui": {}}}, ("io.modelcontextprotocol/ui",), False),
        *(({"extensions": {"com.acme/a": {}}}, ("com.acme/a",), True), ({"experimental": {"a": {}}}, ("a",), True)),
        *(
            ({"widgets": {}}, ("widgets",), True),
            ({"extensions": [], "experimental": None}, (), False),
            ([], (), False),
        ),
    ],
)
def test_what_a_party_declares_beyond_the_core(capabilities: object, names: tuple[str, ...], is_open: bool) -> None:
    found = Declared.of(encode(capabilities))
    assert found == Declared(names, is_open=is_open)
    assert found.takes("any/method") is is_open


def test_the_closest_declaration_counts() -> None:
    exact, vendor, name, other = (Declared((n,)) for n in ("com.acme/a", "com.acme/b", "a", "z"))
    parties = {"other": other, "name": name, "vendor": vendor, "exact": exact, "exact too": exact}
    assert closest("com.acme/a/do", parties.items()) == ["exact", "exact too"]
    assert closest("com.acme/c", parties.items()) == ["vendor", "exact", "exact too"]
    assert closest("a/do", parties.items()) == ["name", "exact", "exact too"]
    assert closest("q/do", parties.items()) == []


def test_so_many_names_count_and_no_longer_ones() -> None:
    long = "com.acme/" + "a" * MOST_NAME_CHARS
    many: dict[str, Any] = {"extensions": {long: {}} | {f"com.a{number}/x": {} for number in range(MOST_NAMES + 10)}}
    found = Declared.of(encode(many | {"own": {}}))
    assert len(found.names) == MOST_NAMES and found.left_off == 12
    assert found.match("com.a0/do") == 2 and found.match(f"com.a{MOST_NAMES}/do") == found.match(long) == 0
    assert not Declared.of(encode({"extensions": {long: {}}})).is_open
