"""What a person sees: the board as plain lines and drawn, and the summary."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from cordwood.block import Gap, GapKind
from cordwood.demo.board import Board, Moving, StepState
from cordwood.demo.epoch_rows import EpochRow
from cordwood.demo.rejoin import Rejoined
from cordwood.demo.report import Ingested, Killed, Report, Stored
from cordwood.demo.screen import picture, screen
from cordwood.demo.spark_messages import Answered, Landed, Row
from cordwood.demo.summary import print_summary
from cordwood.demo.tail_check import EpochRead
from cordwood.demo.victim import Victim
from cordwood.lsn import OLDEST, Lsn, make_lsn
from cordwood.nodes import NodeId


def shown(work, *, terminal: bool) -> str:
    """What a console shows while `work` runs on a board of two steps."""
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=terminal, color_system=None)

    async def main() -> None:
        board = Board(["first", "second"], lambda: 0.0)  # or a stall would be read off it
        async with screen(board, console):
            work(board)

    asyncio.run(main())
    return out.getvalue()


def two_steps(board: Board) -> None:
    board.moving = lambda: Moving(5, 10, 500, 9_000, 1.0, 7, {1: True, 2: False})
    with board.step("first") as step:
        step.note = "went well"
    with pytest.raises(OSError, match="broke"), board.step("second"):
        raise OSError("broke")


class TestTheScreen:
    def test_plain_lines_where_there_is_no_terminal(self):
        lines = shown(two_steps, terminal=False).splitlines()
        assert lines == [
            "first …",
            "  done in 0.0 s: went well",
            "second …",
            "  failed after 0.0 s",
        ]

    def test_a_picture_where_there_is_one(self):
        text = shown(two_steps, terminal=True)
        assert "✓ first" in text
        assert "went well" in text
        assert "✗ second" in text

    def test_the_figures_that_move(self):
        board = Board(["first", "second"], lambda: 0.0)
        board.moving = lambda: Moving(5, 10, 500, 9_000_000, 1.0, 7, {1: True, 2: False})
        out = io.StringIO()
        with board.step("first"):
            Console(file=out, width=100).print(picture(board, Text("*")))
        lines = [line.strip() for line in out.getvalue().splitlines()]
        assert lines[0].startswith("* first")
        assert lines[1].startswith("· second")
        assert lines[3].endswith("500 records, 500/s, 9.0 MB/s  tail 7 behind")
        assert lines[4] == "nodes ● 1 ✗ 2"


class TestTheBoard:
    def test_a_step_takes_what_its_clock_says(self):
        times = iter([10.0, 11.0, 13.5])
        board = Board(["only"], lambda: next(times))
        with board.step("only") as step:
            assert (step.state, board.so_far(step)) == (StepState.RUNNING, 1.0)
        assert (step.state, step.seconds, board.so_far(step)) == (StepState.DONE, 3.5, 3.5)


def report(query: str, rows: list[Row], *, kept: bool = False) -> Report:
    done = Report("things", query, Path("/tmp/demo"), kept, nodes={1: "rack1", 2: "rack2"})
    done.ingested = Ingested(336_776, 100_000_000, 4.0)
    done.stored = Stored(385, 15_000_000, 3, 2, 4, {1: 300, 2: 385})
    done.killed = Killed(Victim(NodeId(1), NodeId(2), 1, 190), "rack1", 168_000, 0.041, 0.052)
    done.beheaded = Killed(Victim(NodeId(2), NodeId(2), 1, 200), "rack2", 252_000, 0.7, 0.8)
    first, last = Lsn(OLDEST), Lsn(OLDEST + 252_999)
    bridge = Gap(Lsn(last + 1), make_lsn(2, 0), GapKind.BRIDGE)
    newer = EpochRead(make_lsn(2, 1), make_lsn(2, 83_776), 83_776)
    done.epochs = [
        EpochRow(1, 2, EpochRead(first, last, 253_000), bridge),
        EpochRow(2, 1, newer, None),
    ]
    done.rejoined = [Rejoined(NodeId(2), 2, newer.last, 200)]
    done.rejoin_s = 1.25
    done.landed = Landed(5.0, 336_776, 1)
    done.answered = Answered(0.5, rows)
    done.checks.note("all came", True, "336,776")
    return done


def summary(of: Report, width: int = 200) -> str:
    out = io.StringIO()
    print_summary(Console(file=out, width=width), of)
    return out.getvalue()


class TestTheSummary:
    def test_it_says_what_happened(self):
        drawn = summary(report("flights", [Row(b"XX", 10, 8, 20), Row(b"YY", 10, 0, 0)]), 400)
        text = " ".join(drawn.split())
        assert "every check held" in text
        assert "336,776 records (things), 100.0 MB, in 4.0 s: 84,194 a second, 25.0 MB/s" in text
        assert "Node 1 in rack1 got SIGKILL after 168,000 acknowledged records" in text
        assert "4 blocks on the way to it went out again" in text
        assert "41 ms" in text
        assert "the log was 700 ms without a sequencer" in text
        assert "Node 1 recovered it and numbers it on in epoch 2" in text
        assert "had caught up after 1.2 s" in text
        assert "bridge e1n253001 to e2n0" in text
        assert "back: sealed by epoch 2, readable up to e2n83776" in text
        assert "+2.5 min" in text
        assert "✓ all came 336,776" in text
        assert "/tmp/demo/parquet" in text

    def test_lines_by_file_with_names_of_any_bytes(self):
        rows = [Row(b"[bold]x.log", 3, 3, 30), Row(b"\xff.log", 1, 0, 0)]
        text = summary(report("files", rows))
        assert "[bold]x.log" in text
        assert "10.0" in text
        assert "\ufffd.log" in text

    def test_where_the_cluster_stays_it_says_how_to_start_it_again(self):
        text = summary(report("files", [], kept=True))
        assert "up --dir /tmp/demo/cluster" in text
        assert "--keep" not in text

    def test_a_command_to_copy_is_one_line_however_narrow_the_terminal(self):
        text = summary(report("files", []), width=40)
        assert "pandas.read_parquet('/tmp/demo/parquet'))\"" in text
        assert any("import pandas; print(" in line for line in text.splitlines())

    def test_a_check_that_failed_is_the_headline(self):
        failed = report("files", [])
        failed.checks.compare("its digest is the source's", "a", "b")
        text = summary(failed)
        assert "this is not as it should be" in text
        assert "✗  its digest is the source's  b, not a" in text
        assert "Try next" not in text
        assert not failed.held

    def test_a_demo_that_broke_off_early_says_why(self):
        early = Report("things", "flights", Path("/tmp/demo"), False, failure="no space")
        text = summary(early)
        assert "Failed: no space" in text
        assert "Everything is left in /tmp/demo" in text
        assert not early.held
