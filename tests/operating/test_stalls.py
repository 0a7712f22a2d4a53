"""What blocks the event loop of a gateway is in its metrics and in its log."""

import re
import signal
import time

import httpx
import psutil

from tests.operating.conftest import ADMIN
from tests.operating.test_metrics import scrape, value
from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway, running_gateway
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.waiting import eventually

SERVERS = {"stalling": {"in_process": "tests.support.sdk_servers:stalling"}}
STALLS = "mcp_gateway_loop_stall_seconds"


def stalls_over(gateway: RunningGateway, ops: httpx.Client, seconds: str) -> float:
    series = scrape(gateway, ops)
    return value(series, f"{STALLS}_count") - value(series, f"{STALLS}_bucket", le=seconds)


def is_idle(process: psutil.Process) -> bool:
    """Whether it does nothing but beat for a while."""
    before = process.cpu_times()
    time.sleep(0.3)
    return process.cpu_times() == before


@requirement("ops.stalls", "ops.health")
def test_a_stall_is_in_metrics_and_log(http: httpx.Client, ops: httpx.Client) -> None:
    with running_gateway(SERVERS, options={"admin": ADMIN, "log_calls_per_s": 0}) as gateway:
        client = Legacy(gateway.url, http).open()
        before = stalls_over(gateway, ops, "0.5")
        assert tool_text(client.tool("block", {"seconds": 1.0})) == "ok"
        assert eventually(lambda: stalls_over(gateway, ops, "0.5") > before)
        named = r"the event loop was blocked for (\d\.\d+) s \(.*tests\.support\.sdk_servers:\d+ keep_the_loop < "
        assert eventually(lambda: re.search(named, gateway.stderr()) is not None), gateway.stderr()
        assert value(scrape(gateway, ops), "mcp_gateway_collector_pause_seconds_count") >= 0
        generations = {dict(labels).get("generation") for name, labels in scrape(gateway, ops) if "collector" in name}
        assert generations == {"0", "1", "2"}
        assert "outcome=" not in gateway.stderr(), "lines of calls can be off"


@requirement("ops.stalls")
def test_a_process_that_was_stopped_while_idle_blames_no_code() -> None:
    with running_gateway(SERVERS, options={"stall_log_s": 0.5}) as gateway:
        process = psutil.Process(gateway.pid)
        assert eventually(lambda: is_idle(process), 30), "what it does when it is stopped would be named: its start"
        process.send_signal(signal.SIGSTOP)
        assert eventually(lambda: process.status() == psutil.STATUS_STOPPED)
        assert not eventually(lambda: "was blocked" in gateway.stderr(), 1.5)
        process.send_signal(signal.SIGCONT)
        assert eventually(lambda: "the process did not run" in gateway.stderr()), gateway.stderr()
