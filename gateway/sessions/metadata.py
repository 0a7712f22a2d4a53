"""The metadata that the operator's rules give a new session. Pure.

Some values are chosen by clients: characters that do not belong in metadata are removed.
"""

from collections.abc import Callable, Mapping

from gateway.errors import bad_context
from session_store import Session
from session_store.metadata import InvalidMetadata, checked_metadata, merged_metadata

__all__ = ["metadata_of"]


def metadata_of(session: Session, rules: Mapping[str, str], scrub: Callable[[str], str]) -> dict[str, str]:
    """Names and texts, with the placeholders of the rules replaced by facts of the session. `scrub` redacts in them.

    Raises:
        Refused: 400, it is larger than a session's metadata may be.
    """
    filled = {
        name: text.format(
            principal=session.principal,
            agent=session.client.name,
            workspace=session.context.workspace,
            trust=session.context.trust,
            endpoint=session.endpoint,
        )
        for name, text in rules.items()
    }
    try:
        return merged_metadata({}, checked_metadata(filled, scrub))
    except InvalidMetadata as error:
        raise bad_context(str(error)) from None
