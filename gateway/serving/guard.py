"""Which Host and Origin are served, by the settings."""

from gateway.config.addresses import is_loopback
from gateway.config.settings import GatewaySettings
from gateway.identity.authenticate import TrustedProxies
from transports.inbound.http import Guard

__all__ = ["guard_of"]


def guard_of(options: GatewaySettings, proxies: TrustedProxies) -> Guard:
    """For all listeners of clients."""
    names, proxies_say = options.allowed_hosts, () if options.auth.proxies is None else options.auth.proxies.headers
    fields = (field.header.lower() for field in options.context.fields.values() if field.header)
    keys = (name.lower() for name in options.session.key_headers)
    return Guard(
        proxies=proxies,
        hosts=frozenset(names),
        domains=tuple(name[1:] for name in names if name.startswith("*.")),
        origins=frozenset(options.allowed_origins),
        loopback=is_loopback(options.host),
        head_bytes=options.limits.head_bytes,
        single=frozenset((*proxies_say, *fields, *keys)),
    )
