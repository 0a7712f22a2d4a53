"""What a 2025-11-25 client asks for with `params.task`."""

import msgspec
import pytest

from gateway.tasks.requested_tasks import kept_s
from tests.requirements import requirement
from transports.jsonrpc import INVALID_PARAMS, InvalidMessage

pytestmark = requirement("task.asked")


@pytest.mark.parametrize(
    ("ttl", "wanted"),
    [
        ("90000", 90.0),
        ("9e4", 90.0),
        ("1e308", 600.0),
        ("1e400", 600.0),
        ("5", 60.0),
        ("-1e400", 60.0),
        ("null", 600.0),
    ],
)
def test_a_time_to_live_is_cut_to_what_the_settings_keep(ttl: str, wanted: float) -> None:
    assert kept_s(msgspec.Raw(b'{"ttl": %s}' % ttl.encode()), 600.0) == wanted


@pytest.mark.parametrize("task", ["[]", "7", '{"ttl":"90000"}', '{"ttl":true}', '{"ttl":{}}'])
def test_what_cannot_be_read_is_refused(task: str) -> None:
    with pytest.raises(InvalidMessage, match=r"params\.task") as refused:
        kept_s(msgspec.Raw(task.encode()), 600.0)
    assert refused.value.code == INVALID_PARAMS
