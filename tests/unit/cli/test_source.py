"""Which gateway a command asks: the one that is given, or the one that its user runs here."""

from pathlib import Path

import pytest

from gateway.admin.local_gateways import LocalGateway, announced, network_namespace
from gateway.admin.operators import OperatorError
from gateway.cli.options import AtGateway
from gateway.cli.source import gateway_at
from tests.requirements import requirement

pytestmark = requirement("first.local")


def running(port: int) -> LocalGateway:
    base = f"http://127.0.0.1:{port}"
    return LocalGateway(url=base, endpoint=f"{base}/mcp", key=f"key-{port}", pid=port, network=network_namespace())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_the_only_gateway_is_asked_with_its_own_key() -> None:
    with announced(running(1)):
        # A key that is given without an address is not sent: it is for some other gateway.
        for given in (AtGateway(), AtGateway(key="of-another-gateway"), AtGateway(url="http://localhost:1/mcp")):
            assert gateway_at(given) == AtGateway(url="http://127.0.0.1:1", key="key-1"), given


def test_what_is_given_counts_first() -> None:
    given = AtGateway(url="http://127.0.0.1:1", key="mine")
    with announced(running(1)):
        assert gateway_at(given) == given
        far = AtGateway(url="https://mcp.example.com")
        assert gateway_at(far) == far, "no key is sent elsewhere"


def test_without_a_gateway_the_message_says_what_to_do() -> None:
    with pytest.raises(OperatorError, match=r"none is found.*MCP_GATEWAY_ADMIN_KEY.*or --store"):
        gateway_at(AtGateway(), or_else=", or --store")


def test_several_gateways_are_named() -> None:
    with announced(running(1)), announced(running(2)):
        with pytest.raises(OperatorError, match="say which") as refused:
            gateway_at(AtGateway())
        assert "--url http://127.0.0.1:1 " in str(refused.value) and "--url http://127.0.0.1:2 " in str(refused.value)
        assert gateway_at(AtGateway(url="http://127.0.0.1:2")).key == "key-2"
