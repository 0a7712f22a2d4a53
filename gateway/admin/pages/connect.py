"""Show how clients connect: commands, entries of configuration files, and links."""

from typing import Any, Final

from starlette.requests import Request

from gateway.admin.pages.page import BASE_URL, ConsolePage
from gateway.admin.query_types import OperatorError
from gateway.admin.verb_handlers import Operations
from gateway.config.addresses import base_url, is_of_this_machine, url_here
from gateway.config.endpoint_paths import ALL, path_of
from gateway.config.hosts.client_snippets import CLIENTS, CREDENTIAL_VARIABLE, snippets


async def _facts(operators: Operations, request: Request) -> dict[str, Any]:
    settings, given = operators.settings, request.query_params
    options = settings.gateway
    try:
        # The browser knows the base URL for clients, unless the console has a listener of its own.
        known = url_here(options.host, options.port) if options.admin.listen else str(request.scope[BASE_URL])
        base = base_url(given.get("base", "") or known)
    except ValueError as error:
        raise OperatorError(str(error)) from None
    server = given.get("server", "")
    path = path_of(server) if server in settings.mcpServers else ALL
    needs_token = not options.allows_anonymous
    found = {snippet.client: snippet for snippet in snippets(base + path, needs_token=needs_token)}
    client = given.get("client", "")
    return {
        "base": base,
        "url": base + path,
        "server": server,
        "servers": list(settings.mcpServers),
        "needs_token": needs_token,
        "variable": CREDENTIAL_VARIABLE,
        "clients": [(name, found[name].title.partition(" (")[0]) for name in CLIENTS],
        "chosen": found.get(client, found[CLIENTS[0]]),
        "is_local": is_of_this_machine(base),
    }


PAGE: Final = ConsolePage(
    path="/admin/connect",
    label="Connect",
    position=9,
    shortcut="n",
    icon="M6.5 9.5l3-3M7 4.5l1.3-1.3a3 3 0 0 1 4.5 4.5L11.5 9M9 11.5l-1.3 1.3a3 3 0 0 1-4.5-4.5L4.5 7",
    facts=_facts,
    title="Connect",
    head="""\
<div class="head"><div><h1>Connect</h1><p>How a client uses this gateway.</p></div></div>
<form class="search">
<label class="grow">Address of the gateway<input name="base" type="url" value="{{ base }}"></label>
<label>Servers<select name="server">
<option value="">all</option>
{% for name in servers %}<option{% if name == server %} selected{% endif %}>{{ name }}</option>
{% endfor %}
</select></label>
<input type="hidden" name="client" value="{{ chosen.client | exact }}">
<button>Show</button>
</form>
""",
    live="""\
<div class="connect">
<div>
{{ tables.segments("Client", "client", clients, chosen.client, {"base": base, "server": server}) }}
<section class="panel" aria-labelledby="client">
<header><h2 id="client">{{ chosen.title }}</h2>
<a href="{{ chosen.documentation }}" rel="noreferrer">Its documentation</a></header>
{% if needs_token %}
<p class="notice">Callers need a credential: put an API key or an access token into the variable
<code>{{ variable }}</code> where the client runs.</p>
{% endif %}
{% if chosen.link %}
<p><a class="button primary" href="{{ chosen.link }}">Add to {{ chosen.title }}</a></p>
{% endif %}
{{ tables.code_block("text", "Run this" if chosen.language == "sh" else "A program"
    if chosen.language in ("python", "typescript") else "In " ~ chosen.file.path, chosen.text) }}
{% if chosen.file and chosen.file.text != chosen.text %}
{{ tables.code_block("file", "Or in " ~ chosen.file.path, chosen.file.text) }}
{% endif %}
</section>
</div>
<aside class="panel" aria-labelledby="address">
<header><h2 id="address">Address</h2></header>
<p><code id="url">{{ url }}</code></p>
{% if is_local %}<p class="soft">This address works on this machine only.
Give the one that others reach above.</p>{% endif %}
</aside>
</div>
""",
)
