"""Attributes as people write them, inherit them and get them wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import BadSetting
from cordwood.log_attributes import (
    DEFAULTS,
    NAMES,
    LogAttributes,
    check_attributes,
    check_whole,
    parse_attributes,
    token_digest,
)
from cordwood.nodes import Replication


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["replicate_across=node:3,rack:2"], {"replicate_across": {"node": 3, "rack": 2}}),
        (["replicate_across=rack:2"], {"replicate_across": {"rack": 2}}),
        (
            ["replicate_across=node:4,rack:3,region:2"],
            {"replicate_across": {"node": 4, "rack": 3, "region": 2}},
        ),
        (["backlog_s=7d"], {"backlog_s": 604_800.0}),
        (["backlog_s=1.5h"], {"backlog_s": 5400.0}),
        (["backlog_s=90 min"], {"backlog_s": 5400.0}),
        (["backlog_s=0"], {"backlog_s": 0.0}),
        (["backlog_bytes=2GiB"], {"backlog_bytes": 2 << 30}),
        (["backlog_bytes=1000"], {"backlog_bytes": 1000}),
        (["nodeset_size=8", "scd_enabled=off"], {"nodeset_size": 8, "scd_enabled": False}),
        (["sticky_copysets=true"], {"sticky_copysets": True}),
        (["write_token="], {"write_token": ""}),
        (["write_token=a=b"], {"write_token": token_digest("a=b")}),
        (["read_token=c"], {"read_token": token_digest("c")}),
        (["tier=on", "tier_open=on"], {"tier": True, "tier_open": True}),
        ([], {}),
    ],
)
def test_as_people_write_them(words, found):
    assert parse_attributes(words) == LogAttributes(**found)


@pytest.mark.parametrize(
    "word",
    ["colour=red", "backlog_s", "backlog_s=", "backlog_s=soon", "backlog_s=-1", "backlog_bytes=1X",
     "nodeset_size=-1", "nodeset_size=1.5", "nodeset_size=1000", "scd_enabled=2",
     "replicate_across=3", "replicate_across=node:x", "replicate_across=moon:2",
     "replicate_across=node:2,rack:3", "replicate_across=node:2,dc:3", "replicate_across=node:0",
     "replicate_across=node:99",
     "max_writes_in_flight=0", "synced_copies=17", "backlog_s=1000000d"],
)  # fmt: skip
def test_what_cannot_be(word: str):
    with pytest.raises(BadSetting):
        parse_attributes([word])


def test_a_token_itself_is_never_kept():
    with pytest.raises(BadSetting, match="token_digest"):
        check_attributes(LogAttributes(write_token="secret"))
    assert "secret" not in str(parse_attributes(["write_token=secret", "read_token=secret"]))


def test_a_read_token_and_main_storage_go_together_only_where_that_is_wanted():
    both = LogAttributes(tier=True, read_token=token_digest("c")).over(DEFAULTS)
    with pytest.raises(BadSetting, match="tier_open=on"):
        check_whole(both)
    check_whole(both, both)  # an older log that has both is not in the way of other changes
    assert not both.is_uploaded
    opened = LogAttributes(tier_open=True).over(both)
    check_whole(opened)
    assert opened.is_uploaded
    with pytest.raises(BadSetting, match="tier_open=on"):
        check_whole(both, opened)
    assert LogAttributes(tier=True).over(DEFAULTS).is_uploaded
    assert not LogAttributes(tier_open=True).over(DEFAULTS).is_uploaded


def test_the_defaults_are_whole():
    check_whole(DEFAULTS)
    assert set(DEFAULTS.as_set()) == set(NAMES)
    assert DEFAULTS.replication == Replication(3, 1)


def test_racks_alone_are_as_many_copies():
    assert LogAttributes(replicate_across={"rack": 2}).replication == Replication(2, 2)


attributes = st.builds(
    LogAttributes,
    backlog_s=st.none() | st.floats(0, 10),
    nodeset_size=st.none() | st.integers(3, 5),
    scd_enabled=st.none() | st.booleans(),
)


@given(attributes, attributes, attributes)
def test_inheriting_goes_by_what_is_nearest(own, directory, root):
    whole = own.over(directory.over(root.over(DEFAULTS)))
    for name in NAMES:
        values = [getattr(each, name) for each in (own, directory, root, DEFAULTS)]
        assert getattr(whole, name) == next(value for value in values if value is not None)
    check_whole(whole)
