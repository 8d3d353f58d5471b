"""Makes calls into one RocksDB database, in the host's threads. It counts the calls under way, and
turns RocksDB's errors into errors of Cordwood.

A cancelled caller does not end its call: the thread continues, and notifies no loop at its end. A
database must not be closed while such a call runs, nor opened again before the call has ended.

Source: `host.threads`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import rocksdict

from cordwood.errors import ChecksumMismatch, Overloaded
from cordwood.host.seams import Host
from cordwood.storage.logs_db.tables import DeviceFailed, TablesFailed, TablesNoSpace

Result = TypeVar("Result")

CALL_TIMEOUT_S = 60.0
"""A flush of 32 MiB takes a fifth of a second; a disk that needs a minute has failed."""

FILE_GONE = ("does not exist (create_if_missing is false)", "No such file or directory")
"""RocksDB's messages about a file of its own that is missing. Its data counts as rotten."""

NO_SPACE = ("No space left", "Disk quota exceeded")
"""The machine's words for ENOSPC and EDQUOT."""

DEVICE_FAILED = "Input/output error"
"""The machine's word for EIO."""

LOOK_S = 0.005
"""The time between two checks whether the calls under way have ended. Calls take milliseconds."""


def finds_no_space(error: Exception) -> bool:
    """Whether RocksDB says that the disk, or a quota, has no space."""
    return any(each in str(error) for each in NO_SPACE)


class _Call:
    """One call.

    Attributes:
        has_begun, is_given_up: set by the thread and by the loop, each before it looks at the
            other's, so at least one of them sees that the other has set its own.
    """

    __slots__ = ("has_begun", "is_given_up")

    def __init__(self) -> None:
        self.has_begun = False
        self.is_given_up = False


class RocksCalls:
    """See the module."""

    def __init__(self, host: Host, path: str) -> None:
        """
        Args:
            path: of the database, for the words of errors.
        """
        self._host = host
        self._path = path
        self._inside: set[_Call] = set()

    @property
    def is_idle(self) -> bool:
        """Whether no thread is in the database, or on its way there."""
        return not self._inside

    async def ended(self) -> None:
        """Return once no call is under way, those of cancelled callers included."""
        while self._inside:  # noqa: ASYNC110 - threads tell no loop
            await asyncio.sleep(LOOK_S)

    async def make(self, function: Callable[[], Result]) -> Result:
        """Call `function` in a thread.

        Raises:
            TablesFailed, DeviceFailed, TablesNoSpace, Corrupt: as RocksDB says.
            Overloaded: too many calls wait already.
        """
        call = _Call()
        self._inside.add(call)

        def run() -> Result:
            call.has_begun = True
            if call.is_given_up:
                raise TablesFailed(f"{self._path}: no caller waits any more")
            try:
                return function()
            finally:
                self._inside.discard(call)

        try:
            return await self._host.run_blocking(run, timeout_s=CALL_TIMEOUT_S)
        except Overloaded:
            raise
        except TimeoutError:
            raise TablesFailed(
                f"{self._path}: RocksDB did not answer within {CALL_TIMEOUT_S:g} s"
            ) from None
        except rocksdict.DbClosedError as error:
            raise TablesFailed(f"{self._path} was closed") from error
        except Exception as error:
            if type(error) is not Exception:  # which is what rocksdict raises
                raise
            raise self._translated(error) from error
        finally:
            call.is_given_up = True
            if not call.has_begun:
                self._inside.discard(call)

    def _translated(self, error: Exception) -> Exception:
        text = f"{self._path}: {error}"
        if finds_no_space(error):
            return TablesNoSpace(text)
        if str(error).startswith("Corruption") or any(each in text for each in FILE_GONE):
            return ChecksumMismatch(text)
        return DeviceFailed(text) if DEVICE_FAILED in text else TablesFailed(text)
