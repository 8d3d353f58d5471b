"""The logs that a `cordwood tier` command goes through, by their manifests.

Source: docs/objects.md, "The command line".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, TypeVar

import typer

from cordwood.errors import BadSetting, Corrupt

if TYPE_CHECKING:
    from cordwood.host.seams import Host
    from cordwood.tier.patient_store import PatientStore
    from cordwood.tiered import Head


Result = TypeVar("Result")


class Heads:
    """The manifests of the named logs, or of all logs that have objects in the store. If only
    ledgers were named, it gives none.

    Attributes:
        unread: by log, why its manifest could not be read. A log that was named raises instead:
            the damage of one log hides no other log.
    """

    def __init__(
        self, host: Host, objects: PatientStore, logs: list[int] | None,
        ledgers: list[int] | None = None,
    ) -> None:  # fmt: skip
        self._host = host
        self._objects = objects
        self._logs = logs
        self._ledgers = ledgers
        self.unread: dict[int, str] = {}

    async def each(self) -> AsyncIterator[tuple[int, Head]]:
        """The logs and their manifests.

        Raises:
            BadSetting: a log that was named has no manifest.
            Corrupt: its manifest cannot be read.
        """
        from cordwood.tier.repair import find_logs

        if self._ledgers and not self._logs:
            return
        for number in self._logs or await find_logs(self._objects):
            try:
                head = await self._load(number)
            except (BadSetting, Corrupt) as error:
                if self._logs:
                    raise
                self.unread[number] = str(error)
            else:
                yield number, head

    async def reached(self, number: int, work: Awaitable[Result]) -> Result | None:
        """The result of work on a log; None if its manifest cannot be read after all, as where it
        lacks a page.

        Raises:
            Corrupt: it cannot be read, and the log was named.
        """
        try:
            return await work
        except Corrupt as error:
            if self._logs:
                raise
            self.unread[number] = str(error)
            return None

    async def _load(self, number: int) -> Head:
        from cordwood.tier.log_manifest import LogManifest

        head = await LogManifest(self._objects, number, self._host, "cordwood tier").load()
        if head is None:
            raise BadSetting(
                f"log {number} has no manifest in this store; if it has objects, "
                f"`cordwood tier repair {number}` writes one"
            )
        return head

    def tell(self) -> None:
        """Show the logs that were passed by; then the exit code is 1."""
        for number, why in self.unread.items():
            typer.echo(f"log {number} is passed by: {why}", err=True)
        if self.unread:
            raise typer.Exit(1)
