"""The next step when a node gets a new directory: its data goes to others, and it joins empty.

The command may be stopped and given again at any time, so nothing is remembered: the next step
follows from what the rebuilding set says of the node, and from whether the new directory is in its
place. The node keeps its number, and so its place in the nodesets of old epochs.

Source: docs/protocol/maintenance.md (replacing a node); docs/protocol/rebuilding.md.
"""

from __future__ import annotations

import enum

from cordwood.rebuilding import LostNode


class ReplaceStep(enum.Enum):
    """What is to be done, or waited for."""

    DRAIN = "it runs: have it give its copies"
    LOST = "it does not run: have others make its data anew"
    WAIT = "its data is on its way"
    LEDGERS = "it waits until no ledger names it"
    LEAVE = "it is empty: say that it need not stay so"
    PLACE = "its old directory is not needed any more: put the new one in its place"
    JOIN = "it is about to join"
    DONE = "it runs on the new directory"


def next_step(
    entry: LostNode | None, *, is_up: bool, is_placed: bool, ledgers: int, is_begun: bool = False
) -> ReplaceStep:
    """The next step.

    Args:
        entry: what the rebuilding set says of the node.
        is_up: whether it answers.
        is_placed: whether the new directory is in its place.
        ledgers: how many name it, or may name it.
        is_begun: whether a command that puts the new directory in its place was begun. It may have
            been stopped after that.
    """
    # The command was begun while the node was empty. Only an empty directory ends such an entry.
    is_placed = is_placed or (is_begun and entry is None)
    if is_placed:
        if entry is not None and entry.drain:
            return ReplaceStep.LEAVE
        return ReplaceStep.DONE if entry is None and is_up else ReplaceStep.JOIN
    if entry is None:
        return ReplaceStep.DRAIN if is_up else ReplaceStep.LOST
    if not entry.is_empty:
        return ReplaceStep.WAIT
    if ledgers:
        return ReplaceStep.LEDGERS
    return ReplaceStep.LEAVE if entry.drain else ReplaceStep.PLACE
