"""The page and what it is made from: results in, text out, nothing measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers.page import page
from benchmarks.peers.results import (
    LEDGERS,
    TAIL_NAME,
    Cell,
    Results,
    System,
    append_name,
    catch_up_name,
    figures,
    load_results,
    p99_ratio,
    ratio_to_cordwood,
)
from cordwood.errors import Malformed

APPEND = append_name(1024, 16)
READ = catch_up_name(100)


def system(name: str, *, synced: bool = True, **cells: list[float]) -> System:
    made = System(
        name, name.title(), "1.2", servers=3, copies=3, synced=synced, durability="on the disk",
        client="its own", notes="",
    )  # fmt: skip
    for cell, values in cells.items():
        unit = "ms" if cell == TAIL_NAME else "records/s"
        latencies = [] if cell == READ else [1.5] * len(values)
        made.cells[cell] = Cell(cell, unit, values, latencies, list(latencies))
    return made


def results(*systems: System, load: float = 0.0, repeats: int = 5) -> Results:
    machine = {
        "cores": 2, "processor": "one", "memory_gib": 4.0, "system": "Linux", "python": "3.11",
        "file_system": "ext4", "load_before": load,
    }  # fmt: skip
    return Results("2026-01-02 03:04", "python -m benchmarks.peers", machine, repeats, 1.0, 1 << 20,
                   list(systems))  # fmt: skip


def ours(**cells: list[float]) -> System:
    return system("cordwood", **cells)


class TestResults:
    def test_what_is_saved_is_what_is_loaded(self, tmp_path: Path) -> None:
        made = results(ours(**{APPEND: [1.0, 2.0]}), system("kafka", synced=False))
        made.save(tmp_path / "benchmarks.json")
        assert load_results(tmp_path / "benchmarks.json") == made

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "x": 2}'])
    def test_what_is_no_results_is_refused_with_a_way_out(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "benchmarks.json"
        path.write_text(text)
        with pytest.raises(Malformed, match="measure anew"):
            load_results(path)

    def test_a_ratio_is_the_median_of_the_repeats_own(self) -> None:
        """Not the ratio of the medians, which would be 20 / 10 here."""
        made = results(ours(**{APPEND: [30, 20, 10]}), system("kafka", **{APPEND: [10, 20, 5]}))
        assert ratio_to_cordwood(made, "kafka", APPEND) == 2
        assert ratio_to_cordwood(
            results(ours(**{APPEND: [9, 20, 10]}), system("kafka", **{APPEND: [90, 20, 1]})),
            "kafka", APPEND,
        ) == 1  # fmt: skip

    def test_a_figure_is_cordwood_beside_a_peer_that_has_the_cell_too(self) -> None:
        made = results(
            ours(**{APPEND: [10.0, 30.0, 20.0]}),
            system("kafka", **{APPEND: [40.0, 40.0, 40.0], READ: [1.0]}),
        )
        (figure,) = figures(made)
        assert figure.name == "append_1KiB_16_in_flight_beside_kafka"
        assert (figure.value, figure.unit, figure.reference) == (20, "records/s", 40)
        assert (figure.ratio, figure.repeats, figure.p50_ms) == (0.5, 3, 1.5)
        assert "on the disk" in figure.reference_is

    def test_without_cordwood_there_is_nothing_to_compare(self) -> None:
        assert figures(results(system("kafka", **{APPEND: [1.0]}))) == []

    def test_ledgers_stand_beside_bookkeeper_s_and_nothing_else(self) -> None:
        made = results(
            ours(**{APPEND: [10.0]}),
            system("bookkeeper_qa2", **{APPEND: [20.0]}),
            system("bookkeeper_qa3", **{APPEND: [20.0]}),
            system("cordwood_ledgers", **{APPEND: [60.0]}),
        )
        ratios = {figure.name: figure.ratio for figure in figures(made)}
        assert ratios == {
            f"{APPEND}_beside_bookkeeper_qa2": 0.5,
            f"{APPEND}_beside_bookkeeper_qa3": 0.5,
            f"ledgers_{APPEND}_beside_bookkeeper_qa2": 3.0,
        }

    def test_p99s_have_a_ratio_of_their_own(self) -> None:
        quick, slow = system("cordwood_ledgers"), system("bookkeeper_qa2")
        quick.cells[APPEND] = Cell(APPEND, "records/s", [1.0, 1.0], [1.0, 1.0], [2.0, 3.0])
        slow.cells[APPEND] = Cell(APPEND, "records/s", [1.0, 1.0], [1.0, 1.0], [4.0, 6.0])
        made = results(quick, slow)
        assert p99_ratio(made, "bookkeeper_qa2", APPEND, LEDGERS) == 0.5
        assert p99_ratio(made, "kafka", APPEND, LEDGERS) is None


class TestPage:
    def test_ledgers_are_told_beside_bookkeeper_s_where_both_were_measured(self) -> None:
        ledgers = system("cordwood_ledgers", **{APPEND: [60.0], READ: [10.0]})
        peer = system("bookkeeper_qa2", **{APPEND: [20.0], READ: [20.0]})
        text = page(results(ours(), ledgers, peer))
        assert "| adds of 1 KiB, rate | – | 3.00 | – | – |" in text
        assert "| adds of 1 KiB, p99 | – | 1.00 | – | – |" in text
        assert "| 100 B | **0.50** |" in text
        assert "Ledgers beside" not in page(results(ours(), ledgers))

    def test_it_says_where_cordwood_loses_and_only_there(self) -> None:
        text = page(results(
            ours(**{APPEND: [50.0], READ: [300.0], TAIL_NAME: [8.0]}),
            system("kafka", **{APPEND: [100.0], READ: [100.0], TAIL_NAME: [2.0]}),
            system("redis", **{APPEND: [10.0], READ: [100.0], TAIL_NAME: [16.0]}),
        ))  # fmt: skip
        lost = text.partition("## Where Cordwood loses")[2].partition("\n## ")[0]
        assert "Kafka (3 copies, synced): appends of 1 KiB: 0.50 with 16 in flight; lag" in lost
        assert "lag at the tail: 4.00 times as long." in lost
        assert "catching up" not in lost
        assert "Redis" not in lost

    def test_where_it_loses_nowhere_it_says_so(self) -> None:
        text = page(results(ours(**{APPEND: [50.0]}), system("kafka", **{APPEND: [5.0]})))
        assert "Nowhere in this run." in text

    def test_a_loss_of_ledgers_is_told_even_if_logs_lose_nowhere(self) -> None:
        """The page said "Nowhere in this run" below a table with ledgers at 0.50."""
        peer = system("bookkeeper_qa2", **{APPEND: [20.0], READ: [20.0], TAIL_NAME: [4.0]})
        ledgers = system("cordwood_ledgers", **{APPEND: [10.0], READ: [10.0], TAIL_NAME: [6.0]})
        ledgers.cells[APPEND].p99_ms[:] = [3.0]
        logs = ours(**{APPEND: [60.0], READ: [60.0], TAIL_NAME: [1.0]})
        text = page(results(logs, ledgers, peer))
        lost = text.partition("## Where Cordwood loses")[2].partition("\n## ")[0]
        assert "Nowhere" not in lost
        assert lost.splitlines()[-1] == (
            "- Bookkeeper_Qa2, beside Cordwood's ledgers: adds of 1 KiB: 0.50 with 16 in flight; "
            "catching up on 100 B: 0.50; lag at the tail: 1.50 times as long; "
            "p99 of adds of 1 KiB: 2.00 times as long with 16 in flight."
        )

    def test_ledgers_lose_to_bookkeeper_with_their_quorums_alone(self) -> None:
        ledgers = system("cordwood_ledgers", **{APPEND: [10.0]})
        other = system("bookkeeper_qa3", **{APPEND: [20.0]})
        text = page(results(ours(**{APPEND: [60.0]}), ledgers, other))
        assert "Nowhere in this run." in text

    def test_a_run_without_logs_still_tells_where_ledgers_lose(self) -> None:
        ledgers = system("cordwood_ledgers", **{APPEND: [10.0]})
        peer = system("bookkeeper_qa2", **{APPEND: [20.0]})
        text = page(results(ledgers, peer))
        assert "Cordwood's logs were not measured in this run." in text
        assert "beside Cordwood's ledgers: adds of 1 KiB: 0.50 with 16 in flight." in text

    def test_a_peer_that_is_not_here_is_named_with_the_reason(self) -> None:
        absent = replace(system("kafka"), version="", skipped="mvn is not\ninstalled")
        text = page(results(ours(**{APPEND: [1.0]}), absent))
        assert "Kafka was not measured: mvn is not installed" in text
        half = replace(system("redis", **{APPEND: [1.0]}), skipped="it ended")
        assert "Redis was measured in part: it ended" in page(results(ours(), half))

    def test_a_system_with_fewer_repeats_is_named(self) -> None:
        text = page(results(ours(**{APPEND: [1.0] * 5}), system("kafka", **{APPEND: [1.0] * 3})))
        assert "Kafka was too slow for its share of the run: medians of 3 where" in text
        assert "Cordwood was too slow" not in text

    def test_an_ack_that_is_not_synced_stands_out(self) -> None:
        text = page(results(ours(), system("kafka", synced=False)))
        assert "| Kafka | 1.2 | 3 | 3 | **no** | on the disk |" in text
        assert "| Cordwood | 1.2 | 3 | 3 | yes | on the disk |" in text

    @pytest.mark.parametrize(
        ("made", "words"),
        [
            (results(ours(), load=3.0), "a busy machine: 3 processes wanted its 2 cores"),
            (results(ours(), repeats=1), "a short run, of 1 repeat of 1 s"),
        ],
    )
    def test_a_run_that_is_not_to_be_relied_on_says_so(self, made: Results, words: str) -> None:
        assert f"**Not to be relied on**: {words}" in page(made)

    def test_a_whole_run_on_a_quiet_machine_has_no_such_words(self) -> None:
        assert "Not to be relied on" not in page(results(ours()))

    def test_large_records_are_told_by_their_bytes_and_small_ones_by_their_number(self) -> None:
        large = append_name(64 << 10, 1)
        text = page(results(ours(**{APPEND: [2500.0], large: [1000.0]})))
        assert "| Cordwood | – | 2,500 (1.50 / 1.50) | – | – |" in text
        assert "| Cordwood | 65.5 (1.50 / 1.50) | – | – | – |" in text

    def test_every_row_of_a_table_has_the_columns_of_its_head(self) -> None:
        text = page(results(
            ours(**{APPEND: [1.0], READ: [1.0], TAIL_NAME: [1.0]}),
            system("kafka", **{APPEND: [1.0]}),
        ))  # fmt: skip
        tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
        assert len(tables) >= 4
        for table in tables:
            assert len({line.count("|") for line in table if line}) == 1, table
