"""Names that can be no methods of extensions."""

import pytest

from gateway.protocol.method_names import may_be_relayed
from gateway.protocol.methods import ROWS
from tests.requirements import requirement

pytestmark = requirement("ext.relay")

LOOK_ALIKES = {
    "nothing": ["", " ", "/", "com.acme/\x00", "com.acme/a b"],
    "another case": ["TOOLS/CALL", "Tools/Call", "sampling/CreateMessage"],
    "other letters": ["tools/c\u0430ll", "tools\u2044call", "\uff54ools/call"],
    "something behind it": ["tools/call\n", "tools/call ", "tools/call/", "tools/call\u200b"],
}


@pytest.mark.parametrize("methods", LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_what_looks_like_a_method_of_mcp_or_like_nothing_passes_neither_as_request_nor_as_notification(
    methods: list[str],
) -> None:
    assert not [each for each in methods for kind in (True, False) if may_be_relayed(each, is_request=kind)]


def test_no_method_of_clients_or_servers_passes_in_any_case() -> None:
    for row in ROWS:
        for name in (row.name, row.name.upper(), row.name.title()):
            assert not may_be_relayed(name, is_request=row.is_request), name


def test_a_request_is_not_named_like_a_notification() -> None:
    for method in ("notifications/com.acme/changed", "Notifications/com.acme/changed"):
        assert not may_be_relayed(method, is_request=True) and may_be_relayed(method, is_request=False)


@pytest.mark.parametrize("method", ["$/cancelRequest", "com.acme/search/query", "strange", "tools/callAll"])
def test_other_names_pass(method: str) -> None:
    assert may_be_relayed(method, is_request=True) and may_be_relayed(method, is_request=False)
