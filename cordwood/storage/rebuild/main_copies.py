"""What main storage has of a log, as a donor asks for it.

Source: docs/protocol/rebuilding.md, rule 9; docs/protocol/main-storage.md, rule 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class MainCopies(Protocol):
    """See the module."""

    @property
    def is_used(self) -> bool:
        """Whether this node has main storage: any log may be there later."""

    async def refresh(self, *, anew: bool) -> None:
        """Read which logs ask for main storage, for `may_have`. If the metadata store does not
        answer, each log may be in main storage, until the next call.

        Args:
            anew: manifests that were read before do not count either: main storage may have lost
                something before this call.
        """

    def may_have(self, log: int) -> bool:
        """Whether main storage may have had records of a log, so that nodes may have let go of
        them."""

    async def lacks(self, log: int, first: int, last: int) -> Sequence[tuple[int, int]]:
        """The ranges in `[first, last]` that main storage does not have, although nodes let go of
        them: the manifest calls them lost, ends before them, or names an object that is gone.

        Raises:
            CordwoodError: the metadata store or main storage does not answer, or the manifest
                cannot be read.
        """


FindMain = Callable[[], MainCopies]
"""A node has its main storage later than its donor."""
