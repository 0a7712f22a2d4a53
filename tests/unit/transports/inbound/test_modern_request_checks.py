"""The rules of the 2026-07-28 wire: headers that agree with the body, methods, and the status of an answer."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, InboundLadderRejection, classify_inbound_request
from mcp_types import CLIENT_CAPABILITIES_META_KEY

from tests.requirements import requirement
from tests.support.mcp_clients import modern_body, modern_headers
from transports.era import VERSION_KEY
from transports.inbound.modern_request_checks import (
    VERSION_HEADER,
    check_notification,
    check_param_headers,
    check_request,
    status_of,
)
from transports.inbound_port import Refused
from transports.jsonrpc import METHOD_NOT_FOUND, decode_object, encode, parse

pytestmark = requirement("spec.modern")

HEADER_MISMATCH, UNSUPPORTED_VERSION, INVALID_PARAMS = -32020, -32022, -32602
CALL = modern_body("tools/call", {"name": "echo", "arguments": {}})
SCHEMA = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


def check(body: Any = CALL, *more: tuple[str, str], **changed: str | None) -> None:
    """Check a request as a client sends it, with headers changed, left out (None) or added."""
    named: dict[str, str | None] = {name.lower(): value for name, value in modern_headers(body).items()}
    named |= {name.replace("_", "-"): value for name, value in changed.items()}
    kept = [(name, value) for name, value in named.items() if value is not None] + list(more)
    message = parse(encode(body))
    raw = [(name.encode(), value.encode()) for name, value in kept]
    check_request(message, message.params_object(), body["params"].get("_meta"), dict(kept), raw)


def refusal(
    body: Any = CALL, *more: tuple[str, str], words: str | None = None, **changed: str | None
) -> tuple[int, int]:
    """The status and the code with which a request is refused that `check` checks. `words` say why."""
    with pytest.raises(Refused, match=words) as refused:
        check(body, *more, **changed)
    return refused.value.status, refused.value.code


@requirement("ext.relay")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_requests_about_a_task_name_the_task_in_their_headers(method: str) -> None:
    body = modern_body(method, {"taskId": "t-1"})
    check(body)
    for named, words in (("t-2", "does not match"), (None, "is missing: it must be the request body's 'taskId'")):
        assert refusal(body, words=words, mcp_name=named) == (400, HEADER_MISMATCH)


@requirement("wire.connection-survives")
def test_a_name_that_cannot_be_read_is_refused_as_invalid_params() -> None:
    message = parse(json.dumps(CALL).replace('"echo"', "1e400").encode())
    params = message.params_object()
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}
    with pytest.raises(Refused, match="cannot be read") as refused:
        check_request(message, params, json.loads(bytes(params["_meta"])), headers, [])
    assert refused.value.code == INVALID_PARAMS


def test_a_header_that_stands_twice_is_refused() -> None:
    assert refusal(CALL, ("mcp-name", "echo"), words="more than once") == (400, HEADER_MISMATCH)


def test_a_version_that_nobody_knows_is_refused_with_those_that_are_served() -> None:
    body = json.loads(json.dumps(CALL).replace("2026-07-28", "2099-01-01"))
    assert refusal(body, mcp_protocol_version="2099-01-01") == (400, UNSUPPORTED_VERSION)
    with pytest.raises(Refused):
        check_notification({"mcp-protocol-version": "2099-01-01"})
    check_notification({"mcp-protocol-version": "2026-07-28"})


@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel", "resources/subscribe"])
def test_a_method_that_the_revision_removed_is_unknown(method: str) -> None:
    assert refusal(modern_body(method, {"uri": "note://a"}), words=method) == (404, METHOD_NOT_FOUND)


def test_a_header_that_mirrors_an_argument_agrees_with_it() -> None:
    def mirrored(*headers: tuple[bytes, bytes]) -> None:
        check_param_headers(list(headers), SCHEMA, decode_object(b'{"arguments":{"region":"eu"}}', "params"))

    mirrored((b"mcp-param-region", b"eu"))
    for headers in ([(b"mcp-param-region", b"us")], [(b"mcp-param-region", b"eu"), (b"Mcp-Param-Region", b"us")], []):
        with pytest.raises(Refused) as refused:
            mirrored(*headers)
        assert refused.value.code == HEADER_MISMATCH


METHODS = st.sampled_from(["tools/call", "resources/read", "tools/list", "other"])
VERSIONS = st.sampled_from(["2026-07-28", "2025-11-25", ""]) | st.sampled_from([None, 1])
NAMES = st.sampled_from(["echo", "=?base64?ZWNobw==?=", "ä", ""]) | st.sampled_from([None, 1])
METAS: st.SearchStrategy[Any] = (
    st.fixed_dictionaries({}, optional={VERSION_KEY: VERSIONS, CLIENT_CAPABILITIES_META_KEY: st.just({})})
    | st.none()
    | st.just([])
)
# A name that is not ASCII passes uncoded in the SDK. The specification wants it refused.
HEADERS = st.fixed_dictionaries(
    {},
    optional={VERSION_HEADER: VERSIONS.map(str), "mcp-method": METHODS, "mcp-name": NAMES.map(str).filter(str.isascii)},
)


@given(method=METHODS, name=NAMES, meta=METAS, headers=HEADERS)
def test_requests_are_refused_as_the_sdk_refuses_them(
    method: str, name: Any, meta: Any, headers: dict[str, str]
) -> None:
    params = {"name": name, "uri": name, "_meta": meta}
    verdict = classify_inbound_request({"method": method, "params": params}, headers=headers)
    expected = (verdict.code, verdict.message, verdict.data) if isinstance(verdict, InboundLadderRejection) else None
    message = parse(encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
    found = None
    try:
        check_request(message, message.params_object(), meta, headers, [])
    except Refused as refused:
        # The SDK says the same of a header that is missing as of one that differs.
        text = str(refused).replace("header is missing: it must be the", "header does not match the")
        data = {key: value for key, value in refused.data.items() if key != "reason"}
        found = (refused.code, text, data or None)
        assert refused.status == ERROR_CODE_HTTP_STATUS[refused.code]
    assert found == expected


def test_each_error_has_the_status_that_the_sdk_gives_it_and_other_answers_are_200() -> None:
    assert {code: status_of(code) for code in ERROR_CODE_HTTP_STATUS} == ERROR_CODE_HTTP_STATUS
    assert {METHOD_NOT_FOUND: 404, HEADER_MISMATCH: 400}.items() <= ERROR_CODE_HTTP_STATUS.items()
    assert status_of(None) == status_of(-32000) == 200
