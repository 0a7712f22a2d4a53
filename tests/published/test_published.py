"""One published server of each registry, in its sandbox. `make published` runs all of them.

The test needs a registry, once: the packages stay in `.cache/published`. Where the name of a registry leads to an
address that is not public, because a mirror or a proxy answers for it, the address is granted.
"""

import ipaddress
import socket
import subprocess
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.published.run import site, try_server
from tests.published.servers import SERVERS, PublishedServer, Site
from tests.requirements import requirement
from tests.support.gateway_process import ROOT
from tests.tools.obtain import npx
from tests.tools.site_clients import published_servers

QUICK = [server for server in SERVERS if server.is_quick]


@pytest.fixture(scope="module")
def place() -> Iterator[Site]:
    with site() as made:
        yield made


@pytest.fixture(scope="module")
def mirrors() -> list[str]:
    """The addresses of the registry, if they are not public."""
    npm = npx()[0].removesuffix("npx") + "npm"
    url = subprocess.run([npm, "config", "get", "registry"], capture_output=True, text=True, check=True).stdout.strip()
    host = urlsplit(url).hostname or ""
    found = {str(each[4][0]) for each in socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM)}
    return sorted(address for address in found if not ipaddress.ip_address(address).is_global)


@requirement("box.published")
@pytest.mark.parametrize("server", QUICK, ids=lambda server: server.name)
def test_a_published_server_works_in_a_sandbox(server: PublishedServer, place: Site, mirrors: list[str]) -> None:
    why, written = try_server(server, place, "standard", mirrors)
    assert not why, f"{why}\n{written}"


def test_the_table_has_servers_of_both_registries_and_each_of_them_is_called() -> None:
    assert len(SERVERS) >= 20
    assert {server.command[0] for server in QUICK} == {"npx", "uvx"}
    assert len({server.name for server in SERVERS}) == len(SERVERS)
    document = (ROOT / "docs/servers.md").read_text(encoding="utf-8")
    assert published_servers() in document, f"docs/servers.md needs this table:\n{published_servers()}"
