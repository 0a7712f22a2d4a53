"""Where a gateway listens for others, if nobody has named an address."""

from typing import Any, cast

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


class Peers:
    def close(self) -> None:
        """Nothing is open."""


def joining(monkeypatch: pytest.MonkeyPatch, found: str, listen: str = "127.0.0.1:0", advertise: str = "") -> Any:
    async def reached_from(_: str) -> str:
        return found

    monkeypatch.setattr(membership, "own_address_towards", reached_from)
    nothing, listener, peers = cast(Any, None), cast(Any, Listener()), cast(Any, Peers())
    return Membership(
        nothing,
        listener=listener,
        peers=peers,
        beats=nothing,
        reachability=nothing,
        listen=listen,
        advertise=advertise,
        store="redis://10.0.0.9",
    ).joined()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("found", "bound"), [("10.0.0.7", "10.0.0.7:0"), ("", "127.0.0.1:0"), ("fd00::7", "fd00::7:0")]
)
async def test_it_is_the_address_that_reaches_the_store(
    monkeypatch: pytest.MonkeyPatch, found: str, bound: str
) -> None:
    with pytest.raises(Bound, match=f"^{bound}$"):
        await joining(monkeypatch, found).__aenter__()


@pytest.mark.anyio
@pytest.mark.parametrize("found", ["8.8.4.4", "2a00:1450:4001::1"])
async def test_no_gateway_listens_in_the_internet_unasked(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    with pytest.raises(ConfigurationError, match=r"gateway\.advertise"):
        await joining(monkeypatch, found).__aenter__()
    with pytest.raises(Bound, match="9000"):
        await joining(monkeypatch, found, f"{found}:9000", f"{found}:9000").__aenter__()
