"""docs/api.md names every verb, and its examples run on an embedded store."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.client.admin.log_tree import LogTree
from cordwood.client.append.buffered_writer import BufferedWriter
from cordwood.client.blocking.blocking_ledgers import (
    BlockingReadableLedger,
    BlockingWritableLedger,
)
from cordwood.client.blocking.blocking_readers import BlockingConsumer, BlockingLogsReader
from cordwood.client.blocking.blocking_store import BlockingLogTree, BlockingStore
from cordwood.client.ledgers.ledgers import Ledgers
from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.client.read.consumer import Consumer
from cordwood.client.read.cursors import Cursors
from cordwood.client.read.reader import Reader
from cordwood.client.store import Store

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "api.md").read_text()

# What the client's own parts and tests call, and no program.
NOT_FOR_PROGRAMS = {
    "run_by", "serve_with", "wait_closed",
    "ask", "fill", "item", "portion", "wake", "offer", "settle", "fill_raw", "batches_of",
    "end", "generation", "log_tree", "reset", "unstage",
}  # fmt: skip


@dataclass(frozen=True)
class Example:
    """A fenced block: the heading above it, which of the heading's it is, and its text."""

    heading: str
    number: int
    text: str

    @property
    def is_program(self) -> bool:
        """Whether it connects by itself, so that it runs as a process of its own."""
        return bool(re.search(r"^import cordwood$", self.text, re.MULTILINE)) and (
            "connect(" in self.text
        )

    @property
    def awaits(self) -> bool:
        """Whether it is for the asyncio door."""
        return bool(re.search(r"\bawait\b|\basync (for|with)\b", self.text))


def examples() -> list[Example]:
    found = []
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        heading = part.splitlines()[0]
        blocks = re.findall(r"^```python\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
        found += [Example(heading, number, text) for number, text in enumerate(blocks)]
    return found


PRELUDE = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
PROGRAMS = [example for example in examples() if example.is_program]
SHORT = [example for example in examples() if not example.is_program]


def ids(example: Example) -> str:
    return f"{example.heading.replace(' ', '-')}-{example.number}"


@pytest.fixture(scope="module")
def blocking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingStore]:
    with cordwood.connect(str(tmp_path_factory.mktemp("blocking") / "data")) as store:
        yield store


@pytest.fixture(scope="module")
def asyncio_door(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[asyncio.Runner, Store]]:
    with asyncio.Runner() as runner:
        place = str(tmp_path_factory.mktemp("asyncio") / "data")
        store = runner.run(cordwood.aio.connect(place, wal_mib=16).opened())
        yield runner, store
        runner.run(store.close())


def run(text: str, names: dict[str, Any]) -> Any:
    """Run an example; what it gives back is to be awaited where it awaits."""
    code = compile(text, "api.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return eval(code, names)  # noqa: S307


def prelude() -> dict[str, Any]:
    names: dict[str, Any] = {}
    run(PRELUDE, names)
    return names


@pytest.mark.real
@pytest.mark.parametrize("example", [each for each in SHORT if not each.awaits], ids=ids)
def test_the_blocking_example_runs(example: Example, blocking: BlockingStore) -> None:
    run(example.text, {**prelude(), "store": blocking})


@pytest.mark.real
@pytest.mark.parametrize("example", [each for each in SHORT if each.awaits], ids=ids)
def test_the_asyncio_example_runs(
    example: Example, asyncio_door: tuple[asyncio.Runner, Store]
) -> None:
    runner, store = asyncio_door

    async def work() -> None:
        async with asyncio.timeout(30):
            await run(example.text, {**prelude(), "store": store})

    runner.run(work())


@pytest.mark.real
@pytest.mark.parametrize("example", PROGRAMS, ids=ids)
def test_the_program_runs_as_it_stands(example: Example, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(textwrap.dedent(example.text))
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("is_asyncio", [False, True], ids=["blocking", "asyncio"])
def test_each_verb_has_an_example_behind_its_door(is_asyncio: bool) -> None:
    """Of the store's and of the log tree's verbs; those of what a store makes are named."""
    text = "\n".join(each.text for each in examples() if each.awaits == is_asyncio)
    classes = (Store, LogTree, Cursors) if is_asyncio else (BlockingStore, BlockingLogTree)
    verbs = {verb for each in classes for verb in public(each)} - NOT_FOR_PROGRAMS
    # The asyncio client is closed by `async with`; addresses and the like are shown once.
    shown_once = {"close", "create", "serve", "cluster_id", "is_closed"}
    assert [verb for verb in sorted(verbs - shown_once) if f".{verb}" not in text] == []


# Closed by `with`; `rest` only waits until there is more to `read`; nodes' copies are for repairs.
SHOWN_BY_NAME = {"close", "rest", "copies"}


@pytest.mark.parametrize(
    "kind",
    [
        Reader, BlockingLogsReader, Consumer, BlockingConsumer, BufferedWriter, Ledgers,
        WritableLedger, BlockingWritableLedger, ReadableLedger, BlockingReadableLedger,
    ],
)  # fmt: skip
def test_each_verb_of_what_a_store_makes_has_an_example(kind: type) -> None:
    text = "\n".join(each.text for each in examples())
    verbs = public(kind) - NOT_FOR_PROGRAMS
    assert [verb for verb in sorted(verbs & SHOWN_BY_NAME) if verb not in PAGE] == []
    assert [verb for verb in sorted(verbs - SHOWN_BY_NAME) if f".{verb}" not in text] == []


def public(kind: type) -> set[str]:
    members = inspect.getmembers_static(kind)
    return {name for name, value in members if not name.startswith("_") and _is_verb(value)}


def _is_verb(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, property)
