"""Ready means that a request is answered best here: on the public listener, and on that of operators."""

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from gateway.errors import STORE_UNAVAILABLE
from tests.requirements import requirement
from tests.support.credentials import sha256
from tests.support.gateway_process import DEMO, SIGNED, RunningGateway, operators_of, running_gateway, server
from tests.support.mcp_clients import Legacy, messages
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.table_server import EXITS, GOOD, table_server
from tests.support.waiting import eventually

KEY = "key of an operator, long enough"
SERVERS = {"demo": server(DEMO)}


def opens(gateway: RunningGateway, http: httpx.Client) -> bool:
    answer = Legacy(gateway.url, http).initialize()
    return answer.status_code == 200 and "result" in messages(answer)[-1]


def agrees(gateway: RunningGateway, http: httpx.Client, bases: list[str], is_ready: bool) -> None:
    """Every listener says so within seconds, and so it is."""
    status = 200 if is_ready else 503
    for base in bases:
        assert eventually(lambda base=base: http.get(f"{base}/readyz").status_code == status, 10), base  # type: ignore[misc]
    assert opens(gateway, http) is is_ready


def away(ready: httpx.Response) -> bool:
    """Whether it says that its store is away."""
    assert ready.status_code == 200, "the store of all replicas: no other one would answer better"
    return "new sessions" in ready.json().get("store", "")


@requirement("wall.ready", "rep.store-down")
def test_a_gateway_whose_redis_takes_no_writes_stays_ready_and_says_so(http: httpx.Client) -> None:
    def full(redis: Any) -> Callable[[], Any]:
        redis.config_set("maxmemory-policy", "noeviction")
        redis.config_set("maxmemory", "1mb")
        return lambda: redis.config_set("maxmemory", "0")

    def read_only(redis: Any) -> Callable[[], Any]:
        redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        return lambda: redis.execute_command("REPLICAOF", "NO", "ONE")

    def lonely(redis: Any) -> Callable[[], Any]:
        redis.config_set("min-replicas-to-write", "3")
        return lambda: redis.config_set("min-replicas-to-write", "0")

    with running_redis() as store:
        options = {"store": store.url, "admin": {"listen": "127.0.0.1:0", "keys": {"ops": sha256(KEY)}}}
        with running_gateway(SERVERS, options=options, env=SIGNED) as gateway:
            bases = [gateway.base, operators_of(gateway)]
            agrees(gateway, http, bases, True)
            for spoil in (full, read_only, lonely):
                mend = spoil(store.client())
                for base in bases:
                    assert eventually(lambda base=base: away(http.get(f"{base}/readyz")), 10), base  # type: ignore[misc]
                refused = Legacy(gateway.url, http).initialize()
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert refused.json()["error"]["code"] == STORE_UNAVAILABLE
                key = {"Authorization": f"Bearer {KEY}"}
                assert "mcp_gateway_store_up 0" in http.get(f"{operators_of(gateway)}/metrics", headers=key).text
                mend()
                assert eventually(lambda: not away(http.get(f"{bases[0]}/readyz")), 10)
                agrees(gateway, http, bases, True)


@requirement("wall.ready")
def test_a_file_on_a_full_disk_is_not_ready(tmp_path: Path, http: httpx.Client) -> None:
    options = {"store": f"sqlite:///{tmp_path / 'sessions.db'}", "admin": {"listen": "127.0.0.1:0"}}
    with running_gateway(SERVERS, options=options) as gateway:
        bases = [gateway.base, operators_of(gateway)]
        agrees(gateway, http, bases, True)
        process = psutil.Process(gateway.pid)
        most = process.rlimit(resource.RLIMIT_FSIZE)
        # As on a full disk: what is there can be read and written over, and no file grows.
        process.rlimit(resource.RLIMIT_FSIZE, ((tmp_path / "sessions.db-wal").stat().st_size, most[1]))
        agrees(gateway, http, bases, False)
        process.rlimit(resource.RLIMIT_FSIZE, most)
        agrees(gateway, http, bases, True)


@requirement("wall.ready", "wall.before-auth")
def test_probes_of_strangers_cost_the_store_nothing(http: httpx.Client) -> None:
    with running_redis() as store:
        with running_gateway(SERVERS, options={"store": store.url}, env=SIGNED) as gateway:
            written, began = sets(store), time.monotonic()
            for _ in range(300):
                assert http.get(f"{gateway.base}/readyz").status_code == 200
            # One a second, and as many of the gateway's own, which says that it lives.
            assert sets(store) - written <= 2 * (time.monotonic() - began) + 10


@requirement("wall.ready")
def test_an_only_server_that_cannot_start_is_not_ready_and_one_of_several_is(
    tmp_path: Path, http: httpx.Client
) -> None:
    table = tmp_path / "table"
    table.write_text(json.dumps(EXITS))
    broken, options = table_server(table), {"admin": {"listen": "127.0.0.1:0"}}
    with running_gateway({"files": broken}, options=options) as gateway:
        bases = [gateway.base, operators_of(gateway)]
        agrees(gateway, http, bases, False)
        assert http.get(f"{gateway.base}/healthz").status_code == 200, "to be restarted would not help"
        assert http.get(f"{bases[0]}/readyz").json() == {"ready": False, "draining": False}, "strangers learn no names"
        told = http.get(f"{bases[1]}/readyz").json()["unavailable"]
        assert "exited with code 3" in told["files"]
        table.write_text(json.dumps(GOOD))  # and no client asks: the gateway tries again by itself
        agrees(gateway, http, bases, True)
        assert http.get(f"{bases[1]}/readyz").json()["unavailable"] == {}
        table.write_text(json.dumps(EXITS))
        assert opens(gateway, http) is False
        agrees_on_ready = [http.get(f"{base}/readyz").status_code for base in bases]
        assert agrees_on_ready == [200, 200], "a server that fails later takes no replica out of rotation"
    with running_gateway({"files": broken, **SERVERS}, options=options) as gateway:
        agrees(gateway, http, [gateway.base], True)
        assert "files" in http.get(f"{operators_of(gateway)}/readyz").json()["unavailable"]


def sets(store: RunningRedis) -> int:
    return int(store.client().info("commandstats").get("cmdstat_set", {}).get("calls", 0))
