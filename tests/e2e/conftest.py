"""Commands that several test files type."""

import subprocess
from collections.abc import Callable

import pytest

from tests.support.commands import run_command


@pytest.fixture
def cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`mcp-session-gateway sessions ARGUMENTS --store URL`, as typed."""

    def run(*arguments: str, store: str) -> subprocess.CompletedProcess[str]:
        return run_command("sessions", *arguments, "--store", store, timeout=30)

    return run
