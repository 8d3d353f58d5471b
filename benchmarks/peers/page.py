"""`docs/benchmarks.md`, from the results of a run. Pure: results in, text out.

No figure is written by hand. The page itself says where Cordwood loses, whether the run was
short, and whether the machine was busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.peers.machine import BUSY_LOAD
from benchmarks.peers.results import (
    CORDWOOD,
    LEDGER_PEER,
    LEDGERS,
    TAIL_NAME,
    Cell,
    Results,
    System,
    append_name,
    catch_up_name,
    p99_ratio,
    ratio_to_cordwood,
    size_words,
)
from benchmarks.peers.workload import IN_FLIGHT, SIZES, TAIL_RATE, TAIL_SIZE

REPEATS_MIN = 5
"""This page is not made for medians of fewer repeats; it says if a run has fewer."""

NONE = "–"

HEAD = """# Cordwood beside its peers

Every system ran the same workloads, one system after the other, on one machine in one run. The
servers of a system and its client share the machine's cores and its disk. So this page compares
what systems cost on a small machine. On many machines, or with another disk, the order may differ.
**An ack does not mean the same thing everywhere**: read the table of acks before the others.

`{command}` made this page on {made} UTC. Nobody wrote a figure by hand.
"""

BIASES = """## Which system the set-up favours

- Records go to one log, from one client with one connection. No system gains from partitions,
  which are how Kafka, users of BookKeeper and Cordwood grow.
- Servers, client and (for Java) their compilers share the machine's cores. A system of one process
  has fewer wake-ups for a record than a system of three, whatever language it is written in.
- Raw clients of this benchmark drive Redis, NATS and RabbitMQ; they are lighter than any library.
  Their own Java clients drive Kafka and BookKeeper. Cordwood's public client drives Cordwood, with
  a future for each record. This is a disadvantage for Cordwood where the client is the limit.
- Records are sent one by one, with as many in flight as the column says. Clients that gather
  (Kafka, Cordwood, RabbitMQ streams) may send together the records that are there at one time, and
  may not wait for more. BookKeeper's client does not gather; its users gather above it.
- JVMs warm up for seconds, not minutes, and have small heaps, because three of them run here.
- Readers read records that were appended just before, so the data comes from memory (the page cache
  or a server's own memory).
- Everything is on loopback, and an fsync costs what the probe above says, which is little.
"""

FOOT = """## Measure it again

`make peers` measures every installed system and writes this page, its chart and
[the results](benchmarks.json). `python -m benchmarks.peers --draw` only draws page and chart anew.
`--only kafka,nats_r3 --quick` is a short run that leaves this page as it is. Maven brings jars, and
pip brings matplotlib into `.peers/`. Debian has the servers `nats-server`, `redis-server` and
`rabbitmq-server`. Measure on a machine with no other work; otherwise the page says that the machine
was busy.
"""


def page(results: Results, chart: str = "benchmarks.svg") -> str:
    """The whole page as Markdown.

    Args:
        chart: the chart's path, relative to the page; "" if there is none.
    """
    measured = [system for system in results.systems if system.cells]
    parts = [
        HEAD.format(command=results.command, made=results.made),
        _warnings(results),
        _machine(results),
        _acks(results),
        f"![Appends, reads and lag of every system]({chart})\n" if chart else "",
        *(_appends(results, measured, size) for size in SIZES),
        _catch_up(results, measured),
        _tail(results, measured),
        _ledgers(results, measured),
        _losses(results, measured),
        BIASES,
        FOOT,
    ]
    return "\n".join(part for part in parts if part)


# ---- what was measured, and where ----


def _warnings(results: Results) -> str:
    told = []
    if results.repeats < REPEATS_MIN:
        told.append(
            f"a short run, of {results.repeats} repeat{'s' * (results.repeats > 1)} of "
            f"{results.seconds:g} s where {REPEATS_MIN} of 1 s are meant"
        )
    load = float(results.machine.get("load_before", 0))
    if load > BUSY_LOAD:
        told.append(
            f"a busy machine: {load:g} processes wanted its {results.machine['cores']} cores "
            "before anything was started"
        )
    if not told:
        return ""
    return f"> **Not to be relied on**: {'; and '.join(told)}.\n"


def _machine(results: Results) -> str:
    machine = results.machine
    probes = [each for system in results.systems for each in system.probes]
    lines = [
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, "
        f"{machine['system']}, {machine['file_system']}, CPython {machine['python']}. Medians of "
        f"{results.repeats} run{'s' * (results.repeats > 1)} of {results.seconds:g} s (or "
        f"{results.bytes_max >> 20} MiB, if that is sooner). A ratio is Cordwood over the peer: "
        "the median of the ratios of the runs."
    ]
    if probes:
        syncs = [each["syncs_per_s"] for each in probes]
        spins = [each["spin_ms"] for each in probes]
        lines.append(
            "The machine was probed before each system ran: it made between "
            f"{min(syncs):,.0f} and {max(syncs):,.0f} synced writes of 4 KiB a second, and took "
            f"{min(spins):.1f} to {max(spins):.1f} ms for a fixed loop. Figures of systems may "
            "differ as much as these probes do, for reasons outside the systems."
        )
    return "\n\n".join(lines) + "\n"


def _acks(results: Results) -> str:
    rows = [
        (
            system.title,
            system.version or NONE,
            str(system.servers),
            str(system.copies),
            "yes" if system.synced else "**no**",
            system.durability,
            system.client + (f". {_capital(system.notes)}" if system.notes else ""),
        )
        for system in results.systems
    ]
    head = ("System", "Version", "Servers", "Copies", "Synced", "An ack means", "Client and notes")
    text = "## What an ack means\n\n" + _table(head, rows)
    for system in results.systems:
        fewest = min((len(cell.values) for cell in system.cells.values()), default=0)
        if not system.skipped and fewest < results.repeats:
            text += (
                f"\n{system.title} was too slow for its share of the run: medians of {fewest} "
                "where there were fewest.\n"
            )
        if system.skipped:
            what = "was measured in part" if system.cells else "was not measured"
            text += f"\n{system.title} {what}: {_one_line(system.skipped)}\n"
    return text


# ---- tables ----


def _appends(results: Results, measured: Sequence[System], size: int) -> str:
    names = [append_name(size, in_flight) for in_flight in IN_FLIGHT]
    if not any(name in system.cells for system in measured for name in names):
        return ""
    head = ("System", *(f"{in_flight} in flight" for in_flight in IN_FLIGHT))
    rates = _rows(measured, names, lambda cell: _rate(cell, size))
    return (
        f"## Appends of {size_words(size)}\n\n"
        f"{'MB/s' if _in_bytes(size) else 'Records/s'} (p50 / p99 ms from sending to ack).\n\n"
        + _table(head, rates)
        + "\nCordwood over the peer, bold where the peer is faster:\n\n"
        + _table(head, _ratio_rows(results, measured, names))
    )


def _catch_up(results: Results, measured: Sequence[System]) -> str:
    names = [catch_up_name(size) for size in SIZES]
    head = ("System", *(size_words(size) for size in SIZES))
    rows = [
        (system.title, *(_read(system.cells.get(catch_up_name(size)), size) for size in SIZES))
        for system in measured
    ]
    return (
        "## Catching up\n\nOne reader reads from the oldest record to the newest: records/s "
        "(MB/s). Each record becomes an object of the client's language.\n\n"
        + _table(head, rows)
        + "\nCordwood over the peer, bold where the peer is faster:\n\n"
        + _table(head, _ratio_rows(results, measured, names))
    )


def _tail(results: Results, measured: Sequence[System]) -> str:
    rows = []
    for system in measured:
        cell = system.cells.get(TAIL_NAME)
        if cell is None:
            continue
        ratio = ratio_to_cordwood(results, system.name, TAIL_NAME)
        own = system.name in (CORDWOOD, LEDGERS) or ratio is None
        rows.append((system.title, _ms(cell.p50), _ms(cell.p99), NONE if own else f"{ratio:.2f}"))
    head = ("System", "p50 ms", "p99 ms", "Cordwood over the peer (below 1: Cordwood is sooner)")
    return (
        f"## The lag of a reader at the tail\n\n{size_words(TAIL_SIZE)} records, {TAIL_RATE:,} a "
        "second, sent on time whatever happens to earlier ones. The lag runs from the time at "
        "which a record was due until the reader has it, through client, servers and reader.\n\n"
        + _table(head, rows)
    )


def _rows(
    measured: Sequence[System], names: Sequence[str], tell: Callable[[Cell], str]
) -> list[tuple[str, ...]]:
    return [
        (system.title, *(tell(system.cells[n]) if n in system.cells else NONE for n in names))
        for system in measured
    ]


def _ratio_rows(
    results: Results, measured: Sequence[System], names: Sequence[str]
) -> list[tuple[str, ...]]:
    rows = []
    for system in measured:
        if system.name in (CORDWOOD, LEDGERS):
            continue
        ratios = [ratio_to_cordwood(results, system.name, name) for name in names]
        rows.append((system.title, *(NONE if each is None else _ratio(each) for each in ratios)))
    return rows


# ---- ledgers ----


def _ledgers(results: Results, measured: Sequence[System]) -> str:
    """The table of ledgers beside BookKeeper's with the same quorums; empty if one of the two was
    not measured."""
    names = [system.name for system in measured]
    if LEDGERS not in names or LEDGER_PEER not in names:
        return ""
    rows = []
    for size in SIZES:
        cells = [append_name(size, in_flight) for in_flight in IN_FLIGHT]
        rates = [ratio_to_cordwood(results, LEDGER_PEER, cell, LEDGERS) for cell in cells]
        p99s = [p99_ratio(results, LEDGER_PEER, cell, LEDGERS) for cell in cells]
        words = size_words(size)
        rows.append((f"adds of {words}, rate", *map(_ratio_or_none, rates)))
        rows.append((f"adds of {words}, p99", *map(_lag_ratio_or_none, p99s)))
    head = ("Cordwood over BookKeeper", *(f"{in_flight} in flight" for in_flight in IN_FLIGHT))
    reads = [
        (size_words(size), _ratio_or_none(
            ratio_to_cordwood(results, LEDGER_PEER, catch_up_name(size), LEDGERS)
        ))
        for size in SIZES
    ]  # fmt: skip
    return (
        "## Ledgers beside BookKeeper's\n\nBoth have E 3, Qw 3, Qa 2 and an entry for each record. "
        "Bold is where BookKeeper is better: a lower rate, a longer p99.\n\n"
        + _table(head, rows)
        + "\nReading a ledger from its first entry to its last:\n\n"
        + _table(("Entries", "Cordwood over BookKeeper"), reads)
    )


def _ratio_or_none(value: float | None) -> str:
    return NONE if value is None else _ratio(value)


def _lag_ratio_or_none(value: float | None) -> str:
    """A ratio, bold if Cordwood takes longer."""
    if value is None:
        return NONE
    return f"**{value:.2f}**" if value > 1 else f"{value:.2f}"


# ---- where Cordwood loses ----


def _losses(results: Results, measured: Sequence[System]) -> str:
    """The part of the page that names every comparison in which a peer is better."""
    names = [system.name for system in measured]
    has_logs, has_ledgers = CORDWOOD in names, LEDGERS in names
    lines = []
    for peer in measured:
        if not has_logs or peer.name in (CORDWOOD, LEDGERS):
            continue
        if lost := _lost_to(results, peer.name, CORDWOOD, "appends"):
            lines.append(f"- {peer.title} ({_kind(peer)}): {'; '.join(lost)}.")
    # The page compares ledgers with BookKeeper's of the same quorums, and with no other peer.
    rival = results.system(LEDGER_PEER)
    if has_ledgers and rival is not None:
        lost = _lost_to(results, LEDGER_PEER, LEDGERS, "adds") + _p99s_lost_to(results, LEDGER_PEER)
        if lost:
            lines.append(f"- {rival.title}, beside Cordwood's ledgers: {'; '.join(lost)}.")
    parts = []
    if not has_logs:
        absent = "Cordwood's logs were" if has_ledgers else "Cordwood was"
        parts.append(f"{absent} not measured in this run.\n")
    if lines:
        parts.append(
            "Cordwood over the peer, where the peer is better:\n\n" + "\n".join(lines) + "\n"
        )
    elif has_logs:
        parts.append("Nowhere in this run.\n")
    return "## Where Cordwood loses\n\n" + "\n".join(parts)


def _lost_to(results: Results, peer: str, ours: str, appends: str) -> list[str]:
    """The losses in words, each with its ratios, in the order of the tables.

    Args:
        peer: the name of the other system.
        ours: CORDWOOD or LEDGERS.
        appends: the word for an append of `ours`.
    """

    def ratio(name: str) -> float | None:
        return ratio_to_cordwood(results, peer, name, ours)

    lost = []
    for size in SIZES:
        behind = [
            f"{each:.2f} with {in_flight:,}"
            for in_flight in IN_FLIGHT
            if (each := ratio(append_name(size, in_flight))) is not None and each < 1
        ]
        if behind:
            lost.append(f"{appends} of {size_words(size)}: {', '.join(behind)} in flight")
    for size in SIZES:
        each = ratio(catch_up_name(size))
        if each is not None and each < 1:
            lost.append(f"catching up on {size_words(size)}: {each:.2f}")
    lag = ratio(TAIL_NAME)
    if lag is not None and lag > 1:
        lost.append(f"lag at the tail: {lag:.2f} times as long")
    return lost


def _p99s_lost_to(results: Results, peer: str) -> list[str]:
    """Where the p99 of an add to one of Cordwood's ledgers is longer than the peer's, in words."""
    lost = []
    for size in SIZES:
        longer = [
            f"{each:.2f} times as long with {in_flight:,}"
            for in_flight in IN_FLIGHT
            if (each := p99_ratio(results, peer, append_name(size, in_flight), LEDGERS)) is not None
            and each > 1
        ]
        if longer:
            lost.append(f"p99 of adds of {size_words(size)}: {', '.join(longer)} in flight")
    return lost


# ---- words ----


def _rate(cell: Cell, size: int) -> str:
    value = f"{cell.value * size / 1e6:,.1f}" if _in_bytes(size) else f"{cell.value:,.0f}"
    return f"{value} ({_ms(cell.p50)} / {_ms(cell.p99)})"


def _read(cell: Cell | None, size: int) -> str:
    return NONE if cell is None else f"{cell.value:,.0f} ({cell.value * size / 1e6:,.1f})"


def _in_bytes(size: int) -> bool:
    """A rate: bytes for large records, numbers for small ones."""
    return size >= 16 << 10


def _ms(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _ratio(value: float) -> str:
    """A ratio, bold if Cordwood has less."""
    text = f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return f"**{text}**" if value < 1 else text


def _kind(system: System) -> str:
    copies = "1 copy" if system.copies == 1 else f"{system.copies} copies"
    return f"{copies}, {'synced' if system.synced else 'not synced'}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        head,
        ["---", *["---:" if _is_figure(n, rows) else "---" for n in range(1, len(head))]],
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in [*lines, *rows])


def _is_figure(column: int, rows: Sequence[Sequence[str]]) -> bool:
    return all(row[column].strip("*")[:1] in "0123456789–" for row in rows)
