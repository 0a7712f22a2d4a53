"""Where a gateway listens for others, if nobody has named an address."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.cluster import membership
from gateway.cluster.membership import Membership
from gateway.config.settings import ConfigurationError
from tests.requirements import requirement

pytestmark = requirement("rep.any")


class Bound(Exception):
    """The listener was asked to listen."""


class Listener:
    def listening(self, host: str, port: int) -> Any:
        raise Bound(f"{host}:{port}")


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Joins the others from the address that reaches the store."""

    async def joined(found: str, listen: str = "127.0.0.1:0", advertise: str = "") -> None:
        async def reached_from(_: str) -> str:
            return found

        monkeypatch.setattr(membership, "own_address_towards", reached_from)
        nothing: Any = None
        parts: dict[str, Any] = {"listener": Listener(), "peers": SimpleNamespace(close=lambda: None)}
        parts |= {"beats": nothing, "reachability": nothing, "listen": listen, "advertise": advertise}
        await Membership(nothing, **parts, store="redis://10.0.0.9").joined().__aenter__()

    return joined


@pytest.mark.anyio
async def test_it_is_the_address_that_reaches_the_store(join: Callable[..., Any]) -> None:
    for found, bound in (("10.0.0.7", "10.0.0.7:0"), ("", "127.0.0.1:0"), ("fd00::7", "fd00::7:0")):
        with pytest.raises(Bound, match=f"^{bound}$"):
            await join(found)


@pytest.mark.anyio
@pytest.mark.parametrize("found", ["8.8.4.4", "2a00:1450:4001::1"])
async def test_no_gateway_listens_in_the_internet_unasked(join: Callable[..., Any], found: str) -> None:
    with pytest.raises(ConfigurationError, match=r"gateway\.advertise"):
        await join(found)
    with pytest.raises(Bound, match="9000"):
        await join(found, f"{found}:9000", f"{found}:9000")
