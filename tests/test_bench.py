"""A large loss of speed is found here, small ones by `make bench`. Ratios of one run: machines are noisy."""

from pathlib import Path

import httpx
import pytest

from bench.features import collector
from bench.load import Load, measured, opened
from bench.run import measure, share
from bench.subjects import served
from bench.tables import TABLES, Place
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.redis_server import RunningRedis


@pytest.mark.alone
@pytest.mark.timeout(180)
def test_the_gateway_has_not_lost_half_of_its_speed(redis_server: RunningRedis, tmp_path: Path) -> None:
    wanted = ("minimal relay", "gateway, redis", "forwarded, redis")
    results = measure([row for row in TABLES["stores"](Place(tmp_path, redis_server.url)) if row.name in wanted], 1, 2)
    assert not any(run.errors for runs in results.values() for run in runs)
    assert share(results, "gateway, redis", "minimal relay") > 0.55, results  # 1.08
    assert share(results, "forwarded, redis", "minimal relay") > 0.15, results  # 0.29


@pytest.mark.alone
@pytest.mark.timeout(180)
def test_features_cost_little(redis_server: RunningRedis, tmp_path: Path) -> None:
    nothing, everything = "nothing", "everything, spans of 1 trace of 100"
    with collector() as spans:
        rows = TABLES["features"](Place(tmp_path, redis_server.url, spans))
        results = measure([row for row in rows if row.name in (nothing, everything)], 1, 2)
    assert not any(run.errors for runs in results.values() for run in runs)
    assert share(results, everything, nothing) > 0.25, results  # 0.43


@pytest.mark.timeout(180)
def test_memory_stays_flat_under_calls_and_sessions_that_come_and_go(
    redis_server: RunningRedis, tmp_path: Path
) -> None:
    file, load = tmp_path / "soak.lua", Load()
    with served(Place(tmp_path, redis_server.url).gateway()) as (url, process), httpx.Client(timeout=30) as http:

        def lap(seconds: int, sessions: int) -> float:
            assert measured(url, file, seconds, process).errors == 0
            for _ in range(sessions):
                client = Legacy(url, http).open()
                assert tool_text(client.tool("echo", {})) == "ok" and client.delete().status_code == 200
                http.cookies.clear()
            return float(process.memory_full_info().uss) / 1e6

        load.write(file, opened(url, load))
        # What is remembered in bounded tables is remembered by then.
        before = lap(3, 300)
        after = lap(8, 300)
        assert after < before * 1.05 + 1, f"{before:.1f} MB before, {after:.1f} MB after"
