"""The same calls through two gateways, of which one has a fast path: both have to answer, send, count and log the same.

    python -m tests.attack.fast_path_differential --requests 150000 --seed 1
    python -m tests.attack.fast_path_differential --requests 150000 --forwarded

With `--forwarded` each is two replicas, of which one has the sessions, and clients call the other one. Each gateway has
servers of its own (`differential_server`), and gets the same steps one after the other (`differential_calls`). Compared
is what clients are answered in each step; after some hundred steps what servers were sent; in the end metrics, log
lines, audit events, and what operators see of sessions.
"""

import argparse
import contextlib
import hashlib
import json
import re
import secrets
import select
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx
from rich.console import Console

from tests.attack.differential_calls import SLOTS, Op, operations, together
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import SIGNED, UNLIMITED, RunningGateway, operators_of, running_gateway, server
from tests.support.http_bytes import connected, listener_of, post
from tests.support.mcp_clients import ACCEPT, VERSION, Legacy, Modern
from tests.support.redis_server import running_redis
from tests.support.waiting import eventually

_STEPS: Final = 400
"""Between two comparisons of what servers were sent."""
_TOGETHER: Final = (32, 1_024)
"""Connections at once, and their calls, after the steps with one seed."""
_POLICIES: Final[Sequence[dict[str, Any]]] = ({}, {"check_arguments": False}, {"check_arguments": True})
_TOOLS: Final = {"*twin": {"blocked": ["badword"]}, "*number": {"bind": {"workspace": "session_id"}}}
_ANSWER_S: Final = 20.0
_KEY: Final = "key-of-the-differential"
_WORD: Final = re.compile(r"[\w.-]{8,}")
_ALONE: Final = re.compile(
    r"(?P<CORRELATION>(?!0{16})[0-9a-f]{32})|(?P<STATE>v1\.[\w-]{99,})|[0-9a-f]{8}(?P<EVENT>-\d+\.[\w-]+)"
)
"""What is another one at each gateway, beside ids of sessions."""
_NUMBER: Final = re.compile(r'((?:id|progressToken|requestId)\\*": ?)(\d+)')
_BY_THE_CLOCK: Final = re.compile("the event loop was blocked for|is not a JSON-RPC message|request refused")
"""Lines of a machine with other things to do, and lines of which there are only some in a time."""
_ALIKE: Final = ("event", "outcome", "reason", "why", "tool", "principal", "count")
"""What refusals have in common that are one event with their number."""
_NEVER_ALIKE: Final = ("timestamp", "at", "took_ms", "took_s", "lasted_s", "number", "size")
_TIMED: Final = re.compile(
    r"_seconds|connection_memory|_created|^(python|process)_|^#|cache_hits|memory(_limit)?_bytes"
)
_SESSION: Final = (
    "session",
    "era",
    "endpoint",
    "client",
    "calls",
    "failed",
    "in_flight",
    "parked",
    "streams",
    "upstreams",
)

_KEYED: Final = 3
"""The slot whose sessions are named by a key."""

_console = Console(highlight=False, soft_wrap=True)


class _Side:
    """One gateway, its clients, and what was seen of it. `owner` has the sessions; it may be the gateway."""

    def __init__(self, gateway: RunningGateway, owner: RunningGateway, folder: Path) -> None:
        self._gateway, self._owner, self._folder = gateway, owner, folder
        self._names: dict[str, str] = {}  # ids of sessions, and what stands for them
        self._opened: Counter[int] = Counter()
        self._tokens: dict[int, str] = {}
        self._heads: dict[int, list[str]] = {}
        self._socks: dict[int, socket.socket] = {}
        self._rest: dict[int, bytes] = {}
        self._read, self._unread = 0, b""
        self._frames: dict[str, list[str]] = {}  # what servers were sent, by process
        self._seen: Counter[str] = Counter()
        self._gateways = [gateway] if owner is gateway else [gateway, owner]
        self._log_begins = [len(each.stderr()) for each in self._gateways]
        self._ops = httpx.Client(base_url=operators_of(owner), headers=bearer(_KEY), timeout=30)
        self._http = httpx.Client(base_url=gateway.base, timeout=30)
        for slot in range(SLOTS):
            self._open(slot)

    def close(self) -> None:
        """End all connections."""
        for conn in (*self._socks,):
            self._leave(conn)
        self._ops.close()
        self._http.close()

    # -- clients

    def _open(self, slot: int) -> None:
        """Open a session in the place of the one before it, which has ended."""
        path = "/servers/a/mcp" if slot >= SLOTS - 2 else "/mcp"
        url = self._owner.base + path
        with httpx.Client(timeout=30) as http:
            if slot % 2:
                keyed = {"MCP-Gateway-Session-Key": hashlib.md5(b"%d %d" % (slot, self._opened[slot])).hexdigest()}
                carrier = keyed if slot == _KEYED else {"MCP-Gateway-Session": "new"}
                new = Modern(url, http, headers=carrier)
                token = new.tool("echo" if slot >= SLOTS - 2 else "a__echo").headers["mcp-gateway-session"]
                carrier = keyed if slot == _KEYED else {"MCP-Gateway-Session": token}
                names = {**ACCEPT, "MCP-Protocol-Version": VERSION, "Mcp-Method": "tools/call", **carrier}
            else:
                legacy = Legacy(url, http).open()
                token, names = legacy.session, legacy.request_headers()
        self._opened[slot] += 1
        self._names |= dict.fromkeys((token.partition(".")[0], token[:8]), f"SESSION-{slot}-{self._opened[slot]}")
        self._tokens[slot] = token
        names = {"Host": "127.0.0.1", "Content-Type": "application/json"} | names
        self._heads[slot] = [path, *(f"{key}: {value}" for key, value in names.items())]
        for conn in (2 * slot, 2 * slot + 1):
            self._leave(conn)

    def _leave(self, conn: int) -> None:
        self._rest.pop(conn, None)
        if (sock := self._socks.pop(conn, None)) is not None:
            sock.close()

    def _request(self, conn: int, body: bytes, tool: str = "", trace: str = "") -> bytes:
        slot = conn // 2 % SLOTS
        path, *names = self._heads[slot]
        names += [f"Mcp-Name: {tool}"] if slot % 2 and tool else []
        return post(path, body, *names, *([f"traceparent: {trace}"] if trace else []))

    def _send(self, conn: int, data: bytes) -> None:
        if conn not in self._socks:
            self._socks[conn] = connected(listener_of(self._gateway.url), timeout_s=_ANSWER_S)
        self._socks[conn].sendall(data)

    def _answer(self, conn: int) -> Any:
        """The next response; status 0 if the connection has ended, or does not go on."""
        if conn not in self._socks:
            return None
        data, sock, why, until = self._rest.get(conn, b""), self._socks[conn], "ended", time.monotonic() + _ANSWER_S
        try:
            while (found := _response(data)) is None and time.monotonic() < until and (got := sock.recv(1 << 18)):
                data += got
        except OSError as error:
            why = type(error).__name__
        if found is None:
            self._leave(conn)
            return 0, why, self._plain(data.decode("utf-8", "replace"))
        status, names, body, self._rest[conn] = found
        if b"connection: close" in (name.lower() for name in names):
            self._leave(conn)
        own = [name for name in names if not name.lower().startswith((b"date:", b"content-length:"))]
        return status, self._plain(b"\n".join(own).decode("latin-1")), self._plain(body.decode("utf-8", "replace"))

    def _ask(self, conn: int, request: bytes) -> Any:
        self._send(conn, request)
        return self._answer(conn)

    def do(self, op: Op) -> list[Any]:  # noqa: C901  # a table
        """Do one step, and return what clients are answered."""
        conn, slot = op.conn, op.conn // 2 % SLOTS
        asked = [self._request(conn, body, tool, op.trace) for body, tool in op.calls]
        match op.kind:
            case "rest":
                time.sleep(0.06)  # then the record of the session is not fresh any more
            case "reconnect":
                self._leave(conn)
            case "pipeline":
                self._send(conn, b"".join(asked))
                return [self._answer(conn) for _ in asked]
            case "list":
                return [
                    self._ask(conn & ~2, self._request(conn & ~2, b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'))
                ]
            case "watch":
                return self._watched(op, asked)
            case "end":
                self._ops.delete(f"/admin/api/sessions/{self._tokens[slot][:8]}").raise_for_status()
                # A key names a new session then, which neither side knows by a name.
                answers = [] if slot == _KEYED else [self._ask(conn, each) for each in asked]
                self._open(slot)
                return answers
            case "release" | "cancel" | "leave":
                return self._held(op, asked)
            case "together":
                for place, (body, tool) in enumerate(op.calls):
                    self._send(conn + place, self._request(conn + place, body, tool))
                return [self._answer(conn + place) for place in range(len(op.calls))]
            case _:
                for begin, end in zip((0, *op.cuts), (*op.cuts, len(asked[0])), strict=True):
                    if begin:
                        self._http.get("/healthz")  # so the gateway has most likely read what was sent
                    self._send(conn, asked[0][begin : max(begin, end)])
                return [self._answer(conn)]
        return []

    def _held(self, op: Op, asked: Sequence[bytes]) -> list[Any]:
        """A call that its server holds until another one releases it. Meanwhile another one is answered, and it is
        cancelled, or its client leaves."""
        conn, other, held, cancelled = op.conn, op.conn ^ 1, self._sent("hold"), self._sent("notifications/cancelled")
        self._send(conn, asked[0])
        sock = self._socks[conn]  # which has something to read if the call was refused
        assert eventually(lambda: self._sent("hold") > held or select.select([sock], [], [], 0)[0] != [], 15)
        answers = [self._ask(other, asked[1])]
        is_modern, is_held = conn // 2 % 2 == 1, self._sent("hold") > held
        if op.kind == "leave" or (op.kind == "cancel" and is_modern):
            self._leave(conn)
            assert not (is_modern and is_held) or eventually(
                lambda: self._sent("notifications/cancelled") > cancelled, 15
            )
        elif op.kind == "cancel":
            said = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": op.number}}
            answers += [self._ask(other, self._request(other, json.dumps(said).encode())), self._answer(conn)]
        answers.append(self._ask(other, asked[2]))
        return answers if op.kind != "release" else [*answers, self._answer(conn)]

    def _watched(self, op: Op, asked: Sequence[bytes]) -> list[Any]:
        """Calls while operators watch the session, and what they have seen."""
        path = f"/admin/api/sessions/{self._tokens[op.conn // 2][:8]}/frames"
        self._ops.put(path).raise_for_status()
        answers = [self._ask(op.conn, each) for each in asked]
        seen = self._ops.get(path, params={"limit": 100}).json()["frames"]
        self._ops.delete(path).raise_for_status()
        return [*answers, *(self._without_time(frame, "id" if "server" in frame else "") for frame in seen)]

    # -- what was seen

    def _plain(self, text: str) -> str:
        """Without what is another one at each gateway."""
        return _WORD.sub(self._plain_word, text)

    def _plain_word(self, word: re.Match[str]) -> str:
        if (name := self._names.get(word[0].partition(".")[0])) is not None:
            return name
        alone = _ALONE.fullmatch(word[0])
        return word[0] if alone is None else str(alone["EVENT"] or alone.lastgroup)

    def _without_time(self, told: dict[str, Any], *more: str) -> str:
        kept = {key: value for key, value in told.items() if key not in _NEVER_ALIKE and key not in more}
        return _NUMBER.sub(r"\1", self._plain(json.dumps(kept, sort_keys=True)))

    def _sent(self, what: str) -> int:
        """How many messages to servers had these words."""
        with (self._folder / "record").open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            process, sent = json.loads(line)
            self._frames.setdefault(process, []).append(self._plain(sent))
            self._seen.update(each for each in ("hold", "notifications/cancelled") if each in sent)
        return self._seen[what]

    def frames(self, *, ordered: bool) -> dict[str, Any]:
        """What servers were sent: for each process, which is named after its session."""
        self._sent("")
        found: dict[str, Any] = {}
        for process, frames in self._frames.items():
            session = next((match[0] for frame in frames if (match := re.search(r"SESSION-\d+-\d+", frame))), "none")
            name = f"{process.partition(' ')[0]} {session}"
            name += f" {sum(key.startswith(name) for key in found)}"
            numbers: dict[str, int] = {}  # from 1: a number that was not used is nobody's loss
            # When the gateway asks for a list again depends on the time.
            asked = (frame for frame in frames if '"method":"tools/list"' not in frame)
            found[name] = [
                _NUMBER.sub(lambda at: f"{at[1]}{numbers.setdefault(at[2], len(numbers))}" if ordered else "", frame)  # noqa: B023  # it runs in this round
                for frame in asked
            ]
        return found if ordered else {name: sorted(frames) for name, frames in found.items()}

    def told(self) -> dict[str, Counter[str]]:
        """What operators are told, but for times."""
        sessions = self._ops.get("/admin/api/sessions", params={"limit": 1000}).json()["sessions"]
        # Which of two replicas refuses a call depends on what a connection remembers: one has the client's address.
        where = ("client",) if len(self._gateways) > 1 else ()
        texts = (each.stderr()[at:] for each, at in zip(self._gateways, self._log_begins, strict=True))
        lines = [line for text in texts for line in text.splitlines() if _BY_THE_CLOCK.search(line) is None]
        audit = (self._folder / "audit").read_text().splitlines() if (self._folder / "audit").exists() else []
        return {
            "metrics": self._counted(),
            "sessions": Counter(self._without_time({key: row[key] for key in _SESSION}) for row in sessions),
            "log lines": Counter(self._without_time(json.loads(line), *where) for line in lines if line[:1] == "{"),
            "audit events": self._audited(map(json.loads, audit)),
        }

    def _audited(self, events: Iterable[dict[str, Any]]) -> Counter[str]:
        """The events of the audit. It is by the clock which of many alike refusals are one event with their number."""
        found = Counter[str]()
        for event in events:
            if event["event"] == "refused":
                event = {key: event[key] for key in _ALIKE} | {"why": event["why"].partition(" (\u00d7")[0]}
            found[self._without_time(event, "client", "count")] += event["count"]
        return found

    def fast(self) -> int:
        """How many calls took the fast path."""
        found = re.search(r'connection_memory_total\{outcome="fast"\} ([\d.]+)', self._metrics(self._gateway))
        return 0 if found is None else int(float(found[1]))

    def _counted(self) -> Counter[str]:
        """The metrics of all replicas together. How often they forward depends on what connections remember."""
        found = Counter[str]()
        for gateway in self._gateways:
            for line in self._metrics(gateway).splitlines():
                name, _, value = line.rpartition(" ")
                if not (_TIMED.search(line) or (len(self._gateways) > 1 and "forwarded_total" in name)):
                    found[name] += int(float(value))
        return found

    @staticmethod
    def _metrics(gateway: RunningGateway) -> str:
        return httpx.get(f"{operators_of(gateway)}/metrics", headers=bearer(_KEY), timeout=30).text


def _response(data: bytes) -> tuple[int, list[bytes], bytes, bytes] | None:
    """Status, headers, body and what is behind it, of a response that is whole."""
    head, end, rest = data.partition(b"\r\n\r\n")
    line, *names = head.split(b"\r\n")
    sizes = [int(name[15:]) for name in names if name.lower().startswith(b"content-length:")]
    if not end or (sizes and len(rest) < sizes[0]):
        return None
    if sizes or b"transfer-encoding: chunked" not in (name.lower() for name in names):
        return int(line[9:12]), names, rest[: sum(sizes)], rest[sum(sizes) :]
    body, size = b"", -1
    while size:
        first, end, rest = rest.partition(b"\r\n")
        if not end or len(rest) < (size := int(first, 16)) + 2:
            return None
        body, rest = body + rest[:size], rest[size + 2 :]
    return int(line[9:12]), names, body, rest


class Found:
    """What a comparison has found. `first` is the first difference in full."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.requests = self.differences = self.fast = 0
        self.first = ""

    def note(self, where: str, one: object, other: object) -> None:
        """One and the other are different."""
        self.differences += 1
        left, right = str(one), str(other)
        at = max(0, next((at for at, pair in enumerate(zip(left, right, strict=False)) if len({*pair}) == 2), 0) - 400)
        self.first = self.first or f"{where}\n  with:    {left[at : at + 2_000]}\n  without: {right[at : at + 2_000]}"

    def same(self, where: str, one: Callable[[], Any], other: Callable[[], Any]) -> None:
        """Note a difference, if there is one for some seconds: servers and logs are read while they write."""
        if not eventually(lambda: bool(one() == other()), 5):
            for key in sorted((left := one()).keys() | (right := other()).keys()):
                if (a := left.get(key)) != (b := right.get(key)):
                    counted = isinstance(a, Counter) and isinstance(b, Counter)
                    self.note(f"{where} {key}", *((sorted(a - b), sorted(b - a)) if counted else (a, b)))


_CONSTANTS: Final = {
    "gateway.observability.request_log.LINES_PER_S": 1_000_000,  # each call has its line
    "transports.inbound.streamable_http.PRIMING_AFTER_S": 15.0,  # on a busy machine a call may take a second
}
_NO_HEAD_IS_STORED: Final = {"transports.inbound.head_cache.MAX_HEAD_BYTES": 0}


@contextlib.contextmanager
def _sides(seed: int, *, forwarded: bool) -> Iterator[list[_Side]]:
    with contextlib.ExitStack() as stack:
        found = []
        for remembers in (True, False):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            options = {
                "log_format": "json",
                "session": {"unconfirmed_ttl_s": 3_600},  # a busy machine takes minutes
                "sandbox": "off",
                "admin": {"listen": "127.0.0.1:0", "keys": {"olga": sha256(_KEY)}},
                "audit": {"to": ["store", str(folder / "audit")], "calls": seed % 2 == 1},
                "policy": {**UNLIMITED, **_POLICIES[seed % len(_POLICIES)]},
            }
            command = (sys.executable, "-m", "tests.attack.differential_server", str(folder / "record"))
            eras = {"a": "", "b": ("", "legacy", "modern")[seed // 2 % 3]}  # else both
            servers = {name: server((*command, name, era), tools=_TOOLS) for name, era in eras.items()}
            if forwarded:
                options["store"] = stack.enter_context(running_redis()).url
            constants = _CONSTANTS if remembers else {**_CONSTANTS, **_NO_HEAD_IS_STORED}
            gateways = [
                stack.enter_context(running_gateway(servers, options=options, env=SIGNED, constants=constants))
                for _ in range(1 + forwarded)
            ]
            found.append(_Side(gateways[-1], gateways[0], folder))
            stack.callback(found[-1].close)
        yield found


def compare(seed: int, requests: int, *, forwarded: bool = False) -> Found:
    """Do steps with about so many requests, and compare. Ends with the first difference."""
    found, random = Found(seed), Random(seed)
    steps = operations(random)
    with _sides(seed, forwarded=forwarded) as (one, other), ThreadPoolExecutor(2) as pool:

        def take(batch: Sequence[Op], *, ordered: bool = True) -> None:
            found.requests += sum(len(op.calls) for op in batch)
            answers = pool.map(lambda side: [side.do(op) for op in batch], (one, other))
            for step, with_it, without in zip(batch, *answers, strict=True):
                if with_it != without:
                    found.note(str(step)[:3_000], with_it, without)
            found.same("frames of", lambda: one.frames(ordered=ordered), lambda: other.frames(ordered=ordered))

        while found.requests < requests and not found.differences:
            take(list(islice(steps, _STEPS)))
        take(list(together(random, *_TOGETHER)), ordered=False)
        found.same("", one.told, other.told)
        found.fast = one.fast()
        if other.fast():
            found.note("calls on the fast path", found.fast, other.fast())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=150_000)
    parser.add_argument("--seed", type=int, help="the first; told when none is given")
    parser.add_argument("--forwarded", action="store_true", help="to another replica, which has the sessions")
    parser.add_argument("--of-one-seed", type=int, default=8_000, help="requests to the same gateways")
    arguments = parser.parse_args()
    seed, left = secrets.randbelow(1 << 30) if arguments.seed is None else arguments.seed, arguments.requests
    while left > 0:
        found = compare(seed, min(left, arguments.of_one_seed), forwarded=arguments.forwarded)
        told = f"{found.requests} requests, {found.fast / found.requests:.0%} fast, {found.differences} differences"
        _console.print(f"seed {seed}: {told}\n{found.first}".rstrip(), markup=False)
        sys.stdout.flush()
        if found.differences:
            return 1
        seed, left = seed + 1, left - found.requests
    return 0


if __name__ == "__main__":
    sys.exit(main())
