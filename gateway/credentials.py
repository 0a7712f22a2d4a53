"""Secrets of each principal for its servers: `${secret:NAME}` in the `env` and `headers` of a server.

Where a secret comes from the operator declares: a file, a variable of the gateway, or a command. Values go into one
child's environment, or one session's headers, and nowhere else: not into logs, errors, or the store.
"""

import asyncio
import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.policy_settings import SecretSettings
from session_store import Principal
from transports.base import UpstreamUnavailable

__all__ = ["Credentials", "is_template"]

logger = logging.getLogger(__name__)

COMMAND_S: Final = 10.0
REMEMBERED_S: Final = 60.0
_MOST_BYTES: Final = 64 << 10
_TEMPLATE: Final = re.compile(r"\$\{secret:([A-Za-z0-9_.-]+)\}")
# What may stand in a path, a variable's name or a command's argument without meaning more than a name.
_NAME: Final = re.compile(r"[A-Za-z0-9_@+-][A-Za-z0-9_.@+-]{0,127}")


def is_template(value: str) -> bool:
    """Whether a value has a secret in it."""
    return _TEMPLATE.search(value) is not None


class Credentials:
    """Fills in secrets, by principal. What a command gave is remembered for a minute."""

    def __init__(self, secrets: Mapping[str, SecretSettings]) -> None:
        self._secrets = secrets
        self._known: dict[tuple[str, str], tuple[float, str]] = {}

    async def fill(self, values: Mapping[str, str], principal: Principal) -> dict[str, str]:
        """The values with their secrets.

        Raises:
            UpstreamUnavailable: this principal has no such secret; says which, never what.
        """
        return {name: await self._filled(value, principal) for name, value in values.items()}

    async def _filled(self, value: str, principal: Principal) -> str:
        for name in dict.fromkeys(_TEMPLATE.findall(value)):
            secret = await self._secret(name, principal)
            value = value.replace(f"${{secret:{name}}}", secret)
        return value

    async def _secret(self, name: str, principal: Principal) -> str:
        settings = self._secrets.get(name)
        subject = principal.subject
        if settings is None or (settings.is_personal and not _NAME.fullmatch(subject)):
            raise UpstreamUnavailable(f"there is no credential {name!r} for this principal")
        key = (name, str(principal) if settings.is_personal else "")
        until, known = self._known.get(key, (0.0, ""))
        if time.monotonic() < until:
            return known
        try:
            found = await self._read(settings, subject)
        except (OSError, ValueError, TimeoutError) as error:
            # The error's text may hold what a command has printed.
            logger.warning("credential %s cannot be had: %s", name, type(error).__name__)
            found = ""
        if not found:
            raise UpstreamUnavailable(f"there is no credential {name!r} for this principal")
        if settings.command:
            self._known[key] = (time.monotonic() + REMEMBERED_S, found)
        return found

    async def _read(self, settings: SecretSettings, subject: str) -> str:
        if settings.file:
            path = Path(settings.file.replace("{subject}", subject))
            return (await asyncio.to_thread(path.read_bytes))[:_MOST_BYTES].decode().strip("\r\n")
        if settings.env:
            return os.environ.get(settings.env.replace("{subject}", subject), "")
        process = await asyncio.create_subprocess_exec(
            *(part.replace("{subject}", subject) for part in settings.command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(COMMAND_S):
                printed, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        return printed[:_MOST_BYTES].decode().strip("\r\n") if process.returncode == 0 else ""
