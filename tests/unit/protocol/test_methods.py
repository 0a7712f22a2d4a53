"""The table of methods agrees with the SDK."""

from mcp_types.methods import CLIENT_NOTIFICATIONS, CLIENT_REQUESTS

from gateway.protocol.methods import METHODS
from tests.requirements import requirement


@requirement("wall.decoded")
def test_the_table_has_every_method_of_every_revision() -> None:
    for table, is_request in ((CLIENT_REQUESTS, True), (CLIENT_NOTIFICATIONS, False)):
        for method, revision in table:
            row = METHODS[method]
            assert row.is_request is is_request
            assert ("modern" if revision >= "2026-07-28" else "legacy") in row.eras, (method, revision)
