"""The fuzzers' corpora: what ever broke a decoder, and what reaches each of its branches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from fuzz_node import FuzzedNode, frames_of
from fuzz_run import CANARY, CORPUS, NODE, corpus, names
from fuzz_targets import DECODERS, TARGETS

from cordwood.errors import CordwoodError, Malformed
from cordwood.metadata.epoch_store import _decode


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    assert names() == sorted([*TARGETS, NODE])
    assert {file.stem for file in CORPUS.iterdir()} == {*names(), CANARY}


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_what_was_found_is_refused_or_taken(name: str) -> None:
    taken = 0
    for data in corpus(name):
        TARGETS[name](data)
        try:
            DECODERS[name](data)
        except CordwoodError:
            continue
        taken += 1
    assert taken, "a corpus without a good input reaches little"


def test_a_target_lets_through_what_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: memoryview) -> None:
        raise ValueError("not ours")

    monkeypatch.setattr("fuzz_targets.read_gossip", broken)
    with pytest.raises(ValueError, match="not ours"):
        TARGETS["gossip"](b"")


@pytest.fixture
def node() -> Iterator[FuzzedNode]:
    with closing(FuzzedNode()) as fuzzed:
        yield fuzzed


def run_corpus(node: FuzzedNode) -> None:
    for data in corpus(NODE):
        node.run(data)


def test_a_node_outlives_every_run_of_its_corpus(node: FuzzedNode) -> None:
    run_corpus(node)
    assert sum(len(list(frames_of(data[1:]))) for data in corpus(NODE)) >= 30


def test_a_handler_that_raises_what_is_not_ours_is_told(
    node: FuzzedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(payload: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr("cordwood.sequencer.role.read_append", broken)
    with pytest.raises(KeyError, match="planted"):
        run_corpus(node)


def test_a_task_that_dies_is_told(node: FuzzedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: object, ask: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr("cordwood.sequencer.role.SequencerRole.tail", broken)
    with pytest.raises(AssertionError, match="a task of the node ended"):
        run_corpus(node)


def test_metadata_that_is_no_text_is_refused_by_name() -> None:
    with pytest.raises(Malformed, match="epoch record of log 1 cannot be read"):
        _decode(1, b'{"log\xffid":3}')
