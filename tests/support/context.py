"""Facts of sessions without fields of an operator, for unit tests."""

from typing import Final

from gateway.config.sessions import ContextSettings
from gateway.context.session_facts import SessionFacts

FACTS: Final = SessionFacts(ContextSettings(), {})
