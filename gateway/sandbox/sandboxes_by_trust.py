"""Choose the sandbox of a server's processes by the trust of their session, and find its walls (kernel restrictions).
Name the listeners of the gateway that no sandbox may open."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Final

from gateway.config.sandbox import Sandbox, sandbox_of
from gateway.config.settings import GatewaySettings
from gateway.config.upstreams import UpstreamSettings
from gateway.sandbox.private_files import opened, own_files, with_link_targets
from gateway.sandbox.walls_from_profile import Enclosure, enclosure_of
from transports.upstream.stdio import inherited

logger = logging.getLogger(__name__)

TRUSTS: Final = ("direct", "sandboxed")
_FRESH_S: Final = 10.0
"""Seconds for which found paths are used: programs and folders on a machine change while a gateway runs."""


def _in_thread(work: Callable[[], object]) -> None:
    asyncio.get_running_loop().run_in_executor(None, work)


@dataclass(eq=False, repr=False)
class SandboxesByTrust:
    """The sandboxes of one server, and their walls (kernel restrictions)."""

    name: str
    """The server's name."""
    settings: UpstreamSettings
    sandboxes: Mapping[str, Sandbox]
    """The sandbox for each trust: `direct` and `sandboxed`."""
    _: KW_ONLY
    inherited: Mapping[str, str]
    """The variables that the server's processes inherit from the gateway."""
    closed: Sequence[str] = ()
    """Addresses that no grant opens: where the gateway listens."""
    private: Sequence[Path] = ()
    """Files of the gateway that no grant of code opens."""
    clock: Callable[[], float] = monotonic
    run: Callable[[Callable[[], object]], None] = _in_thread
    """Starts a function in a thread."""

    def __post_init__(self) -> None:
        self._own: Sequence[Path] = self.private
        self._made: dict[Sandbox, tuple[float, Enclosure]] = {}
        self._warned: set[tuple[str, Path]] = set()

    def sandbox(self, trust: str) -> Sandbox:
        return self.sandboxes["direct" if trust == "direct" else "sandboxed"]

    @property
    def shared(self) -> Sandbox:
        """Return the sandbox of a process that belongs to no session, or to many: the sandbox for the least trusted of
        its sessions. It has no launcher, because launchers are for single sessions."""
        found = self.sandboxes["direct" if self.settings.direct_only else "sandboxed"]
        return replace(found if found.has_walls else self.sandboxes["direct"], launcher=())

    def enclosure(self, sandbox: Sandbox) -> Enclosure | None:
        """Return the walls (kernel restrictions) of a sandbox; None if it has none. Finding their paths takes some
        milliseconds. So if the last result is old, return it once more, and find new walls in the background."""
        if not sandbox.has_walls:
            return None
        made_at, made = self._made.get(sandbox, (0.0, None))
        if made is None:
            made = self._enclosure_of(sandbox)
            self._made[sandbox] = self.clock(), made
        elif self.clock() - made_at > _FRESH_S:
            self._made[sandbox] = self.clock(), made  # one search at a time
            self.run(lambda: self._find_again(sandbox))
        return made

    def opens(self, private: Sequence[Path]) -> bool:
        """Return True if a process that runs in one of these sandboxes can read one of the files in `private`."""
        return any(True for _, made in [*self._made.values()] for _ in opened(made.walls, private))

    def find_again(self, private: Sequence[Path]) -> None:
        """Find the walls (kernel restrictions) of all sandboxes again, because an operator has changed folders or the
        `private` files."""
        self._own = self.private = private
        for sandbox in [*self._made]:
            self._find_again(sandbox)

    def _enclosure_of(self, sandbox: Sandbox) -> Enclosure:
        self.private = with_link_targets(self._own)
        return enclosure_of(self.settings, sandbox, inherited=self.inherited, closed=self.closed, private=self.private)

    def _find_again(self, sandbox: Sandbox) -> None:
        """Find the walls (kernel restrictions) of a sandbox again. If they would open a private file (`refuse_open`),
        because a folder was made or mounted since the start, keep the earlier walls."""
        made = self._enclosure_of(sandbox)
        opens = next(opened(made.walls, self.private), None)
        if opens is None:
            self._made[sandbox] = self.clock(), made
        elif opens not in self._warned:
            self._warned.add(opens)
            logger.warning(
                "server %s: its sandbox would grant %s now, and with it %s, which holds keys, secrets or sessions "
                "of the gateway; it keeps the paths that were found before; move the file, or name a narrower folder",
                self.name,
                *opens,
            )


def sandboxes_of(name: str, entry: UpstreamSettings, options: GatewaySettings, *, workers: int = 1) -> SandboxesByTrust:
    """Return the sandboxes of a configured server. `workers` is the number of processes of the gateway."""
    return SandboxesByTrust(
        name,
        entry,
        {
            trust: sandbox_of(f"mcpServers.{name}", entry.sandbox, options.sandbox, trust, entry.command)
            for trust in TRUSTS
        },
        inherited=inherited(),
        closed=own_listeners(options, workers=workers),
        private=own_files(options),
    )


def own_listeners(options: GatewaySettings, *, workers: int = 1) -> tuple[str, ...]:
    """Return the addresses on which the gateway and its workers listen. No server may connect to them. Ports that the
    kernel chooses are left out: they are on addresses of this machine, which stay closed unless the operator opens that
    port or all ports."""
    host = f"[{options.host}]" if ":" in options.host else options.host
    own = [f"{host}:{options.port}", options.advertise, options.internal]
    if options.admin.listen:
        name, _, port = options.admin.listen.rpartition(":")
        # Each worker serves its operators on a port of its own.
        own += [f"{name}:{int(port) + number}" for number in range(workers if int(port) else 0)]
    return tuple(dict.fromkeys(address for address in own if address and not address.endswith(":0")))
