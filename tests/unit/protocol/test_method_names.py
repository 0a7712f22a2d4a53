"""Names that can be no methods of extensions."""

import pytest

from gateway.protocol.method_names import may_be_relayed
from gateway.protocol.methods import ROWS
from tests.requirements import requirement

LOOK_ALIKES = [
    "",
    " ",
    "/",
    "TOOLS/CALL",
    "Tools/Call",
    "com.acme/\x00",
    "com.acme/a b",
    "sampling/CreateMessage",
    "tools/call\n",
    "tools/call ",
    "tools/call/",
    "tools/call\u200b",
    "tools/c\u0430ll",
    "tools\u2044call",
    "\uff54ools/call",
]


@requirement("ext.relay")
@pytest.mark.parametrize("method", LOOK_ALIKES)
def test_what_looks_like_a_method_of_mcp_or_like_nothing_passes_neither_as_request_nor_as_notification(
    method: str,
) -> None:
    assert not may_be_relayed(method, is_request=True) and not may_be_relayed(method, is_request=False)


@requirement("ext.relay")
def test_no_method_of_clients_or_servers_passes_in_any_case() -> None:
    for row in ROWS:
        for name in (row.name, row.name.upper(), row.name.title()):
            assert not may_be_relayed(name, is_request=row.is_request), name


@requirement("ext.relay")
def test_a_request_is_not_named_like_a_notification() -> None:
    for method in ("notifications/com.acme/changed", "Notifications/com.acme/changed"):
        assert not may_be_relayed(method, is_request=True) and may_be_relayed(method, is_request=False)


@requirement("ext.relay")
@pytest.mark.parametrize("method", ["$/cancelRequest", "com.acme/search/query", "strange", "tools/callAll"])
def test_other_names_pass(method: str) -> None:
    assert may_be_relayed(method, is_request=True) and may_be_relayed(method, is_request=False)
