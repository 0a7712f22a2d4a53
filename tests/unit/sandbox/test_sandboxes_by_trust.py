"""Which sandbox of a server is for whom, and how long its paths count."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import GatewaySettings
from gateway.config.upstreams import UpstreamSettings
from gateway.sandbox.sandboxes_by_trust import SandboxesByTrust, own_listeners, sandboxes_of
from gateway.sandbox.walls_from_profile import Enclosure
from tests.requirements import requirement
from tests.unit.sandbox.parts import make


def sandboxes(sandbox: Any, **entry: Any) -> SandboxesByTrust:
    settings = UpstreamSettings.model_validate({"command": "cat", "sandbox": sandbox, **entry})
    options = GatewaySettings.model_validate({"port": 8_123, "admin": {"listen": "127.0.0.1:9000"}})
    return sandboxes_of("notes", settings, options)


@requirement("box.trust")
def test_a_process_of_nobody_of_many_or_of_unknown_trust_has_the_sandbox_of_the_least_trusted() -> None:
    by_trust = {"direct": "standard", "sandboxed": "strict"}
    assert sandboxes(by_trust).shared.profile == "strict"
    assert sandboxes(by_trust, direct_only=True).shared.profile == "standard", "no other session reaches it"
    with_launcher = sandboxes({"direct": "standard", "sandboxed": {"launcher": ["bwrap"]}}).shared
    assert (with_launcher.profile, with_launcher.launcher) == ("standard", ()), "a launcher is for sessions"
    assert sandboxes(["bwrap"]).shared.launcher == ()
    found = sandboxes({"direct": "off", "sandboxed": "strict"})
    assert [found.sandbox(trust).profile for trust in ("direct", "sandboxed", "other")] == ["off", "strict", "strict"]


def test_no_server_reaches_the_gateway_itself() -> None:
    found = sandboxes("standard")
    enclosure = found.enclosure(found.sandbox("direct"))
    assert enclosure is not None and enclosure.walls.reach is not None
    assert enclosure.walls.reach.refused == ("127.0.0.1:8123", "127.0.0.1:9000")
    chosen = {"port": 0, "admin": {"listen": "127.0.0.1:0"}, "internal": "[::1]:9001"}
    assert own_listeners(GatewaySettings.model_validate(chosen)) == ("[::1]:9001",), "port 0 is no destination"
    workers = own_listeners(GatewaySettings.model_validate({"admin": {"listen": "[::1]:9100"}}), workers=3)
    assert workers[-3:] == ("[::1]:9100", "[::1]:9101", "[::1]:9102"), "each worker has operators of its own"
    off = sandboxes("off")
    assert off.enclosure(off.sandbox("direct")) is None


class Later:
    """The sandboxes of a server with a clock of their own, and what they would have run in a thread."""

    def __init__(self, inherited: dict[str, str], *args: str, private: tuple[Path, ...] = ()) -> None:
        self.now = 0.0
        self.later: list[Callable[[], object]] = []
        self.sandbox = sandboxes("standard").sandbox("direct")
        settings = UpstreamSettings.model_validate({"command": "cat", "args": args, "sandbox": "standard"})
        self.found = SandboxesByTrust(
            "files", settings, {"direct": self.sandbox},
            inherited=inherited, private=private, clock=lambda: self.now, run=self.later.append,
        )  # fmt: skip

    def enclosure(self) -> Enclosure | None:
        return self.found.enclosure(self.sandbox)

    def looked(self, now: float) -> Enclosure | None:
        """What there is after one more search."""
        self.now = now
        self.enclosure()
        self.later.pop()()
        return self.enclosure()


def test_paths_are_looked_for_again_after_a_while(tmp_path: Path) -> None:
    found = Later({"PATH": str(tmp_path)})
    first = found.enclosure()
    make(tmp_path, "cat", mode=0o755)
    found.now = 9.0
    assert found.enclosure() is first
    found.now = 11.0
    assert found.enclosure() is found.enclosure() is first, "nobody waits for the search"
    [search] = found.later
    search()
    second = found.enclosure()
    assert second is not first and second is not None
    granted = {grant.path for grant in second.walls.grants}
    assert granted & {str(tmp_path), str(tmp_path / "cat")}


@requirement("box.keys")
def test_a_folder_that_comes_later_opens_no_keys_of_the_gateway(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "mounted" / "data"
    found = Later({}, str(folder), private=(folder / "keys",))
    first = found.enclosure()
    make(tmp_path, "mounted/data/")
    for now in (11.0, 22.0):
        assert found.looked(now) is first, "nothing of the new folder is granted"
    [said] = caplog.messages
    assert f"server files: its sandbox would grant {folder} now, and with it {folder}/keys" in said
    folder.rmdir()
    folder.parent.rmdir()
    assert found.looked(33.0) is not first, "what opens none of them counts again"


@requirement("box.secrets")
def test_files_that_a_reload_makes_private_and_links_that_come_later_are_not_granted(tmp_path: Path) -> None:
    make(tmp_path, "data/token", "keys/")
    found = Later({}, str(tmp_path / "data"))
    assert found.enclosure() is not None and [*found.found.private] == []
    found.found.find_again([tmp_path / "keys/{subject}"])
    (tmp_path / "keys/ada").symlink_to(tmp_path / "data/token")
    kept = found.enclosure()
    assert found.looked(11.0) is kept, "what would open the file does not count"
    assert tmp_path / "data/token" in found.found.private, "with it, no process is started"
