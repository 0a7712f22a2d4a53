"""Checks of this machine and of what the configuration says: keys, addresses, file limits."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.config.addresses import is_loopback
from gateway.config.keyring import KEYS_FILE, key_file, key_ring
from gateway.config.secret_file import others_can_read
from gateway.config.settings import ConfigurationError, Settings
from gateway.doctor.findings import Finding, bad, doubtful, good
from session_store import backend_for

__all__ = ["check_access", "check_keys", "check_limits"]

_FILES_PER_PROCESS: Final = 5
_FILES_PER_CLIENT: Final = 1
_FILES_OF_OURS: Final = 200
_FEWEST_FILES: Final = 1_024
_PROCESSES_PER_SERVER: Final = 2
"""The server, and the reaper that ends it with its session."""


def check_keys(settings: Settings) -> Iterator[Finding]:
    """Whether tokens can be signed, and verified by others."""
    try:
        key_ring(settings.gateway.store)
    except ConfigurationError as error:
        yield bad("keys", str(error), "give all gateways the same MCP_GATEWAY_KEYS, kept where secrets are kept")
        return
    store_file = settings.gateway.store_file
    for name, file in ((KEYS_FILE, key_file()), ("gateway.store_file", Path(store_file) if store_file else None)):
        if file is not None and others_can_read(file):
            yield doubtful("secrets", f"{name}: {file} can be read by others than its owner", f"chmod 600 {file}")
    is_durable = backend_for(settings.gateway.store).is_durable
    if not is_durable and key_file() is None and not os.environ.get("MCP_GATEWAY_KEYS"):
        yield good("keys", "made at each start: sessions in memory do not outlive it either")
    else:
        yield good("keys", "they can be used")


def check_access(settings: Settings) -> Iterator[Finding]:
    """Who reaches it, and how other gateways do."""
    options = settings.gateway
    if options.allows_anonymous and not is_loopback(options.host):
        yield doubtful(
            "access",
            f"host is {options.host}, and nobody has to say who they are",
            "give api_keys or auth, unless everybody who reaches it may start processes here",
        )
    else:
        yield good("access", "anonymous, on this machine only" if options.allows_anonymous else "by credential")
    if backend_for(options.store).is_shared and options.host in ("0.0.0.0", "::") and not options.advertise:
        yield bad(
            "address",
            f"host is {options.host}, which is no address where other gateways on the store reach this one",
            "set gateway.advertise (or MCP_GATEWAY_ADVERTISE) to this machine's HOST:PORT",
        )


def check_limits(settings: Settings) -> Iterator[Finding]:
    """Whether this process may open as many files, and start as many processes, as its sessions need."""
    sessions = settings.gateway.session.max_sessions
    own = sum(1 for entry in settings.mcpServers.values() if entry.command and not entry.shared)
    needed = _FILES_OF_OURS + sessions * (_FILES_PER_CLIENT + own * _FILES_PER_PROCESS)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        room = max(0, (soft - _FILES_OF_OURS) // (_FILES_PER_CLIENT + own * _FILES_PER_PROCESS))
        found = bad if soft < _FEWEST_FILES else doubtful
        yield found(
            "files",
            f"{soft} files may be open: room for about {room} sessions, and session.max_sessions is {sessions}",
            f"raise the limit to {needed} (ulimit -n, LimitNOFILE=, or the container's nofile), or lower max_sessions",
        )
    else:
        yield good("files", f"{'any number' if soft == resource.RLIM_INFINITY else soft} may be open")
    most = _most_processes()
    if most is not None and most < sessions * own * _PROCESSES_PER_SERVER:
        yield doubtful(
            "processes",
            f"{most} processes may run here, and {sessions} sessions need {sessions * own * _PROCESSES_PER_SERVER}",
            "raise the limit (ulimit -u, TasksMax=, or the container's pids limit), or lower session.max_sessions",
        )


def _most_processes() -> int | None:
    limits = []
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        limits.append(soft)
    try:
        text = Path("/sys/fs/cgroup/pids.max").read_text(encoding="ascii").strip()
        if text.isdigit():
            limits.append(int(text))
    except OSError:
        pass
    return min(limits, default=None)
