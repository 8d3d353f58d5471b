"""The metadata store as people name it."""

from __future__ import annotations

import pytest

from cordwood.errors import BadSetting
from cordwood.metadata.where import parse_zookeeper


@pytest.mark.parametrize(
    ("url", "hosts", "root"),
    [
        ("zookeeper://a:2181/cluster/one", "a:2181", "/cluster/one"),
        ("zookeeper://a,b:99,c", "a:2181,b:99,c:2181", "/cordwood"),
        ("zookeeper://127.0.0.1:2181/", "127.0.0.1:2181", "/cordwood"),
        ("zookeeper://[::1]:2181/x", "[::1]:2181", "/x"),
        ("zookeeper://[::1]/x/", "[::1]:2181", "/x"),
    ],
)
def test_an_ensemble_and_a_path(url: str, hosts: str, root: str):
    assert parse_zookeeper(url) == (hosts, root)


@pytest.mark.parametrize(
    "url",
    ["zookeeper://", "zookeeper:///x", "zookeeper://a:b", "zookeeper://a:99999", "zookeeper://a/..",
     "zookeeper://a//b", "zookeeper://a/b c", "zookeeper://a/b:c", "zookeeper://a,,b",
     "zookeeper://::1:2181/x"],
)  # fmt: skip
def test_others_are_refused(url: str):
    with pytest.raises(BadSetting):
        parse_zookeeper(url)
