"""Which Host and Origin are served, by the settings."""

from gateway.identity import TrustedProxies
from gateway.settings import GatewaySettings, is_loopback
from transports.inbound.http import Guard

__all__ = ["guard_of"]


def guard_of(options: GatewaySettings, proxies: TrustedProxies) -> Guard:
    """For all listeners of clients."""
    return Guard(
        proxies=proxies,
        hosts=frozenset(options.allowed_hosts),
        origins=frozenset(options.allowed_origins),
        loopback=is_loopback(options.host),
        single=frozenset() if options.auth.proxies is None else frozenset(options.auth.proxies.headers),
    )
