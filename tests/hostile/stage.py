"""The gateway of one profile and one user, with a hostile session, a sibling and a bystander on it."""

import contextlib
import hashlib
import json
import os
import pty
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import psutil

from session_store.session import redact
from tests.hostile.home import HOME, TEMPORARY, Home, word_of
from tests.hostile.outside import ADDRESSES, Outside
from tests.support.gateway_process import ROOT, UNLIMITED, RunningGateway
from tests.support.mcp_clients import Legacy, messages
from tests.support.subtree import delegated, why_no_subtree

NOBODY: Final = 65_534
LIMITS: Final = {"memory_mb": 256, "total_memory_mb": 256, "processes": 64, "files": 256}
"""Of the hostile server, so that small bombs are bombs."""

_KEYS: Final = {name: f"{name}-key-0123456789" for name in ("mallory", "victim", "calm")}
_OPERATOR: Final = "operator-key-0123456789-0123456789"
_LOCAL_PORT: Final = 8_123
_HOSTILE: Final = ("hostile.py", "hostile.mjs", "hostile.sh")
_PATIENCE_S: Final = 45.0
_DROPPED: Final = ("--clear-groups", "--bounding-set", "-all", "--inh-caps", "-all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """The answer of a hostile server: what it got, what it met, or how the call failed."""

    got: str = ""
    met: str = ""

    @property
    def text(self) -> str:
        return self.got or self.met


@dataclass
class Bystander:
    """A session of another server, which is asked again and again. Times in seconds."""

    times: list[float] = field(default_factory=list)
    failed: int = 0

    def p99(self) -> float:
        times = sorted(self.times)  # a copy: the next answer may come meanwhile
        return times[int(len(times) * 0.99)] if times else 0.0


class Local:
    """Services on the loopback interface and on Unix sockets, and what has connected to them."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((host, _LOCAL_PORT))
            self._serve(listener, "loopback")
        for name in ("docker.sock", "dbus"):
            unix = socket.socket(socket.AF_UNIX)
            unix.bind(f"/run/{name}")
            os.chmod(f"/run/{name}", 0o666)
            self._serve(unix, name)

    def _serve(self, listener: socket.socket, name: str) -> None:
        listener.listen(64)

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    self.heard.append(name)
                    connection.settimeout(1)
                    connection.recv(1000)
                    connection.sendall(word_of("local").encode())

        threading.Thread(target=serve, daemon=True).start()


class Stage:
    """Starts the gateway, and again when it was ended. `profile` is `off`, `standard` or `strict`."""

    def __init__(self, profile: str, user: int, home: Home, outside: Outside, local: Local) -> None:
        self.profile, self.user = profile, user
        self.home, self.outside, self.local = home, outside, local
        self.bystander = Bystander()
        self.sibling: dict[str, Any] = {}
        self.key = 7_700 + user % 100
        self.attacker = ""
        """The session of the last attack, as the console shows it."""
        self._gateway: RunningGateway | None = None
        self._http = httpx.Client(timeout=_PATIENCE_S, trust_env=False)
        self._sessions: dict[str, Legacy] = {}
        self._over = threading.Event()
        self._stack = contextlib.ExitStack()
        self.terminal, self._slave = pty.openpty()
        os.fchown(self._slave, user, -1)

    # -- the gateway

    @property
    def gateway(self) -> RunningGateway:
        assert self._gateway is not None
        return self._gateway

    @property
    def port(self) -> int:
        return int(self.gateway.base.rpartition(":")[2])

    def start(self) -> None:
        """Make the home anew, start the gateway, and open the sessions of the sibling and the bystander."""
        self.home.fill()
        config = HOME / "gateway/mcp.json"
        config.write_text(json.dumps(self._configuration()), encoding="utf-8")
        os.chown(config, self.user, self.user)
        config.chmod(0o600)
        self.home.look()
        drop = [] if os.getuid() == self.user else ["--reuid", str(self.user), "--regid", str(self.user)]
        prefix = ["setpriv", *drop, *_DROPPED] if self.user else []
        if not why_no_subtree():
            cgroup = self._stack.enter_context(delegated(self.user))
            prefix = ["sh", "-c", f'echo 0 > {cgroup}/cgroup.procs; exec "$@"', "sh", *prefix]
        python = str(ROOT / ".venv/bin/python") if (ROOT / ".venv/bin/python").exists() else "python3"
        command = [*prefix, python, "-m", "gateway", "run", "--port", "0", "--config", str(config)]
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(HOME),
            "TMPDIR": str(TEMPORARY),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            "MCP_GATEWAY_KEYS": word_of("gateway-key") * 2,
            "CLOUD_TOKEN": word_of("gateway-environment"),
        }
        process = subprocess.Popen(
            command, env=env, cwd=HOME, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self._gateway = RunningGateway(process)
        self._gateway.wait_ready()
        self._sessions.clear()
        self._place()
        self._over = threading.Event()
        threading.Thread(target=self._ask_bystander, args=(self._over,), daemon=True).start()

    def _configuration(self) -> dict[str, Any]:
        app = HOME / "app"
        own = {"context_env": {"TMPDIR": "temp_dir"}}
        python = {"command": self.home.python, **own, **self._walls()}
        word = word_of("sibling-command")
        servers = {
            "python": {**python, "args": [str(app / "hostile.py")]},
            "node": {**python, "command": "node", "args": [str(app / "hostile.mjs")]},
            "sh": {**python, "command": "sh", "args": [str(app / "hostile.sh")]},
            "sibling": {
                **python,
                "args": [str(app / "sibling.py"), "--word", word],
                "env": {"SIBLING_TOKEN": word_of("sibling-environment")},
            },
            "calm": {**python, "args": [str(app / "sibling.py")]},
        }
        options = {
            "api_keys": {name: hashlib.sha256(key.encode()).hexdigest() for name, key in _KEYS.items()},
            "policy": UNLIMITED,
            "log_level": "warning",
            "admin": {"keys": {"operator": hashlib.sha256(_OPERATOR.encode()).hexdigest()}},
            "store": f"sqlite:///{HOME}/gateway/sessions.db",
        }
        return {"mcpServers": servers, "gateway": options, "//": word_of("configuration")}

    def _walls(self) -> dict[str, Any]:
        if self.profile == "off":
            return {"sandbox": "off"}
        reach = ["allowed.example.com:443", "*.allowed-rebind.example.com:443"]
        return {
            "sandbox": {"profile": self.profile, **LIMITS, **({"reach": reach} if self.profile == "strict" else {})}
        }

    def _place(self) -> None:
        """Let the sibling have its secrets everywhere."""
        answer = self.tell("sibling", "place", {"word": word_of("sibling"), "key": self.key})
        assert isinstance(answer, dict), f"the sibling cannot place its secrets: {answer}"
        self.sibling = answer
        self.tell("calm", "keep")

    def stop(self) -> None:
        self._over.set()
        with contextlib.suppress(Exception):
            for session in self._sessions.values():
                session.delete()
        gateway = self.gateway
        if gateway.process.poll() is None:
            try:
                gateway.stop()
            except subprocess.TimeoutExpired:
                gateway.kill()
        self._stack.close()

    def mend(self, before: Collection[int]) -> list[str]:
        """What the last attack has broken, and is whole again: the gateway, sessions, files. `before`: the processes
        that were there."""
        for pid in self.left_since(before):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        broken = []
        if self.gateway.process.poll() is not None:
            broken.append("the gateway died")
        else:
            broken += [f"{server} died" for server in ("sibling", "calm") if not self._lives(server)]
        changed = self.home.mend()
        if broken:
            try:
                self._sessions.clear()
                self._place()
            except Exception:
                self.stop()
                self.start()
        return broken + [f"{name} changed" for name in changed]

    def _lives(self, server: str) -> bool:
        """Whether it is the process that it was."""
        with contextlib.suppress(Exception):
            return str(self.tell(server, "opens")) == "opened"
        return False

    # -- sessions

    def session(self, server: str, key: str) -> Legacy:
        """A new one."""
        headers = {"Authorization": f"Bearer {_KEYS[key]}"}
        return Legacy(f"{self.gateway.base}/servers/{server}/mcp", self._http, headers=headers).open()

    def tell(self, server: str, tool: str, arguments: Any = None) -> Any:
        """Ask a tool of the sibling's or the bystander's, whose sessions are kept."""
        if server not in self._sessions:
            self._sessions[server] = self.session(server, {"sibling": "victim"}.get(server, server))
        answer = messages(self._sessions[server].tool(tool, arguments))[-1]
        text = answer["result"]["content"][0]["text"] if "result" in answer else json.dumps(answer.get("error"))
        with contextlib.suppress(ValueError):
            return json.loads(text)
        return text

    def attack(self, server: str, name: str, facts: dict[str, Any], way: str = "") -> Called:
        """One session, one attack, and the session's end."""
        try:
            session = self.session(server, "mallory")
        except (AssertionError, httpx.HTTPError) as error:
            return Called(met=f"no session: {error}"[:300])
        self.attacker = redact(session.session)
        try:
            reply = session.tool("attack", {"attack": name, "facts": facts, "way": way})
            answer = messages(reply)[-1]
            if "result" not in answer:
                return Called(met=f"the call failed: {answer['error']['message']}")
            return _called(answer["result"]["content"][0]["text"])
        except (httpx.HTTPError, IndexError, KeyError) as error:
            return Called(met=f"the call failed: {type(error).__name__}: {error}")
        finally:
            with contextlib.suppress(httpx.HTTPError):
                session.delete()

    def blocked(self, session: str) -> list[str]:
        """What the console shows of refusals in a session."""
        headers, wanted = {"Authorization": f"Bearer {_OPERATOR}"}, {"session": session, "limit": "200"}
        reply = self._http.get(f"{self.gateway.base}/admin/api/events", params=wanted, headers=headers)
        return [each["reason"] for each in reply.json() if each["event"] == "blocked"]

    @contextlib.contextmanager
    def watched(self) -> Iterator[Bystander]:
        """What the bystander feels meanwhile."""
        self.bystander = Bystander()
        yield self.bystander

    def _ask_bystander(self, over: threading.Event) -> None:
        with httpx.Client(timeout=20.0, trust_env=False) as http:
            headers = {"Authorization": f"Bearer {_KEYS['calm']}"}
            session = Legacy(f"{self.gateway.base}/servers/calm/mcp", http, headers=headers)
            with contextlib.suppress(Exception):
                session.open()
            while not over.wait(0.05):
                measured, began = self.bystander, time.monotonic()
                try:
                    answer = messages(session.tool("ping"))[-1]
                    ok = "pong" in answer["result"]["content"][0]["text"]
                except Exception:
                    ok = False
                if not over.is_set():
                    measured.times.append(time.monotonic() - began)
                    measured.failed += not ok

    # -- processes, seen from outside

    def left_since(self, before: Collection[int]) -> list[int]:
        """Processes of hostile servers that were not there before. Also those that are below nobody any more."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid not in before and _is_hostile(process):
                    found.append(process.pid)
        return found

    def pids(self, program: str) -> list[int]:
        """Those of one server program."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(part.endswith(program) for part in process.cmdline()):
                    found.append(process.pid)
        return found

    def eventually(self, true: Callable[[], bool], seconds: float = 5.0) -> bool:
        until = time.monotonic() + seconds
        while not (held := true()) and time.monotonic() < until:
            time.sleep(0.05)
        return held

    def facts(self) -> dict[str, Any]:
        """What a hostile server that knows everything about this machine would know."""
        siblings = self.pids("sibling.py")
        return {
            "before": psutil.pids(),
            "token": f"t{secrets.token_hex(8)}",
            "gateway": self.gateway.pid,
            "siblings": siblings,
            "victims": siblings,
            "pids": [self.gateway.pid, *siblings],
            "sibling": self.sibling,
            "hosts": [ADDRESSES["metadata"]],
            "port": 80,
            "key": self.key + 1,
            "folders": [str(HOME), str(HOME / "app"), str(HOME / ".cache"), str(HOME / ".npm")],
        }

    @property
    def terminal_path(self) -> str:
        return os.ttyname(self._slave)

    def typed(self) -> bytes:
        """What was written to the operator's terminal."""
        os.set_blocking(self.terminal, False)
        try:
            return os.read(self.terminal, 65_536)
        except OSError:
            return b""


def _is_hostile(process: psutil.Process) -> bool:
    return any(part.endswith(_HOSTILE) or part == "60" for part in process.cmdline())


def _called(text: str) -> Called:
    if text.startswith("hex:"):
        got = bytes.fromhex(text[4:]).decode("utf-8", "replace")
        refused = any(word in got for word in ("ermission denied", "ot permitted", "cannot", "No such"))
        return Called(met=got) if refused else Called(got=got)
    try:
        return Called(**json.loads(text))
    except (ValueError, TypeError):
        return Called(met=text[:300])
