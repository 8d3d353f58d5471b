"""The clients of a run: their names, and the program of each.

Source: docs/sources/reliability.md §1 (Jepsen's Kafka workload).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cordwood.sim.consuming import consume
from cordwood.sim.crew import Crew
from cordwood.sim.crowd import crowd
from cordwood.sim.ledger_clients import archive, salvage, scribe, tail
from cordwood.sim.name_clients import call_names, change_names
from cordwood.sim.name_crossing import cross_names
from cordwood.sim.operators import give_up, keep_storage, rebalance, switch_repairs
from cordwood.sim.position_clients import reset_positions, trim_logs
from cordwood.sim.publishers import publish_batches
from cordwood.sim.readers import browse, follow
from cordwood.sim.resenders import resend
from cordwood.sim.rights_clients import keep, pry
from cordwood.sim.sorters import sort
from cordwood.sim.token_clients import hold
from cordwood.sim.workload import (
    GUARDED,
    HELD,
    SORTED,
    Clients,
    WorkloadOptions,
    ask_tails,
    produce,
)

LOOKER = "looker"
TRIMMER = "trimmer"
ASKER = "asker"
KEEPER = "keeper"


_PARTS = {
    "member": consume,
    "resetter": reset_positions,
    "browser": browse,
    "crowd": crowd,
    "outsider": pry,
    "operator": keep_storage,
    "coroner": give_up,
    "balancer": rebalance,
    "switcher": switch_repairs,
    "namer": change_names,
    "caller": call_names,
    "crosser": cross_names,
    "scribe": scribe,
    "salvager": salvage,
    "tailer": tail,
    "archivist": archive,
}


def _numbered(what: str, count: int) -> tuple[str, ...]:
    return tuple(f"{what}-{number}" for number in range(1, count + 1))


def producer_names(options: WorkloadOptions) -> tuple[str, ...]:
    """The producers of a run."""
    return _numbered("producer", options.producers)


def publisher_names(options: WorkloadOptions) -> tuple[str, ...]:
    """The publishers of a run, each the name of its query."""
    return _numbered("publisher", options.publishers)


def holder_names(options: WorkloadOptions) -> tuple[str, ...]:
    """The holders, which take a log in turn."""
    return _numbered("holder", options.holders)


def sorter_names(options: WorkloadOptions) -> tuple[str, ...]:
    """The sorters, which append in the order of keys."""
    return _numbered("sorter", options.sorters)


def resender_names(options: WorkloadOptions) -> tuple[str, ...]:
    """The resenders, which append again at the same place after an error."""
    return _numbered("resender", options.resenders)


def writer_names(options: WorkloadOptions) -> tuple[str, ...]:
    """All clients that append."""
    keepers = (KEEPER,) if options.outsiders else ()
    return (
        *producer_names(options), *publisher_names(options), *holder_names(options), *keepers,
        *sorter_names(options), *resender_names(options),
    )  # fmt: skip


def read_logs(options: WorkloadOptions) -> Sequence[str]:
    """The log of each reader: the logs in turn, and one reader for each log of special clients."""
    logs = [options.logs[at % len(options.logs)] for at in range(options.readers)]
    others = [HELD] * bool(options.holders) + [GUARDED] * bool(options.outsiders)
    return [*logs, *others, *[SORTED] * bool(options.sorters)]


def reader_names(options: WorkloadOptions) -> tuple[str, ...]:
    """The readers of a run, which must reach the tail."""
    return _numbered("reader", len(read_logs(options)))


def member_names(options: WorkloadOptions) -> tuple[str, ...]:
    """The members of a run's consumer, browsers, crowds, outsiders and operators, which stop when
    the writers stop."""
    return (
        *_numbered("member", options.members),
        *_numbered("resetter", bool(options.members and options.reset_s)),
        *_numbered("browser", options.browsers),
        *_numbered("crowd", options.crowds),
        *_numbered("outsider", options.outsiders),
        *_numbered("operator", bool(options.read_only)),
        *_numbered("coroner", bool(options.given_up)),
        *_numbered("balancer", bool(options.rebalanced)),
        *_numbered("switcher", options.switches),
        *_numbered("namer", bool(options.callers)),
        *_numbered("caller", options.callers),
        *_numbered("crosser", options.crossers),
        *_numbered("scribe", options.scribes),
        *_numbered("salvager", bool(options.scribes)),
        *_numbered("tailer", bool(options.scribes)),
        *_numbered("archivist", bool(options.scribes)),
    )


def start_clients(crew: Crew, clients: Clients) -> None:
    """Start every client of the workload."""
    options = clients.options
    for name in producer_names(options):
        crew.start(name, partial(produce, name, clients))
    for name in publisher_names(options):
        crew.start(name, partial(publish_batches, name, clients))
    for name in holder_names(options):
        crew.start(name, partial(hold, name, clients))
    for name, log in zip(reader_names(options), read_logs(options), strict=True):
        crew.start(name, partial(follow, name, log, clients))
    if options.ask_s:
        crew.start(LOOKER, partial(ask_tails, LOOKER, clients))
    if options.trim_s:
        crew.start(TRIMMER, partial(trim_logs, TRIMMER, clients))
    for name in member_names(options):
        takes_part = _PARTS[name.partition("-")[0]]
        crew.start(name, partial(takes_part, name, clients))
    for name in resender_names(options):
        crew.start(name, partial(resend, name, clients))
    for name in sorter_names(options):
        crew.start(name, partial(sort, name, clients))
    if options.outsiders:
        crew.start(KEEPER, partial(keep, KEEPER, clients))
