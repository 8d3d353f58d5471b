"""Hadoop's addresses of main storage, as Spark's own Parquet reader takes them: a table."""

from __future__ import annotations

import pytest

from cordwood.spark.parquet_files import hadoop_address


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("/data/objects", "file:/data/objects"),
        ("file:///data/objects", "file:/data/objects"),
        ("s3://bucket/prefix/", "s3a://bucket/prefix"),
        # Main storage takes this scheme too, and Spark's own reader was said to have no address.
        ("s3a://bucket/prefix", "s3a://bucket/prefix"),
        ("gs://bucket", "gs://bucket"),
        ("az://container/prefix", None),
    ],
)
def test_an_address_of_main_storage_is_one_of_hadoops(address: str, wanted: str | None) -> None:
    assert hadoop_address(address) == wanted
