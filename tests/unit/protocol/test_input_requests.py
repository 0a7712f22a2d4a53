"""Input requests of modern servers become requests to legacy clients."""

import msgspec
import pytest

from gateway.protocol.input_requests import for_legacy_client, question_of
from tests.requirements import requirement
from tests.unit.protocol.parts import raw


@requirement("spec.bridge")
def test_an_input_request_keeps_its_method_and_params_and_what_is_none_is_an_error() -> None:
    method, params = question_of(msgspec.Raw(b'{"method":"sampling/createMessage","params":{"maxTokens":1}}'))
    assert method == "sampling/createMessage"
    assert params == raw(maxTokens=1)
    assert question_of(msgspec.Raw(b'{"method":"roots/list"}')) == ("roots/list", None)
    for said in (b"[]", b"{}", b'{"method":1}', b'{"method":"x","params":[]}'):
        with pytest.raises((msgspec.MsgspecError, ValueError)):
            question_of(msgspec.Raw(said))


@requirement("spec.bridge")
def test_a_url_gets_the_id_that_the_legacy_era_wants_and_a_form_gets_none() -> None:
    url, form = (
        question_of(msgspec.Raw(b'{"method":"elicitation/create","params":{"mode":"%s"}}' % mode))
        for mode in (b"url", b"form")
    )
    asked = [for_legacy_client(url)[1] or {} for _ in range(2)]
    assert len({msgspec.json.decode(params["elicitationId"]) for params in asked}) == 2
    assert for_legacy_client(form) == form
