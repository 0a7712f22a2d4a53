"""How an HTTP link tells requests of the two eras apart."""

import msgspec
import pytest

from transports.upstream.streamable_http import modern_version

VERSION = "io.modelcontextprotocol/protocolVersion"


def test_a_modern_request_names_its_version() -> None:
    meta = msgspec.json.encode({VERSION: "2026-07-28", "note": 1})
    assert modern_version({"_meta": msgspec.Raw(meta)}) == "2026-07-28"


@pytest.mark.parametrize(
    "meta",
    [b'{"note": "' + VERSION.encode() + b'"}', b'["' + VERSION.encode() + b'"]', b'{"' + VERSION.encode() + b'": 7}'],
)
def test_the_same_text_elsewhere_in_meta_makes_no_modern_request(meta: bytes) -> None:
    assert modern_version({"_meta": msgspec.Raw(meta)}) == ""


def test_a_request_without_meta_is_legacy() -> None:
    assert modern_version({}) == ""
