"""A head is replaced, and the write arrives after its answer was given up."""

from __future__ import annotations

from typing import Any

from scenarios import as_scenario
from test_repair import Cloud, all_entries, on_bucket

from cordwood.errors import OutcomeUnknown
from cordwood.layout.object_names import head_name
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_store import Etag, ObjectStore
from cordwood.tier.repair import repair_log


class LateStore:
    """The first conditional put arrives just before the second."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._late: tuple[Any, ...] = ()
        self.tries = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put_if(
        self, name: str, content: bytes, expected: Etag | None, *, timeout_s: float
    ) -> Etag:
        self.tries += 1
        if self.tries == 1:
            self._late = name, content, expected
            raise OutcomeUnknown("no answer")
        if self.tries == 2:
            await self._store.put_if(*self._late, timeout_s=timeout_s)
        return await self._store.put_if(name, content, expected, timeout_s=timeout_s)


@as_scenario(on_bucket)
async def test_a_repair_knows_its_own_head_that_arrived_late(cloud: Cloud) -> None:
    """It said that an uploader had committed meanwhile. Called again, it said that there was
    nothing to repair."""
    entries = await all_entries(await cloud.grow(3))
    cloud.bucket.delete(head_name(7))
    store = LateStore(cloud.store)
    manifest = LogManifest(store, 7, cloud.host, "operator")
    await repair_log(store, manifest, 7, start=entries[0].first)
    assert store.tries == 2
    assert [each.name for each in await all_entries(cloud.manifest())] == [
        each.name for each in entries
    ]
