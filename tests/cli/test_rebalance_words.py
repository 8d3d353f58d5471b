"""What `cordwood nodes rebalance` says of its progress and its end."""

from __future__ import annotations

from cordwood.cli.rebalance import progress_words, report_json
from cordwood.client.admin.nodes import Rebuilding
from cordwood.errors import Unreachable
from cordwood.layout.message_rebuilding import DonorState
from cordwood.nodes import NodeId
from cordwood.rebuilding import Gave, Rebalancing, Transfer

KNOWN = Rebalancing(3, (Transfer(1, 4, 5), Transfer(2, 4, 5), Transfer(3, 4, 5)), (1, 2, 3),
                    (Gave(1, 3, 2, 2048, 1, 1024),))  # fmt: skip


def test_progress_has_rate_and_time_left_and_who_is_waited_for() -> None:
    busy = DonorState(3, 2, 1 << 20, 4, 4 << 20, float(1 << 20), "nodes [4] do not say")
    found = Rebuilding((), {NodeId(2): busy, NodeId(3): Unreachable("away")}, {}, KNOWN)
    said = progress_words(found, KNOWN)
    assert "4.0 s left" in said or "4 s left" in said
    assert said.endswith("waits: node 3 does not answer; node 2: nodes [4] do not say")


def test_a_donor_that_still_looks_does_not_know_how_long_it_takes() -> None:
    found = Rebuilding((), {NodeId(2): DonorState(3, is_looking=True)}, {}, KNOWN)
    assert "… to do" in progress_words(found, KNOWN)


def test_the_report_has_what_each_node_gave() -> None:
    assert report_json(KNOWN) == {
        "is_over": False, "is_stopped": False, "donors_left": [2, 3],
        "gave": [{"node": 1, "blocks": 2, "bytes": 2048, "kept": 1, "kept_bytes": 1024}],
    }  # fmt: skip
