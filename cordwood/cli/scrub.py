"""`cordwood nodes scrub`: the nodes' progress in scrubbing, and their findings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.readable_logs import readable_logs
from cordwood.cli.tables import show_table
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.cli.wording import bytes_words, utc_words
from cordwood.errors import BadSetting, CordwoodError
from cordwood.lsn import format_lsn

if TYPE_CHECKING:
    from cordwood.layout.scrub_state import ScrubState


def scrub(
    node: Annotated[
        int | None,
        typer.Argument(metavar="[NODE]", help="The node's number; the default is all nodes."),
    ] = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Show how far nodes have read their stores to find rot, and which copies are damaged.

    The exit code is 1 if a copy is damaged.
    """
    with open_store(cluster) as store:
        answers = store.status()
        names: dict[int, str] = {log.log_id: log.name for log in readable_logs(store)}
    states = {
        int(number): answer.scrub
        for number, answer in sorted(answers.items())
        if not isinstance(answer, CordwoodError) and node in (None, number)
    }
    if node is not None and node not in map(int, answers):
        known = ", ".join(str(number) for number in sorted(answers))
        raise BadSetting(f"there is no node {node}; there are {known}")
    if as_json:
        import msgspec

        shown = [{"node": n, **msgspec.to_builtins(each)} for n, each in states.items()]
        typer.echo(json.dumps(shown))
    else:
        show_table(
            [
                "node>",
                "passes>",
                "last began",
                "at partition>",
                "read>",
                "budget>",
                "damaged>",
                "mended>",
                "repair waits for",
            ],
            [_row(number, state) for number, state in states.items()],
        )
        damaged = [(number, each) for number, state in states.items() for each in state.some]
        if damaged:
            show_table(
                ["node>", "log", "from", "to", "partition>", "why"],
                [
                    (
                        number, names.get(each.log) or f"number {each.log}",
                        format_lsn(each.first), format_lsn(each.last), each.partition, each.why,
                    )
                    for number, each in damaged
                ],
            )  # fmt: skip
    if any(state.damaged for state in states.values()):
        raise typer.Exit(1)


def _row(number: int, state: ScrubState) -> tuple[object, ...]:
    return (
        number,
        state.passes,
        utc_words(state.began_us) if state.began_us else "-",
        state.partition or "-",
        bytes_words(state.bytes),
        f"{bytes_words(state.bytes_s)}/s" if state.bytes_s else "off",
        state.damaged,
        state.mended,
        (state.repair_waits if state.damaged else "") or "-",
    )
