"""Operators: a sign-out ends the sign-in wherever its cookie is, and wrong keys are waited for."""

import math
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.admin.auth import FREE, LONGEST_S
from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import DEMO, RunningGateway, replicas, server
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.waiting import eventually

KEY = "operator-key-of-the-tests"
SERVERS = {"main": server(DEMO, shared=True)}
OPTIONS: dict[str, Any] = {
    "admin": {"keys": {"olga": sha256(KEY)}},
    "auth": {"proxies": {"networks": ["127.0.0.0/8"]}},
    "anonymous": True,
}


@pytest.fixture(scope="module")
def redis() -> Iterator[RunningRedis]:
    with running_redis() as running:
        yield running


@pytest.fixture(scope="module")
def pair(redis: RunningRedis) -> Iterator[tuple[RunningGateway, RunningGateway]]:
    with replicas(redis.url, SERVERS, **OPTIONS) as (one, other):
        yield one, other


def sign_in(gateway: RunningGateway, http: httpx.Client, key: str = KEY, address: str = "192.0.2.1") -> httpx.Response:
    return http.post(f"{gateway.base}/admin/sign-in", data={"key": key}, headers={"X-Forwarded-For": address})


def cookie_of(response: httpx.Response) -> dict[str, str]:
    assert response.status_code == 303, response.text
    return {"Cookie": response.headers["set-cookie"].partition(";")[0]}


@requirement("wall.audit", "ops.console")
def test_a_sign_out_ends_that_sign_in_on_every_replica(
    pair: tuple[RunningGateway, RunningGateway], http: httpx.Client
) -> None:
    one, other = pair
    mine, stolen = cookie_of(sign_in(one, http)), cookie_of(sign_in(one, http))
    pages = [f"{gateway.base}{path}" for gateway in pair for path in ("/admin", "/admin/api/sessions")]
    assert [http.get(page, headers=mine).status_code for page in pages] == [200] * 4
    out = http.post(f"{other.base}/admin/sign-out", headers=mine)
    assert out.status_code == 303 and "Max-Age=0" in out.headers["set-cookie"]
    assert [http.get(page, headers=mine).status_code for page in pages] == [303, 401, 303, 401]
    assert http.get(f"{one.base}/admin/live", headers=mine).status_code == 401
    assert [http.get(page, headers=stolen).status_code for page in pages] == [200] * 4, "another sign-in goes on"
    key = bearer(KEY)

    def told() -> set[str]:
        events = http.get(f"{one.base}/admin/api/events", headers=key).json()
        return {event["reason"] for event in events if event["event"] == "operated"}

    words = {"the operator olga has signed in", "the operator olga has signed out"}
    assert eventually(lambda: words <= told()), told()


@requirement("wall.audit")
def test_an_open_page_ends_with_its_sign_in(pair: tuple[RunningGateway, RunningGateway], http: httpx.Client) -> None:
    one, other = pair
    mine = cookie_of(sign_in(one, http))
    with http.stream("GET", f"{one.base}/admin/live", headers=mine) as live:
        lines = live.iter_lines()
        assert next(lines).startswith("data: ")
        assert http.post(f"{other.base}/admin/sign-out", headers=mine).status_code == 303
        assert len(list(lines)) < 20, "the stream has come to its end"


@requirement("wall.audit")
def test_while_the_store_is_away_nobody_is_signed_in(
    redis: RunningRedis, pair: tuple[RunningGateway, RunningGateway], http: httpx.Client
) -> None:
    one, _ = pair
    mine = cookie_of(sign_in(one, http))
    redis.freeze()
    try:
        for path in ("/admin", "/admin/sessions", "/admin/live", "/admin/api/replicas"):
            assert http.get(one.base + path, headers=mine).status_code == 503, path
        out = http.post(f"{one.base}/admin/sign-out", headers=mine)
        assert out.status_code == 503 and "set-cookie" not in out.headers
        assert sign_in(one, http).status_code == 503
    finally:
        redis.thaw()
    assert eventually(lambda: http.get(f"{one.base}/admin", headers=mine).status_code == 200)


@requirement("wall.audit", "wall.before-auth", "wall.order")
@pytest.mark.parametrize("door", ["sign-in", "rest", "metrics"])
def test_wrong_keys_are_waited_for_and_told(
    door: str, pair: tuple[RunningGateway, RunningGateway], http: httpx.Client
) -> None:
    one, address = pair[0], {"sign-in": "192.0.2.7", "rest": "192.0.2.8", "metrics": "192.0.2.9"}[door]

    def attempt(key: str, address: str = address) -> httpx.Response:
        if door == "sign-in":
            return sign_in(one, http, key, address)
        path = "/metrics" if door == "metrics" else "/admin/api/replicas"
        return http.get(one.base + path, headers={**bearer(key), "X-Forwarded-For": address})

    mine = cookie_of(sign_in(one, http, address=address))
    began = time.monotonic()
    wrong = [attempt(f"wrong-{number}") for number in range(FREE + 5)]
    for _ in range(33):
        assert attempt(KEY).status_code in (200, 303), "the right key works, whoever else is behind the address"
        wrong.append(attempt("wrong"))
    refused = [answer for answer in wrong if answer.status_code == 429]
    answered = [answer.status_code for answer in wrong if answer not in refused]
    assert set(answered) == {403 if door == "sign-in" else 401}
    waits_over = math.log2(time.monotonic() - began + 1)  # of 1, 2, 4, … seconds
    assert FREE <= len(answered) <= FREE + waits_over
    assert all(1 <= int(answer.headers["retry-after"]) <= LONGEST_S for answer in refused)
    assert attempt(KEY, "192.0.2.200").status_code in (200, 303), "nobody else waits"
    assert http.get(f"{one.base}/admin", headers={**mine, "X-Forwarded-For": address}).status_code == 200

    def told() -> int:
        events = http.get(f"{one.base}/admin/api/events", headers=bearer(KEY)).json()
        wrong = [e for e in events if "operator key" in e["reason"] and e["client"] == address]
        return sum(e.get("count", 1) for e in wrong)

    assert eventually(lambda: told() == len(answered))


@requirement("wall.memory")
def test_the_form_of_the_sign_in_page_is_small(pair: tuple[RunningGateway, RunningGateway], http: httpx.Client) -> None:
    answer = http.post(f"{pair[0].base}/admin/sign-in", data={"key": "x" * 100_000})
    assert answer.status_code == 413
