"""Losses are told when a batch is planned: which log, from where, why; and in bounded time."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from cordwood.block import Gap, GapKind
from cordwood.errors import AccessDenied, UnknownLog, Unreachable
from cordwood.lsn import Lsn, make_lsn
from cordwood.spark.gap_probe import check_whole
from cordwood.spark.offsets import DataLoss
from cordwood.spark.splitting import Slice

LOG = 17


def at(esn: int) -> Lsn:
    return make_lsn(7, esn)


def gap(kind: GapKind, first: int, last: int) -> Gap:
    return Gap(at(first), at(last), kind)


class Logs:
    """A store whose readers give what was scripted, by number: LOG and those that follow it."""

    def __init__(self, *runs) -> None:
        self._runs = dict(enumerate(runs, LOG))
        self.asked: list[int] = []

    @contextmanager
    def read(self, log, start, until, *, payloads):
        assert not payloads, "bodies are not needed to find gaps"
        self.asked.append(log)
        runs = self._runs[log]
        if isinstance(runs, Exception):
            raise runs
        yield SimpleNamespace(block_runs=lambda timeout_s: iter(runs))


def asked(name: str, log: int = LOG) -> Slice:
    return Slice(log, name, at(100), at(400))


@pytest.mark.parametrize("kind", [GapKind.TRIM, GapKind.DATA_LOSS])
def test_what_is_gone_is_told_with_log_range_and_kind(kind):
    store = Logs([[object()], [gap(GapKind.HOLE, 150, 151), gap(kind, 200, 249)]])
    said = f"CORDWOOD_DATA_LOSS log=17 requested=e7n200 oldest=e7n250 type={kind.name}"
    with pytest.raises(DataLoss, match=said):
        check_whole(store, [asked("a")])


def test_what_may_not_be_read_is_no_loss():
    store = Logs([[gap(GapKind.ACCESS, 200, 399)]])
    with pytest.raises(AccessDenied, match=r"asks for a read token .* cordwood.read.tokens"):
        check_whole(store, [asked("a")])


def test_holes_and_bridges_are_no_loss():
    store = Logs([[gap(GapKind.HOLE, 100, 120)], [gap(GapKind.BRIDGE, 121, 399)]])
    check_whole(store, [asked("a")])


def test_what_cannot_be_asked_is_left_to_the_tasks():
    """They have more patience, and words of their own for each of these."""
    store = Logs(Unreachable("nobody"), UnknownLog("gone"), [])
    check_whole(store, [asked("a"), asked("b", LOG + 1), asked("c", LOG + 2)])


def test_it_ends_in_time_however_much_there_is():
    store = Logs([[object()]] * 3, [[gap(GapKind.TRIM, 100, 120)]])
    check_whole(store, [asked("a"), asked("b", LOG + 1)], within_s=0.0)
    assert store.asked == []
