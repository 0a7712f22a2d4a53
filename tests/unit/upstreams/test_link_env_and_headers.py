"""What a running link has of its session: headers and files with tokens, and how long."""

from collections.abc import Collection
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config.secrets import ConsentSettings, ExchangeSettings
from gateway.config.upstreams import UpstreamSettings
from gateway.context.process_secret_files import CurrentSecrets
from gateway.context.resources_for_links import LinkResources
from gateway.context.session_folders import SessionFolders
from gateway.upstreams.link_env_and_headers import SessionResources
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.unit.upstreams.parts import Enclosed, returning, walls_of
from transports.upstream.walls.resolved_paths import is_within
from transports.upstream_port import ConnectOptions, UpstreamUnavailable

CLOCK = FakeClock()
CONSENT = ConsentSettings(resource="https://a.example/mcp")
HEADERS = {"Authorization": "Bearer ${secret:files}"}


def content(path: str) -> str | None:
    return Path(path).read_text() if Path(path).exists() else None


def at_a_server_behind_a_url(sources: list[Any], current: Any, **credentials: Any) -> tuple[SessionResources, Any]:
    """What a session has there, whose `HEADERS` have a secret from these sources; and the session."""
    parts: Any = dict.fromkeys(("grants", "environment", "quotas", "take_prestarted", "sandboxed")) | {
        "assertions": SimpleNamespace(of=lambda *_: "signed"),
        "credentials": SimpleNamespace(sources=lambda _: [*sources], current=current, **credentials),
    }
    settings = UpstreamSettings(url="https://a.example/mcp", headers=HEADERS)
    return SessionResources(settings, **parts), SimpleNamespace(session=a_session(CLOCK), token=None, recorder=None)


@requirement("cred.exchange")
async def test_a_former_server_gets_no_token_of_a_later_configuration() -> None:
    configured, given = ["first"], []

    async def current(*_: object) -> CurrentSecrets:
        given.append(configured[0])
        return CurrentSecrets({"Authorization": configured[0]}, 0.0)

    resources, live = at_a_server_behind_a_url(configured, current)
    link = (await resources.of(live, live.session.context, "", "")).given
    await link.renew()
    configured[0] = "second"
    await link.renew()
    assert link.headers()["Authorization"] == "first" and given == ["first", "first"]
    with pytest.raises(UpstreamUnavailable, match="former server"):
        await resources.of(live, live.session.context, "", "")
    assert given == ["first", "first"]


@requirement("cred.consent")
async def test_a_token_of_consent_is_asked_for_while_calls_finish_and_not_used_after_its_settings_changed() -> None:
    configured: list[Any] = [CONSENT]
    given: list[Any] = []

    async def current(values: dict[str, str], *_: object) -> CurrentSecrets:
        given.append(dict(values))
        return CurrentSecrets(dict.fromkeys(values, "Bearer hers"), 0.0)

    resources, live = at_a_server_behind_a_url(configured, current)
    link = (await resources.of(live, live.session.context, "", "")).given
    live.session = replace(live.session, context=replace(live.session.context, trust="sandboxed"))
    await link.renew()
    assert given == [HEADERS] * 2, "whoever has consented is the same, in whatever context"
    configured[0] = ConsentSettings(resource="https://b.example/mcp")
    with pytest.raises(UpstreamUnavailable, match="former server"):
        await link.renew()
    assert not await link.rejected(()) and len(given) == 2


@requirement("cred.refresh")
@pytest.mark.parametrize("is_consent", [True, False], ids=["consent", "exchange"])
async def test_the_file_of_a_process_gets_no_token_of_other_rights_or_of_a_later_configuration(
    folders: SessionFolders, is_consent: bool
) -> None:
    exchange = ExchangeSettings(token_endpoint="https://a.example/token", client_id="gateway")
    source: list[Any] = [CONSENT if is_consent else exchange]
    asked = count()

    async def current(values: dict[str, str], _: object, token: object) -> CurrentSecrets:
        return CurrentSecrets({name: f"{token}-{next(asked)}" for name in values}, 0.0)

    async def of(_session: object, _correlation: str, _token: object, files: dict[str, str]) -> dict[str, str]:
        return {"TOKEN_FILE": files["files"]}

    async def for_child(*given: Any) -> LinkResources:
        return LinkResources(given=ConnectOptions(env=given[2]), files=given[-1])

    parts: Any = dict.fromkeys(("assertions",)) | {
        "grants": SimpleNamespace(folders=folders, for_child=for_child),
        "credentials": SimpleNamespace(sources=lambda _: [*source], current=current),
        "environment": SimpleNamespace(
            of=of, facts=SimpleNamespace(all_of=lambda *_: {}), overriding=lambda _: frozenset()
        ),
        "quotas": SimpleNamespace(hold_process=returning(lambda: None)),
        "take_prestarted": lambda _: None,
    }
    server = Enclosed(folders, "standard")
    settings = UpstreamSettings(command="cat", env={"TOKEN_FILE": "${secret_file:files}"})
    resources = SessionResources(settings, **parts, sandboxed=server.sandboxed)
    live: Any = SimpleNamespace(session=a_session(CLOCK), token="hers", recorder=None)
    link = await resources.of(live, live.session.context, "", "")
    files, path = link.files, link.given.env["TOKEN_FILE"]
    assert files is not None and content(path) == "hers-0"
    (granted,) = (grant for grant in walls_of(link).grants if is_within(path, [grant.path]))
    assert (granted.path, granted.mode) == (str(files.folder), "r")
    other = await Enclosed(folders, "standard", "other").link()
    assert not any(is_within(path, [grant.path]) for grant in walls_of(other).grants)

    await files.renew()
    assert content(path) == "hers-1"
    live.session = replace(live.session, context=replace(live.session.context, trust="sandboxed"))
    await files.renew()
    assert content(path) == ("hers-2" if is_consent else "hers-1"), "who has consented is the same"
    source[0] = ConsentSettings(resource="https://b.example/mcp")
    if is_consent:
        with pytest.raises(UpstreamUnavailable, match="former server"):
            await files.renew()
    else:
        await files.renew()
        assert content(path) == "hers-1"
    assert (content(path) is None) is is_consent
    link.close()
    other.close()
    assert not files.folder.exists()
    with pytest.raises(UpstreamUnavailable, match="former server"):
        await resources.of(live, live.session.context, "", "")


@requirement("cred.refresh")
async def test_a_process_gets_no_file_for_a_variable_that_a_rule_replaces(folders: SessionFolders) -> None:
    asked: list[str] = []
    replaced: list[str] = []
    given: list[LinkResources] = []

    async def current(values: dict[str, str], *_: object) -> CurrentSecrets:
        asked.extend(values)
        return CurrentSecrets(dict.fromkeys(values, "secret of hers"), 0.0)

    async def of(_session: object, _correlation: str, _token: object, files: dict[str, str]) -> dict[str, str]:
        return files

    async def for_child(*parts: Any) -> LinkResources:
        given.append(LinkResources(given=ConnectOptions(env=parts[2]), files=parts[-1]))
        return given[-1]

    parts: Any = {
        "assertions": None,
        "grants": SimpleNamespace(folders=folders, for_child=for_child),
        "credentials": SimpleNamespace(sources=lambda values: [None] * len(values), current=current),
        "environment": SimpleNamespace(
            of=of, facts=SimpleNamespace(all_of=lambda *_: {}), overriding=lambda _: frozenset(replaced)
        ),
        "quotas": SimpleNamespace(hold_process=returning(lambda: None)),
        "take_prestarted": lambda _: None,
    }
    settings = UpstreamSettings(command="cat", env={"A": "${secret_file:first}", "B": "${secret_file:second}"})
    resources = SessionResources(settings, **parts, sandboxed=Enclosed(folders, "standard").sandboxed)
    live: Any = SimpleNamespace(session=a_session(CLOCK), token="hers", recorder=None)
    for names, wanted in (["A"], ["second"]), (["A", "B"], []), ([], ["first", "second"]):
        replaced[:] = names
        link = await resources.of(live, live.session.context, "", "")
        assert [*given[-1].given.env] == asked == wanted
        assert link.files is not None and len([*link.files.folder.iterdir()]) == len(wanted)
        link.close()
        asked.clear()


@requirement("cred.consent")
async def test_the_token_that_was_sent_is_rejected_not_the_one_that_has_replaced_it() -> None:
    given = iter(("Bearer token-0", "Bearer token-1"))
    rejected: list[str] = []

    async def current(values: dict[str, str], *_: object) -> CurrentSecrets:
        return CurrentSecrets(dict.fromkeys(values, next(given)), 0.0)

    async def reject(values: object, principal: object, sent: Collection[str]) -> None:
        rejected.extend(sent)

    resources, live = at_a_server_behind_a_url([CONSENT], current, reject=reject)
    link = (await resources.of(live, live.session.context, "", "")).given
    await link.renew()
    assert link.headers()["Authorization"] == "Bearer token-1"
    assert await link.rejected(["Bearer token-0"]) and rejected == ["Bearer token-0"]
