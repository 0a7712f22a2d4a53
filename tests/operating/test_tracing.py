"""One trace for one call: from the client, through the replicas it crosses, to the server."""

import json
from typing import Any

import httpx

from tests.operating.trace_picture import depth_of, picture, traced_call
from tests.requirements import requirement
from tests.support.gateway_process import PROBE, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, Modern, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.span_collector import collecting
from tests.support.waiting import eventually

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}


@requirement("ops.health", "ctx.correlation")
def test_one_call_is_one_trace_across_client_two_replicas_and_server(redis_server: RunningRedis) -> None:
    spans = traced_call(redis_server)
    assert len({span.trace for span in spans}) == 1
    lineage = [(s.service, s.kind) for s in sorted(spans, key=lambda s: depth_of(s, spans))]
    assert lineage == [
        ("agent", "internal"),
        ("agent", "client"),
        ("replica B", "server"),
        ("replica B", "client"),  # forwards
        ("replica A", "server"),
        ("replica A", "client"),
        ("server", "server"),
    ]
    by_depth = {depth_of(span, spans): span for span in spans}
    assert by_depth.keys() == set(range(7)), "each within the one before"
    call = by_depth[4]
    assert (call.facts["mcp.method.name"], call.facts["gen_ai.tool.name"]) == ("tools/call", "echo")
    assert call.name == "tools/call echo" and len(call.facts["mcp.session.id"]) == 8
    drawn = picture(spans)
    assert all(name in drawn for name in ("agent", "replica A", "replica B", "server"))


@requirement("ops.health", "ctx.correlation")
def test_a_trace_goes_on_to_the_server_and_spans_say_how_a_call_failed(
    probe: RunningGateway, http: httpx.Client
) -> None:
    def meta(url: str, **how: Any) -> Any:
        return json.loads(tool_text(Modern(url, http).tool("meta", **how)))

    url = probe.at("probe")
    assert CONTEXT.items() <= meta(url, meta=CONTEXT).items(), "from _meta, as it came"
    assert CONTEXT.items() <= meta(url, headers=CONTEXT).items(), "from headers"
    assert "traceparent" not in meta(url, headers={"traceparent": "00-no-good"})
    with collecting() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        with running_gateway({"probe": server(PROBE)}, options={"tracing": True}, env=env) as gateway:
            told = meta(gateway.url, headers=CONTEXT)
            _, trace, parent, _ = told["traceparent"].split("-")
            assert trace == TRACE and parent != PARENT and told["tracestate"] == "vendor=1"
            # A client cannot pose as a replica that forwards.
            forged = {"mcp-gateway-traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
            assert "1" * 32 not in meta(gateway.url, headers=forged)["traceparent"]
            assert eventually(lambda: any(span.id == parent for span in collector.spans))
            client = Legacy(gateway.url, http).open()
            client.tool("fail")
            client.tool("crash")
            Legacy(gateway.url, http).call("tools/list")
    [call] = [span for span in collector.spans if span.id == parent]
    [request] = [span for span in collector.spans if span.id == call.parent]
    assert request.parent == PARENT and (request.kind, call.kind) == ("server", "client")
    failed = {span.name: span for span in collector.spans if span.kind == "server" and span.failed}
    assert failed["tools/call fail"].facts["error.type"] == "tool_error"
    assert failed["tools/call crash"].facts["rpc.response.status_code"] == "-32014"
    assert failed["tools/list"].facts["rpc.response.status_code"].startswith("-32")
