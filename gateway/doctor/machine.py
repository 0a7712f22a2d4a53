"""Check this machine and the configuration: keys, addresses, workspaces, limits of files and processes, sandboxes."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.config.addresses import is_loopback
from gateway.config.secrets import KEYS_FILE, UnusableSecret, key_file, key_ring, others_can_read, secret_in
from gateway.config.settings import ConfigurationError, Settings
from gateway.doctor.findings import Finding, failure, ok, warning
from gateway.identity.context_rules import is_catch_all, is_for_all
from gateway.sandbox.sandbox_checks import (
    ServerSandbox,
    configured_sandboxes,
    describe_cgroups,
    refuse_cgroup,
    refuse_open,
    unprotected_secrets,
)
from session_store import backend_for
from transports.upstream.cgroup_delegation import find_delegation

_WORKSPACE: Final = "take the workspace from a claim (auth.jwt[].claims.workspace) or a rule (policy.rules[].workspace)"
_FILES_PER_PROCESS: Final = 5
_FILES_PER_CLIENT: Final = 1
_FILES_OF_THE_GATEWAY: Final = 200
_FEWEST_FILES: Final = 1_024
_PROCESSES_PER_SERVER: Final = 2
"""Processes of each server in a session: the server, and the reaper that ends the server with its session."""


def check_keys(settings: Settings) -> Iterator[Finding]:
    """Check that the gateway has valid keys and usable client secrets, and that other users of the machine cannot read
    the files with secrets."""
    try:
        key_ring(settings.gateway.store)
    except ConfigurationError as error:
        yield failure("keys", str(error), "give all gateways the same MCP_GATEWAY_KEYS, and store it as a secret")
        return
    store_file = settings.gateway.store_file
    files = {KEYS_FILE: key_file(), "gateway.store_file": Path(store_file) if store_file else None}
    for secret, source in settings.gateway.secrets.items():
        for setting, client in source.clients.items():
            if (file := client.client_secret_file) is None:
                continue
            name = f"gateway.secrets.{secret}.{setting}.client_secret_file"
            files[name] = file
            try:
                secret_in(file, name)
            except UnusableSecret as error:
                yield failure(
                    "secrets", str(error), "write the client secret that the authorization server gave into it"
                )
    for name, file in files.items():
        if file is not None and others_can_read(file):
            yield warning("secrets", f"{name}: {file} can be read by users other than its owner", f"chmod 600 {file}")
    is_durable = backend_for(settings.gateway.store).is_durable
    if not is_durable and key_file() is None and not os.environ.get("MCP_GATEWAY_KEYS"):
        yield ok("keys", "generated at each start, which is enough for sessions in memory")
    else:
        yield ok("keys", "configured and valid")


def check_access(settings: Settings) -> Iterator[Finding]:
    """Report who may call the gateway. Check, too, that the address that it gives to other gateways on the store is one
    that they can connect to."""
    options = settings.gateway
    if options.allows_anonymous and not is_loopback(options.host):
        yield warning(
            "access",
            f"host is {options.host}, and callers need no credential",
            "set api_keys or auth, unless everyone who can reach this address may start processes here",
        )
    else:
        yield ok(
            "access", "anonymous, from this machine only" if options.allows_anonymous else "with a credential only"
        )
    if backend_for(options.store).is_shared and options.host in ("0.0.0.0", "::") and not options.advertise:
        yield failure(
            "address",
            f"host is {options.host}, which is not an address that other gateways on the store can connect to",
            "set gateway.advertise (or MCP_GATEWAY_ADVERTISE) to this machine's HOST:PORT",
        )


def check_workspaces(settings: Settings) -> Iterator[Finding]:
    """Warn if workspaces that clients announce grant something. Warn also if the policy has rules for certain
    workspaces, but workspaces come only from what clients announce, so that these rules grant nothing."""
    auth, policy = settings.gateway.auth, settings.gateway.policy
    if policy.trust_announced_workspace:
        yield warning(
            "workspaces",
            "policy.trust_announced_workspace is on: any client may take any workspace, with all that it grants",
            f"{_WORKSPACE}, and switch the setting off, unless you trust all clients",
        )
        return
    named = [f"policy.rules[{n}].workspaces" for n, rule in enumerate(policy.rules) if not is_for_all(rule)]
    named += [f"policy.workspaces.{pattern}" for pattern in policy.workspaces if not is_catch_all(pattern)]
    said = any(entry.claims.workspace for entry in auth.jwt) or any(rule.workspace is not None for rule in policy.rules)
    if named and not said:
        yield warning(
            "workspaces",
            f"{', '.join(named)}: workspaces come only from what clients announce, and that grants nothing",
            f"{_WORKSPACE}; or set policy.trust_announced_workspace if you trust all clients",
        )
    else:
        yield ok("workspaces", "no setting depends on the workspace that a client announces")


def check_limits(settings: Settings) -> Iterator[Finding]:
    """Check that the limits of this process and its cgroup allow enough open files and processes for
    `session.max_sessions`."""
    sessions = settings.gateway.session.max_sessions
    own = sum(entry.has_own_process for entry in settings.mcpServers.values())
    needed = _FILES_OF_THE_GATEWAY + sessions * (_FILES_PER_CLIENT + own * _FILES_PER_PROCESS)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        room = max(0, (soft - _FILES_OF_THE_GATEWAY) // (_FILES_PER_CLIENT + own * _FILES_PER_PROCESS))
        found = failure if soft < _FEWEST_FILES else warning
        yield found(
            "files",
            f"at most {soft} files may be open, enough for about {room} sessions; session.max_sessions is {sessions}",
            f"raise the limit to {needed} (ulimit -n, LimitNOFILE=, or the container's nofile), or lower max_sessions",
        )
    else:
        yield ok("files", f"{'any number of' if soft == resource.RLIM_INFINITY else soft} files may be open")
    most = _most_processes()
    if most is not None and most < sessions * own * _PROCESSES_PER_SERVER:
        yield warning(
            "processes",
            f"at most {most} processes may run; {sessions} sessions need {sessions * own * _PROCESSES_PER_SERVER}",
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


def check_sandboxes(settings: Settings, config: Path | None) -> Iterator[Finding]:
    """Check the sandbox of each server. Yield a finding for the sandbox, and one for each grant in a server's
    configuration that has no effect or because of which the gateway does not start. `config`: the configuration file;
    None if there is none."""
    every = configured_sandboxes(settings)
    if any(found.sandbox.has_walls for found in every):
        yield _cgroups(settings.gateway.cgroup)
    for found in every:
        yield from _finding(found)
        if secrets := unprotected_secrets(found, settings.gateway):
            what, _, do = secrets.partition("; ")
            yield warning(f"sandbox {found.title}", what, do)
        for file in found.opens([config] if config is not None else ()):
            what, do = f"its processes can read {file}, which is the gateway's", "move it, or the server, elsewhere"
            yield warning(f"sandbox {found.title}", what, do)
    try:
        refuse_open(every, settings)
    except ConfigurationError as error:
        for line in str(error).splitlines():
            what, _, do = line.partition("; ")
            yield failure("sandbox", f"{what}; the gateway does not start", do)


def _cgroups(setting: str | None) -> Finding:
    delegation = find_delegation(setting)
    try:
        refuse_cgroup(setting, delegation)
    except ConfigurationError as error:
        return failure(
            "cgroups", str(error), "name the folder of a cgroup that the gateway's user may write to, or off"
        )
    return ok("cgroups", describe_cgroups(delegation))


def _finding(found: ServerSandbox) -> Iterator[Finding]:
    check = f"sandbox {found.title}"
    if not found.sandbox.has_walls:
        yield ok(check, f"off, by {found.sandbox.chosen_by}")
        return
    summary = f"{found.sandbox.profile}, by {found.sandbox.chosen_by}"
    if found.missing:
        state = failure if found.sandbox.required else warning
        do = (
            "use a newer kernel or a delegated cgroup (docs/sandbox.md), other limits of the container "
            "(docs/deploying.md), or a launcher"
        )
        yield state(check, f"{summary}: {' '.join(found.missing)}", do)
    else:
        yield ok(check, " ".join((f"{summary}; all of it holds on this machine.", *found.shared)).removesuffix("."))
    for what in found.not_granted:
        name, _, advice = what.partition(": ")
        yield warning(check, f"{name} is not granted", advice)
