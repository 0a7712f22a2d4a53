"""What a server lists is kept within bounds."""

from gateway.protocol.listing import MOST_BYTES, MOST_TOOLS, Names, Tools, items_of
from gateway.protocol.uris import is_of
from tests.requirements import requirement

SCHEMA = {"type": "object"}


@requirement("wall.memory", "wall.decoded")
def test_what_a_server_lists_is_kept_within_bounds() -> None:
    many = [{"name": f"t{n}", "inputSchema": SCHEMA} for n in range(10_000)]
    large = [{"name": f"t{n}", "description": "x" * (1 << 20), "inputSchema": SCHEMA} for n in range(20)]
    assert len(Tools(many).listed) == MOST_TOOLS
    assert Tools(large).size <= MOST_BYTES and len(Tools(large).listed) == 3
    assert Names.of([{"uri": f"{n}" + "x" * 8_000} for n in range(4_000)], "uri").size <= MOST_BYTES
    page = {"tools": [{"name": "x" * 257}, {"name": 7}, {}, "x", {"name": ""}, {"name": "good"}]}
    assert items_of(page, "tools", "name", most_chars=256) == [{"name": "good"}]
    assert not is_of("xy" * 9, "{a}y" * 2_000)
