"""The fuzzers' corpora: what ever broke a decoder, and what reaches each of its branches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import fuzz_more  # noqa: F401 (it adds to TARGETS)
import pytest
from decoders_found import decoders, reached
from fuzz_node import FuzzedNode, frames_of
from fuzz_run import CANARY, CORPUS, DECODED_BYTES_MAX, NODE, bounded, corpus, names
from fuzz_targets import DECODERS, TARGETS
from swaps import swap

from cordwood.errors import BadSetting, CordwoodError, Malformed
from cordwood.layout.nodesets import read_nodesets
from cordwood.metadata.epoch_store import _decode
from cordwood.sequencer import role
from cordwood.sim.history import from_jsonl
from cordwood.spark.checkpoint import Checkpoint
from cordwood.spark.options import parse_options
from cordwood.spark.places import parse_times


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    assert names() == sorted([*TARGETS, NODE])
    assert {file.stem for file in CORPUS.iterdir()} == {*names(), CANARY}


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_what_was_found_is_refused_or_taken(name: str) -> None:
    taken = 0
    for data in corpus(name):
        bounded(name, TARGETS[name], every=1)(data)
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


NOT_FUZZED = {
    ("client/blocking/blocking_merges.py", "_task"): "reads what the driver of this job packed",
    ("client/blocking/blocking_merges.py", "commit"): "reads what a task of this job packed",
    ("decisions.py", "parse_story"): "a few characters of a setting: tests/test_decisions.py",
    ("host/local_socket.py", "reach_beside"): "the kernel's word: who is at the other end",
    ("layout/block_header.py", "peek_stored_bytes"): "reads what was checked before",
    ("layout/object_columns.py", "__init__"): "columns that Arrow made: tests/layout damages them",
    ("layout/object_file.py", "read"): "called by Arrow: tests/layout/test_object_file.py",
    (
        "layout/object_file.py",
        "read_footer",
    ): "Arrow takes it apart: tests/layout damages it",
    ("layout/object_file.py", "read_group"): "Arrow takes it apart: tests/layout damages it",
    ("layout/object_file.py", "read_buffer"): "called by Arrow: tests/layout/test_object_file.py",
    ("layout/object_file.py", "read_index"): "as `read_footer`, which calls it",
    ("layout/object_file.py", "readable"): "only says that it is; called by Arrow",
    ("layout/waves.py", "store_blocks"): "reads what the same process packed",
    ("layout/ledger_object.py", "read_ledger_footer"): "as `read_footer`: tests/layout damages it",
    ("layout/ledger_object.py", "read_ledger_group"): "as `read_group`: tests/layout damages it",
    ("layout/object_file.py", "read_group_rows"): "Arrow takes it apart: tests/layout damages it",
    (
        "storage/rebuild/rebalance_orders.py",
        "_shares_of",
    ): "reads a call of the wire again: tests/storage",
    ("layout/message.py", "check_call"): "reads what this process packed",
    ("layout/object_writer.py", "read_back"): "reads what this process made; tests/tier",
    ("layout/object_writer.py", "whole"): "joins what this process made; tests/tier",
    ("local_cluster.py", "_read_or_make_shape"): "opens a file; `identity` has what it reads",
    ("metadata/log_numbers.py", "_take_for"): "a call; `records_of_metadata` has what it reads",
    ("metadata/log_numbers.py", "decide"): "a call; `records_of_metadata` has what it reads",
    ("node_process.py", "main"): "only says which encoding a log line has",
    ("quorum/sequencer_placement.py", "_score"): "a hash as a number",
    ("spark/checkpoint.py", "_is_of"): "opens a file; below, one that nests too deep",
    ("spark/idempotent.py", "producer_id"): "a hash as a number",
    ("spark/jobs/audit.py", "_noted"): "needs a table of findings: tests/spark",
    ("spark/jobs/delta_table.py", "_transactions"): "reads a commit that deltalake has read",
    ("spark/jobs/delta_table.py", "_is_whole"): "opens a file; tests/spark/jobs has torn commits",
    ("spark/jobs/json_columns.py", "_object"): "a record's own JSON in the user's job: tests/spark",
    ("spark/jobs/notes.py", "_read_json"): "opens a file; tests/spark/jobs/test_notes.py has it",
    ("spark/jobs/notes.py", "offset_in"): "as _read_json, of a table's own log",
    ("metadata/joins.py", "read"): "lists a store; `records_of_metadata` reads a note of it",
    ("storage/data_directory.py", "_check_newest"): "opens files; `identity` has what it reads",
    ("storage/repair/copy_fetch.py", "takes"): "four bytes as a number; `stream_control` reads on",
}
"""Why a function that decodes has no target of its own."""


def test_every_decoder_of_the_code_is_reached_by_a_corpus() -> None:
    def run() -> None:
        for name in sorted(TARGETS):
            for data in corpus(name):
                TARGETS[name](data)

    found, by_some = decoders(), reached(run)
    assert len(found) > 100, "the search for decoders finds them"
    left = {place for place in found if place not in by_some}
    assert sorted(left) == sorted(NOT_FUZZED), "give a new decoder a target in tests/fuzz"


def test_text_of_too_many_digits_or_brackets_is_refused_and_no_more() -> None:
    servers = {"cordwood.bootstrap.servers": "h:1"}
    for text in ("[" * 5000, "[" + "1" * 5000 + "]"):
        with pytest.raises(BadSetting):
            parse_options({**servers, "assign": text})
    for text in ("[" * 5000, '{"/a":' + "1" * 5000 + "}"):
        with pytest.raises(BadSetting):
            parse_times("startingOffsetsByTimestamp", text, "earliest")
    with pytest.raises(Malformed, match="line 1"):
        from_jsonl(b'{"event":' + b"[" * 5000 + b"\n")


def test_nodesets_that_nest_too_deep_or_are_no_text_are_refused() -> None:
    for packed in (b"\x91\x82\xa1x" + b"\x91" * 100_000, corpus("nodesets")[-1]):
        with pytest.raises(Malformed, match="nodesets cannot be read"):
            read_nodesets(packed)


def test_a_checkpoint_that_nests_too_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("[" * 5000)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("[" * 5000)
    with pytest.raises(BadSetting, match="which query"):
        Checkpoint(tmp_path).query()
    assert Checkpoint.of_query(str(tmp_path.parent), "q") is None
    with pytest.raises(BadSetting, match="what batch 0 reads"):
        Checkpoint(tmp_path).end_of(0)


def test_a_target_that_takes_more_memory_than_it_may_is_told() -> None:
    greedy = bounded("greedy", lambda data: bytearray(DECODED_BYTES_MAX), every=2)
    greedy(b"")
    with pytest.raises(AssertionError, match="greedy took"):
        greedy(b"")


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

    swap(monkeypatch, role.read_append, broken, within=role)
    with pytest.raises(KeyError, match="planted"):
        run_corpus(node)


def test_a_task_that_dies_is_told(node: FuzzedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: object, ask: object) -> None:
        raise KeyError("planted")

    swap(monkeypatch, role.SequencerRole.tail, broken)
    with pytest.raises(AssertionError, match="a task of the node ended"):
        run_corpus(node)


def test_metadata_that_is_no_text_is_refused_by_name() -> None:
    with pytest.raises(Malformed, match="epoch record of log 1 cannot be read"):
        _decode(1, b'{"log\xffid":3}')
