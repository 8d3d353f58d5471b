"""One small real cluster and one Spark session for all tests of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_cluster import LiveCluster
from pyspark.sql import SparkSession

from cordwood.client.blocking.blocking_store import BlockingStore, connect
from cordwood.spark.session import local_session


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """Three nodes, three copies."""
    with LiveCluster(tmp_path_factory.mktemp("cluster")) as live:
        yield live


@pytest.fixture(scope="session")
def store(cluster: LiveCluster) -> Iterator[BlockingStore]:
    """A client of the cluster."""
    with connect(cluster.url) as connected:
        yield connected


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """This process's Spark session; set-up has seen to it that there is a Java."""
    session = local_session("cordwood-tests")
    yield session
    session.stop()
