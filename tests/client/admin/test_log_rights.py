"""Who may change a log: whoever has the token that guards what the change takes away."""

from __future__ import annotations

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.errors import AccessDenied, UnknownLog
from cordwood.layout.message_rights import DeleteLog, SetAttributes
from cordwood.log_attributes import LogAttributes, token_digest
from cordwood.metadata.log_rights import who_has

W, R = "to write", "to read"
BOTH = LogAttributes(write_token=token_digest(W), read_token=token_digest(R))
NEW = token_digest("new")


class TestRule:
    @pytest.mark.parametrize(
        ("tokens", "becomes", "refused"),
        [
            ((), None, "write token"),
            ((R,), None, "write token"),
            ((W,), None, ""),
            ((R,), LogAttributes(write_token="", read_token=BOTH.read_token), "write token"),
            ((W,), LogAttributes(write_token="", read_token=BOTH.read_token), ""),
            ((W,), LogAttributes(write_token=BOTH.write_token, read_token=""), "read token"),
            ((R,), LogAttributes(write_token=BOTH.write_token, read_token=NEW), "write token"),
            ((W, R), LogAttributes(write_token=NEW, read_token=NEW), ""),
            ((), LogAttributes(backlog_s=1.0).over(BOTH), "write token"),
            ((), LogAttributes(backlog_bytes=1).over(BOTH), "write token"),
            ((), LogAttributes(nodeset_size=5).over(BOTH), ""),
            ((token_digest(W),), None, "write token"),
        ],
    )
    def test_of_a_log_with_both(self, tokens, becomes, refused: str) -> None:
        if refused:
            with pytest.raises(AccessDenied, match=f"wants its {refused}"):
                who_has(tokens)("/a", BOTH, becomes)
        else:
            who_has(tokens)("/a", BOTH, becomes)

    def test_of_a_log_without_any_everybody_may(self) -> None:
        who_has(())("/a", LogAttributes(), None)
        who_has(())("/a", LogAttributes(), BOTH)


class TestNodes:
    @as_scenario(simulate)
    async def test_who_has_no_token_changes_nothing(self, cluster: ClusterAtHand) -> None:
        """Any client could unset the tokens of a log, rename it and delete it."""
        owned = {"write_tokens": (W,), "read_tokens": (R,)}
        async with cluster.client(**owned) as owner, cluster.client() as other:
            await owner.create_log("/a", attributes=BOTH)
            await owner.append("/a", b"0")
            tree = other.log_tree
            for unset in (("read_token",), ("write_token",), ("write_token", "read_token")):
                with pytest.raises(AccessDenied, match="CORDWOOD_WRITE_TOKENS"):
                    await tree.set_attributes("/a", LogAttributes(), unset)
            with pytest.raises(AccessDenied):
                await tree.set_attributes("/a", LogAttributes(write_token=NEW))
            with pytest.raises(AccessDenied):
                await tree.delete("/a")
            with pytest.raises(AccessDenied):
                await tree.rename("/a", "/b")
            with pytest.raises(AccessDenied):
                await tree.raise_token("/a", 5, "thief")
            # A refused rename leaves no name behind.
            await other.create_log("/b")
            await tree.set_attributes("/a", LogAttributes(nodeset_size=3))
            assert (await other.log("/a")).own == LogAttributes(nodeset_size=3).over(BOTH)

            renamed = await owner.log_tree.rename("/a", "/c")
            await owner.log_tree.set_attributes("/c", LogAttributes(), ("read_token",))
            await owner.fence("/c", 1)
            assert (await owner.log(renamed.log_id)).own.read_token is None
            await owner.log_tree.delete("/c")
            with pytest.raises(UnknownLog):
                await owner.log("/c")

    @as_scenario(simulate)
    async def test_a_directory_gives_no_way_around(self, cluster: ClusterAtHand) -> None:
        owned = {"write_tokens": ("x", W), "read_tokens": (R,)}
        async with cluster.client(**owned) as owner, cluster.client() as other:
            await owner.log_tree.set_attributes("/d/", BOTH)
            await owner.create_log("/d/a")
            await owner.create_log("/e/a", attributes=BOTH)
            for unset in (("write_token",), ("read_token",)):
                with pytest.raises(AccessDenied):
                    await other.log_tree.set_attributes("/d/", LogAttributes(), unset)
            with pytest.raises(AccessDenied, match="/e/a"):
                await other.log_tree.set_attributes("/e/", LogAttributes(backlog_s=1.0))
            with pytest.raises(AccessDenied):
                await other.log_tree.rename("/d/a", "/open")
            # What a log has of its own is not changed by its directory.
            await other.log_tree.set_attributes("/e/", LogAttributes(write_token=NEW))
            await owner.log_tree.set_attributes("/d/", LogAttributes(), ("read_token",))
            assert (await other.log("/d/a")).attributes.read_token == ""
            await owner.log_tree.rename("/d/a", "/open")

    def test_tokens_are_shown_to_nobody(self) -> None:
        for call in (DeleteLog("/a", tokens=[W]), SetAttributes("/a", BOTH, tokens=[W])):
            assert W not in repr(call)
            assert "/a" in repr(call)
