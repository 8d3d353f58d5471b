"""`cordwood tier` where a page of a manifest is missing: it names the log, and does the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from made_objects import Made
from verbs_at_hand import run_verb

from cordwood.host.real import real_host
from cordwood.layout.body import encode_body
from cordwood.layout.object_names import objects_prefix, pages_prefix
from cordwood.protocol.manifest import FANOUT
from cordwood.tier.addresses import open_object_store
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.uploader import Item, LogUploader

TORN, WHOLE = 1, 2


def run(*arguments: object, ends_with: int = 0) -> str:
    done = run_verb(["tier", *map(str, arguments)])
    assert done.exit_code == ends_with, done.output
    return done.output


def upload(store: Path, log: int, objects: int) -> None:
    """Put a log of so many objects, each with four records, and let go of the first of them."""
    made = Made(log)
    for _ in range(objects):
        made = made.block(encode_body([b"v" * 400] * 4, timestamps_us=5))

    async def items() -> AsyncIterator[Item]:
        for item in made.items:
            yield item

    async def main() -> None:
        async with real_host() as host:
            opened = await open_object_store(host, str(store))
            manifest = LogManifest(opened, log, host, "n")
            uploader = LogUploader(opened, manifest, host, log, f"/{log}", object_bytes=300)
            await uploader.run(items(), made.first)
            await manifest.trim(made.first + 4)
            await opened.close()

    asyncio.run(main())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A log that lacks a page, and one behind it that is whole."""
    upload(tmp_path / "store", TORN, FANOUT + 3)
    upload(tmp_path / "store", WHOLE, 3)
    (page,) = (tmp_path / "store" / pages_prefix(TORN)).iterdir()
    page.unlink()
    return tmp_path / "store"


def objects_of(store: Path, log: int) -> int:
    return len([*(store / objects_prefix(log)).iterdir()])


def test_verify_reads_the_other_logs(store: Path) -> None:
    said = run("verify", "--store", store, ends_with=1)
    assert f"log {WHOLE}: 2 objects with 8 records are sound" in said
    assert f"log {TORN}: 0 objects with 0 records are sound" in said
    assert "repair it" in said


@pytest.mark.parametrize("option", [(), ("--dry-run",)])
def test_compact_merges_the_other_logs(store: Path, option: tuple[str, ...]) -> None:
    said = run("compact", "--store", store, *option, ends_with=1)
    assert f"log {WHOLE}: 2 objects" in said
    assert f"log {TORN} is passed by" in said


def test_collect_deletes_nothing_of_that_log_and_goes_on(store: Path) -> None:
    before = objects_of(store, TORN)
    said = run("collect", "--store", store, "--grace", 0, ends_with=1)
    assert f"log {TORN} is passed by" in said
    assert "repair it" in said
    assert "1 objects deleted" in said
    assert (objects_of(store, TORN), objects_of(store, WHOLE)) == (before, 2)


def test_a_log_that_was_named_is_an_error(store: Path) -> None:
    assert "passed by" not in run("verify", TORN, "--store", store, ends_with=1)
    run("repair", TORN, "--start", "e3n44", "--store", store)
    run("collect", "--store", store, "--grace", 0)
    assert f"log {TORN}: {FANOUT + 2} objects" in run("verify", "--store", store)
