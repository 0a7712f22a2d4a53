"""Build what a link to a server needs: environment and secrets for a child process, or headers with a signed assertion
for a URL. Find the secret values in these and in the server's configuration."""

import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final

import msgspec

from gateway.calls.live_session import LiveSession
from gateway.config.sandbox import Sandbox
from gateway.config.secrets import ConsentSettings, ExchangeSettings
from gateway.config.upstreams import UpstreamSettings
from gateway.context.child_environment import ChildEnvironment
from gateway.context.principal_secrets import PrincipalSecrets, is_template, secrets_in_files
from gateway.context.process_secret_files import CurrentSecrets, SecretFiles
from gateway.context.resources_for_links import LinkResourceProvider, LinkResources, ReleaseStack
from gateway.context.session_assertions import HEADER, Assertions
from gateway.context.session_facts import new_correlation_id, with_context
from gateway.context.session_folders import no_folder
from gateway.identity.credential_claims import CallerToken
from gateway.policy.principal_quotas import PrincipalQuotas
from gateway.upstreams.process_sandbox import SandboxedResources
from session_store import Context, Session
from session_store.redaction import secret_arguments, secret_values
from session_store.tool_session import FACTS_VARIABLE
from transports.inbound_port import Refused
from transports.upstream.stdio import StdioLink, StdioUpstream
from transports.upstream_port import ConnectOptions, UpstreamUnavailable

_ANEW: Final = "its credential is configured anew, and this session goes on with a former server"


@dataclass(frozen=True, slots=True)
class PrestartedProcess:
    """A process that was started before its session opens, with its resources, environment and sandbox. `forget`
    removes the files that the process leaves behind if the session never opens."""

    grant: LinkResources
    link: StdioLink
    env: Mapping[str, str]
    sandbox: Sandbox
    forget: Callable[[], None]

    @property
    def is_good(self) -> bool:
        """Return True if the process runs and has sent no message yet, so that a session can use it like a new one."""
        return self.link.is_unheard

    async def close(self) -> None:
        """End the process and release its resources."""
        await self.link.close()
        self.grant.close()
        self.forget()


@dataclass(eq=False, repr=False)
class SessionResources:
    """Build the resources (environment, files, headers) of links to one server. `take_prestarted` returns the
    prestarted process of a session; None if there is none. `sandboxed` puts processes into the server's sandbox."""

    settings: UpstreamSettings
    _: KW_ONLY
    grants: LinkResourceProvider
    assertions: Assertions
    credentials: PrincipalSecrets
    environment: ChildEnvironment
    quotas: PrincipalQuotas
    take_prestarted: Callable[[Session], PrestartedProcess | None]
    sandboxed: SandboxedResources

    def __post_init__(self) -> None:
        self._sources: list[ExchangeSettings | ConsentSettings | None] | None = None
        headers = {name: value for name, value in self.settings.headers.items() if is_template(value)}
        # What a running link has renewed: headers, or files by the secret's name.
        self._secrets = headers if self.settings.is_remote else secrets_in_files(self.settings.env)

    async def of(self, live: LiveSession, context: Context, correlation: str, resume: str) -> LinkResources:
        """Return the resources of a session's next link to the server. `context` has the rights that the link gets.
        `correlation`: the correlation id of the request that needs the link. `resume`: the MCP session id that an
        earlier link to a URL has got from the server; empty if there is none.

        Raises:
            UpstreamUnavailable: a secret is missing, or the process's walls, folder or socket cannot be made.
            Refused: 429, the process limit of the session's principal is reached; 503, too little memory is free.
        """
        if self.settings.is_remote:
            return await self._for_url(live, context, resume)
        session = with_context(live.session, context)
        if self.settings.kind == "object":
            return self.grants.for_object(session)
        with ReleaseStack() as releases:
            files = await self._files(live, context, self.environment.overriding(session)) if self._secrets else None
            if files is not None:
                releases.add(files.close)
            paths = {} if files is None else files.paths
            env = await self.environment.of(session, correlation, _token(live, context), paths)
            releases.add(await self.quotas.hold_process(session))
            resources = await self._prestarted(session, env) or await self._for_child(session, env, correlation, files)
            releases.add(resources.close)
            return replace(resources, close=releases.close)

    async def _for_url(self, live: LiveSession, context: Context, resume: str) -> LinkResources:
        principal = live.session.principal
        own = dict((await self._filled(live, context, self._secrets)).values)
        assertion, url = self.assertions.of, self.settings.url

        async def renew() -> None:
            if not (values := self._renewed(is_same=context == live.session.context)):
                return
            own.update((await self.credentials.current(values, principal, live.token)).values)
            if live.recorder is not None:
                live.recorder.hide(_of_headers(own.values()), are_renewed=True)

        async def rejected(sent: Collection[str]) -> bool:
            if not (any(map(_is_consent, self._sources or ())) and self._is_as_at_first()):
                return False
            await self.credentials.reject(self._secrets, principal, sent)
            return True

        return LinkResources(
            given=ConnectOptions(
                rejected=rejected,
                headers=lambda: {**own, HEADER: assertion(with_context(live.session, context), url)},
                renew=renew,
                resume=resume,
                keep=lambda: live.is_elsewhere,
            )
        )

    async def _files(self, live: LiveSession, context: Context, overridden: Collection[str]) -> SecretFiles:
        """Return the files with secrets for a process. Files of tokens are renewed, others keep their first values.
        Variables in `overridden` get their values from a rule, so the process gets no files for them. A process without
        any such files still has a folder, because its launcher can name the folder."""
        secrets = secrets_in_files({n: value for n, value in self.settings.env.items() if n not in overridden})
        principal, current = live.session.principal, self.credentials.current
        first = await self._filled(live, context, secrets)
        renewed = {name for name, value in secrets.items() if any(self.credentials.sources({name: value}))}

        async def read() -> CurrentSecrets:
            wanted = self._renewed(is_same=context == live.session.context)
            found = await current({n: v for n, v in wanted.items() if n in renewed}, principal, live.token)
            if live.recorder is not None:
                live.recorder.hide(found.values.values(), are_renewed=True)
            return found

        try:
            return SecretFiles(self.grants.folders, first, renewed, read)
        except OSError as error:
            raise no_folder(error) from error

    def _renewed(self, *, is_same: bool) -> dict[str, str]:
        """Return those headers or files with secrets that a running link renews before each request; empty if none of
        them has a token.

        `is_same`: the session still has the context of the link. With a later context, the link only finishes calls in
        flight: return only those with tokens to which a person has consented, because new tokens of other kinds have
        other rights. If a later configuration takes tokens from other sources, return none, or raise
        `UpstreamUnavailable` if one of the first sources needs consent."""
        if not any(self._sources or ()):
            return {}
        values, is_same_source = self._secrets, self._is_as_at_first()
        consented = {n: v for n, v in values.items() if any(map(_is_consent, self.credentials.sources({n: v})))}
        if not is_same_source and any(map(_is_consent, self._sources or ())):
            raise UpstreamUnavailable(_ANEW)  # what was revoked must not be used until the session ends
        if not is_same_source:
            return {}
        return values if is_same else consented

    async def _filled(self, live: LiveSession, context: Context, values: Mapping[str, str]) -> CurrentSecrets:
        """Return these headers or files with the secrets filled in. Raises `UpstreamUnavailable` if a reload has
        changed the source of the tokens: this former server must not get a token that is for another server."""
        if not self._is_as_at_first() and values:
            raise UpstreamUnavailable(_ANEW)
        return await self.credentials.current(values, live.session.principal, _token(live, context))

    def _is_as_at_first(self) -> bool:
        """Return True if the present configuration takes the tokens in headers or files from the same sources as when
        this method was called first, for the first link."""
        found = self.credentials.sources(self._secrets)
        if self._sources is None:
            self._sources = found
        return found == self._sources

    async def _for_child(
        self, session: Session, env: Mapping[str, str], correlation: str, files: SecretFiles | None = None
    ) -> LinkResources:
        sandbox = self.sandboxed.by_trust.sandbox(session.context.trust)
        facts = self.environment.facts.all_of(session, correlation)
        resources = await self.grants.for_child(session, facts, env, sandbox.launcher, self.settings.env, files)
        given = msgspec.structs.replace(resources.given, overriding=self.environment.overriding(session))
        return await self.sandboxed.of_session(replace(resources, given=given), session.id, sandbox)

    def secrets(self, given: ConnectOptions) -> set[str]:
        """Return the secret values in the server's configuration and in the options of a link."""
        return secrets_in(self.settings) | secrets_of_link(given)

    async def shared(self) -> LinkResources:
        """Return the resources of a link that belongs to no session, or to several. Raises `UpstreamUnavailable`."""
        if self.settings.kind != "command":
            return LinkResources()
        return await self.sandboxed.shared({} if self.settings.shared else self.environment.without_session())

    async def prestart(self, session: Session, upstream: StdioUpstream) -> PrestartedProcess:
        """Start a process for a session that is not open yet. Raises `UpstreamUnavailable`, also if memory is short."""
        if self.sandboxed.memory.is_short:  # what is left is for processes that a client waits for
            raise UpstreamUnavailable("memory is short")
        correlation = new_correlation_id()
        env = await self.environment.of(session, correlation)
        try:
            resources = await self._for_child(session, env, correlation)
        except Refused as refused:
            raise UpstreamUnavailable(str(refused)) from None
        try:
            link = await upstream.start(resources.given)
        except BaseException:
            resources.close()
            raise
        forget = functools.partial(self.grants.folders.forget, session.id)
        sandbox = self.sandboxed.by_trust.sandbox(session.context.trust)
        return PrestartedProcess(resources, link, self.environment.comparable(env), sandbox, forget)

    async def _prestarted(self, session: Session, env: Mapping[str, str]) -> LinkResources | None:
        """Return the resources of the session's prestarted process; None if there is none. If a new process would get
        another environment or sandbox, close the prestarted process and return None."""
        prestarted = self.take_prestarted(session)
        if prestarted is None:
            return None
        sandbox, comparable = self.sandboxed.by_trust.sandbox(session.context.trust), self.environment.comparable(env)
        if not prestarted.is_good or (prestarted.env, prestarted.sandbox) != (comparable, sandbox):
            await prestarted.close()
            return None
        return replace(prestarted.grant, given=msgspec.structs.replace(prestarted.grant.given, started=prestarted.link))


def _is_consent(source: ExchangeSettings | ConsentSettings | None) -> bool:
    return isinstance(source, ConsentSettings)


def _token(live: LiveSession, context: Context) -> CallerToken | None:
    """Return the access token of a session's caller for a link with the rights in `context`; None if the caller has
    none. Also return None if the session has another context by now: a link that only finishes calls of an earlier
    context gets no later token."""
    return live.token if context == live.session.context else None


def secrets_in_command(settings: UpstreamSettings) -> set[str]:
    """Return the secrets in a server's command line, and the secrets from the gateway's environment that its
    configuration puts into the server's command line or environment."""
    texts = (*settings.args, *settings.env.values())
    ours = {value for value in secret_values(os.environ) if any(value in text for text in texts)}
    return secret_arguments(settings.args) | ours


def secrets_in(settings: UpstreamSettings) -> set[str]:
    """Return all secrets in a server's configuration: in its command line, secret variables, and headers."""
    return secrets_in_command(settings) | secret_values(settings.env) | _of_headers(settings.headers.values())


def secrets_of_link(given: ConnectOptions) -> set[str]:
    """Return what logs and operators must not see of a link: the values of its headers, and the values of its
    environment variables except facts of the session."""
    facts = {*_texts(msgspec.json.decode(given.env.get(FACTS_VARIABLE, "{}")))}
    variables = {value for name, value in given.env.items() if name != FACTS_VARIABLE}
    return (variables - facts) | _of_headers(given.headers().values())


def _of_headers(values: Any) -> set[str]:
    """Return the values of headers. For `Bearer VALUE`, also return `VALUE` alone."""
    return {part for value in values for part in (value, value.rpartition(" ")[2])}


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
