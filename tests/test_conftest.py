"""What a missing thing does to a test that asks for it, with CORDWOOD_REQUIRE and without."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("required", ["", "jre", "nats,jre"])
def test_what_is_not_required_is_skipped(required: str, require, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CORDWOOD_REQUIRE", required)
    with pytest.raises(pytest.skip.Exception, match="zookeeper: not installed"):
        require("zookeeper", "not installed")


@pytest.mark.parametrize("required", ["zookeeper", "nats, zookeeper", "zookeeper nats"])
def test_what_is_required_fails(required: str, require, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CORDWOOD_REQUIRE", required)
    with pytest.raises(pytest.fail.Exception, match="asks for zookeeper: not installed"):
        require("zookeeper", "not installed")
