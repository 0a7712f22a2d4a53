"""The session state that an HTTP server may use, by the assertion that it was sent with a request."""

from starlette.exceptions import HTTPException
from starlette.requests import Request

from gateway.context.assertion import HEADER, Assertions
from gateway.context.link_resources import LinkResourceProvider
from gateway.context.state_api import StateAccess
from gateway.observability.audit import Audit
from session_store import SessionStore

__all__ = ["AssertedState"]


class AssertedState:
    """Verifies the assertion of a request. Called by the state API."""

    def __init__(
        self, assertions: Assertions, store: SessionStore, link_resources: LinkResourceProvider, audit: Audit
    ) -> None:
        self._assertions = assertions
        self._store = store
        self._link_resources = link_resources
        self._audit = audit

    async def of(self, request: Request) -> StateAccess:
        """The state of the session that the assertion names.

        Raises:
            HTTPException: 401 without a valid assertion, 410 when the session has ended.
        """
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        session_id = self._assertions.session_of(token)
        if session_id is None:
            self._audit.record("refused", reason="invalid or expired session assertion")
            raise HTTPException(401, f"send the {HEADER} of a request of the last minute as Authorization: Bearer")
        session = await self._store.peek(session_id)
        if session is None:
            raise HTTPException(410, "the session has ended")
        return self._link_resources.state_of(session)
