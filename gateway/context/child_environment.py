"""Build the environment variables of one server's child processes, from the session, the rules, and secrets."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType

from gateway.config.sessions import CORRELATION_ID, TEMP_DIR, EnvironmentValue
from gateway.context.principal_secrets import PrincipalSecrets, is_template, with_paths
from gateway.context.session_facts import SessionFacts
from gateway.context.session_folders import SessionFolders, no_folder
from gateway.identity.context_rules import ContextRules, own_setting
from gateway.identity.credential_claims import CallerToken
from session_store import Session
from transports.upstream.stdio import inherited


@dataclass(eq=False, repr=False)
class ChildEnvironment:
    """Build the environment of one server's child processes.

    `server`: the server's name. `names`: the session field for each variable. `own`: the setting `env` of the server.
    Values of `env` without a secret are not added here: the transport sets them for all children.
    """

    server: str
    names: Mapping[str, EnvironmentValue]
    own: Mapping[str, str]
    _: KW_ONLY
    facts: SessionFacts
    rules: ContextRules
    secrets: PrincipalSecrets
    folders: SessionFolders

    def __post_init__(self) -> None:
        self._has_folder = any(value.field == TEMP_DIR for value in self.names.values())
        self._of_request = frozenset(name for name, value in self.names.items() if value.field == CORRELATION_ID)

    async def of(
        self,
        session: Session,
        correlation: str,
        token: CallerToken | None = None,
        files: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, str]:
        """Return the environment variables of a child process of the session. Variables that the operator has
        configured override those with fields of the session.

        `correlation`: the id of the child's first request. `token`: the access token of the session's client. `files`:
        the paths of the child's files of secrets, by the secret's name.

        Raises:
            UpstreamUnavailable: a secret or the folder of the session is missing.
        """
        more = {CORRELATION_ID: correlation}
        if self._has_folder:
            try:
                more[TEMP_DIR] = str(self.folders.path(session.id))
            except OSError as error:
                raise no_folder(error) from error
        variables = self.facts.environment(session, self.names, more)
        configured = {
            name: value
            for name, (value, where) in self._configured(session).items()
            if where != own_setting(self.server) or is_template(value)
        }
        if not configured:
            return variables
        filled = await self.secrets.current(with_paths(configured, files), session.principal, token)
        return {**variables, **filled.values}

    def without_session(self) -> dict[str, str]:
        """Return the variables of a child that is started for no session. Each has its configured default, else an
        empty value, so that a program that requires it can start. A variable that every child has anyway (an inherited
        one, HOME or TMPDIR) is left out if it has no default."""
        always = {*inherited(), "HOME", "TMPDIR"}
        return {name: value.default or "" for name, value in self.names.items() if value.default or name not in always}

    def overriding(self, session: Session) -> frozenset[str]:
        """Return the names of those variables in the server's own `env` for which another setting, such as a rule of
        the policy, gives this session another value."""
        if not self.own:
            return frozenset()
        configured, own = self._configured(session), own_setting(self.server)
        return frozenset(name for name in self.own if configured[name][1] != own)

    def _configured(self, session: Session) -> Mapping[str, tuple[str, str]]:
        return self.rules.variables(session.principal, session.context, self.server, self.own)

    def comparable(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variables without the correlation id, so that two processes' environments can be compared."""
        return {name: value for name, value in variables.items() if name not in self._of_request}
