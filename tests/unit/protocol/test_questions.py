"""Input requests of modern servers become requests to legacy clients."""

import msgspec
import pytest

from gateway.protocol.questions import for_legacy_client, question_of
from tests.requirements import requirement


@requirement("spec.bridge")
def test_an_input_request_keeps_its_method_and_params() -> None:
    method, params = question_of(msgspec.Raw(b'{"method":"sampling/createMessage","params":{"maxTokens":1}}'))
    assert method == "sampling/createMessage" and params is not None
    assert {key: bytes(raw) for key, raw in params.items()} == {"maxTokens": b"1"}
    assert question_of(msgspec.Raw(b'{"method":"roots/list"}')) == ("roots/list", None)


@requirement("spec.bridge")
def test_a_url_gets_the_id_that_the_legacy_era_wants_and_a_form_gets_none() -> None:
    ids = []
    for _ in range(2):
        raw = msgspec.Raw(b'{"method":"elicitation/create","params":{"mode":"url","url":"u"}}')
        _, params = for_legacy_client(question_of(raw))
        assert params is not None
        ids.append(msgspec.json.decode(params["elicitationId"]))
    assert len({*ids}) == 2
    form = question_of(msgspec.Raw(b'{"method":"elicitation/create","params":{"mode":"form"}}'))
    _, params = for_legacy_client(form)
    assert params is not None and "elicitationId" not in params


@pytest.mark.parametrize("raw", [b"[]", b"{}", b'{"method":1}', b'{"method":"x","params":[]}'])
def test_what_is_no_input_request_is_an_error(raw: bytes) -> None:
    with pytest.raises((msgspec.MsgspecError, ValueError)):
        question_of(msgspec.Raw(raw))
