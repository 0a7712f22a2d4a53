"""Every feature in every cell of the era matrix, over stdio and HTTP: SDK clients and servers."""

import warnings

import anyio
import pytest

from tests.matrix.run import CELLS, FEATURES, connected, served
from tests.requirements import requirement
from tests.support.gateway_process import running_gateway

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("cell", CELLS, ids=" ".join)
@requirement("spec.bridge", "spec.complete", "ctx.isolated")
async def test_every_feature_passes(cell: tuple[str, str, str]) -> None:
    ours, theirs, wire = cell
    warnings.simplefilter("ignore")  # the SDK's, that the old words are old
    with served(theirs, wire) as entry, running_gateway({"features": entry}) as gateway:
        with anyio.fail_after(60):
            async with connected(gateway.url, ours) as (client, heard):
                for name, feature in FEATURES.items():
                    try:
                        await feature(client, heard)
                    except BaseException as error:
                        error.add_note(f"feature: {name}")
                        raise
