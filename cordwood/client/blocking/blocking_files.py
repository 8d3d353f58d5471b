"""The files of main storage for callers that have no loop: which files hold a log, and a lease.

Spark's driver asks here before Spark's own Parquet reader scans the files. Nothing here needs a
node.

Source: docs/objects.md, "Read leases"; docs/spark.md, "Spark's own Parquet reader".
"""

from __future__ import annotations

from collections.abc import Collection

from cordwood.client.blocking.object_thread import ObjectThread
from cordwood.lsn import LogId
from cordwood.tier.file_scan import FilePart, LogFiles, hold_files
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.origin import check_origin
from cordwood.tier.read_leases import end_leases

__all__ = ["BlockingFiles", "FilePart", "LogFiles"]


class BlockingFiles(ObjectThread):
    """See the module.

    Args:
        address: of the object store.
    Raises:
        BadSetting: it is no store that opens here.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address, "cordwood-files")
        self._leases: dict[LogId, list[str]] = {}

    def hold(
        self,
        log: LogId,
        start: int,
        stop: int,
        *,
        made_us: int,
        unmarked_stop: int,
        holder: str,
        lease_s: float,
    ) -> LogFiles:
        """The files that hold `[start, stop)` of a log, under a lease.

        Args:
            made_us: when the log was made; 0 if that is not known.
            unmarked_stop: where to stop if the store does not say of which log its history is, as
                old uploads do not: one after the LSN up to which nodes rely on the store.
            holder: of the lease, for people.
            lease_s: how long the files stay at least, in seconds; 0 for no lease.
        Raises:
            BadSetting: the store holds another cluster's log of this number.
            Corrupt: the manifest or a footer differs from what was written.
            OutcomeUnknown, Retryable: the store does not answer.
        """

        async def held() -> LogFiles:
            is_marked = bool(made_us) and await check_origin(self._objects, log, made_us)
            until = stop if is_marked else max(start, min(stop, unmarked_stop))
            manifest = LogManifest(self._objects, log, self._host, "scan")
            found = await hold_files(
                self._objects, manifest, self._host, log, start, until,
                holder=holder, lease_s=lease_s, leases=self._leases.setdefault(log, []),
            )  # fmt: skip
            return found.up_to(until, stop)

        return self._thread.call(held())

    def end_leases(self, logs: Collection[LogId] | None = None) -> None:
        """End the leases that were taken here; their files may go from now on.

        Args:
            logs: those of which no file is read; None for all.
        """
        held = [self._leases.pop(log, []) for log in ([*self._leases] if logs is None else logs)]
        names = [name for each in held for name in each]
        self._thread.call(end_leases(self._objects, names))
