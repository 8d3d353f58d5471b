"""What main storage has of a log, as a donor asks for it.

Source: docs/protocol/rebuilding.md, rule 9; docs/protocol/main-storage.md, rule 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class MainCopies(Protocol):
    """See the module."""

    def is_kept(self, log: int, lsn: int) -> bool:
        """Whether this node keeps what it has at `lsn` and behind, because main storage lost it, as
        it found when it last wanted to let go of records."""

    async def lacks(self, log: int, first: int, last: int) -> Sequence[tuple[int, int]]:
        """The ranges in `[first, last]` that main storage does not have, although nodes let go of
        them: the manifest calls them lost, ends before them, or names an object that is gone.

        Raises:
            CordwoodError: the metadata store or main storage does not answer, or the manifest
                cannot be read.
        """


FindMain = Callable[[], MainCopies]
"""A node has its main storage later than its donor."""
