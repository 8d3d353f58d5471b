"""Several logs of one call: different names lead to different logs.

A remembered name may lead to the log that had it some seconds ago. If one call names several logs,
two of the names could lead to one log, and the call would leave another log out. So the names of
one call are looked up when it is made, until two looks agree. For the same reason, names that are
looked up are not mixed with remembered ones, nor remembered ones of two moments.

Source: docs/reading.md ("Names and numbers").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cordwood.client.find.log_finding import CHECK_NAME_S, NO_ANSWER, LogFinding
from cordwood.client.find.log_info import AnyLog, LogInfo
from cordwood.errors import BadSetting, Retryable
from cordwood.layout.log_names import normalise_name

LOOKS = 4
"""Looks at the names of one call. Names are looked up one after another, and logs may be renamed in
between: the looks would mix two moments, and leave out the log that had one of these names. Two
equal looks in a row tell where all names led at one moment between them."""


async def find_several(
    finding: LogFinding,
    logs: Iterable[AnyLog],
    *,
    create: bool,
    timeout_s: float,
    may_remember: bool,
) -> dict[AnyLog, LogInfo]:
    """The logs of one call, by what the caller calls them.

    Names are looked up now; a single name only without `may_remember`.

    Args:
        may_remember: if no node answers within CHECK_NAME_S, all names are taken from memory, as it
            was before, if it tells of one moment. Without it the call ends: it keeps the logs that
            it found, or their positions, and it needs the metadata store in any case.
    Raises:
        BadSetting: two names lead to one log, or a name is none.
        Retryable: logs are renamed all the time, or no node answered within `timeout_s`; with
            `may_remember`, only if the memory does not tell of one moment, is wrong by what nodes
            answered, or has one log for two names.
        CordwoodError: as `LogFinding.find_log`.
    """
    asked = list(dict.fromkeys(logs))
    is_one = len(asked) < 2 and may_remember
    if is_one or not any(isinstance(log, str) for log in asked):
        return {
            log: await finding.find_log(log, create=create, timeout_s=timeout_s) for log in asked
        }
    memory = finding.remembered(asked) if may_remember else None
    before: dict[AnyLog, int] | None = None
    for left in reversed(range(LOOKS)):
        found, doubt = await _look(finding, asked, create, timeout_s, memory is not None)
        if doubt is not None:
            if memory is not None and _still_holds(memory, found, before or {}):
                return memory
            if not left:
                raise doubt
            memory = before = None  # wait for the nodes
            continue
        clash = clash_of(found)
        led: dict[AnyLog, int] = {log: info.log_id for log, info in found.items()}
        if clash is None and (len(asked) < 2 or led == before):
            break
        if not left:
            raise one_log(*clash) if clash is not None else _moving(led, before or {})
        before = led
    return found


def _still_holds(
    memory: Mapping[AnyLog, LogInfo], found: Mapping[AnyLog, LogInfo], before: Mapping[AnyLog, int]
) -> bool:
    """Whether nothing that nodes answered in this call says that remembered names have moved.

    Args:
        found: what the last look found before a node did not answer.
        before: where the names led in the look before, if there was one.
    """
    answers = {**before, **{log: info.log_id for log, info in found.items()}}
    is_so = all(memory[log].log_id == number for log, number in answers.items())
    return is_so and clash_of(memory) is None


def _moving(led: Mapping[AnyLog, int], before: Mapping[AnyLog, int]) -> Retryable:
    moved = [
        f"{log} led to log {before[log]} and then to log {number}"
        for log, number in led.items()
        if before.get(log, number) != number
    ]
    why = "; ".join(moved) or "two of them led to one log"
    return Retryable(f"logs were renamed while their names were looked up ({why}): call again")


async def find_now(
    finding: LogFinding, log: AnyLog, *, create: bool, timeout_s: float
) -> tuple[LogInfo, Retryable | None]:
    """A log as it is now, and None; or from memory, and the error of the nodes that did not answer.

    Raises:
        CordwoodError: as `LogFinding.find_log`.
    """
    try:
        now_s = min(timeout_s, CHECK_NAME_S)
        return await finding.find_log(log, create=create, timeout_s=now_s, fresh=True), None
    except NO_ANSWER as error:
        return await finding.find_log(log, create=create, timeout_s=timeout_s), error


async def _look(
    finding: LogFinding,
    logs: Iterable[AnyLog],
    create: bool,
    timeout_s: float,
    may_remember: bool,
) -> tuple[dict[AnyLog, LogInfo], Retryable | None]:
    """The logs as they are now, and None; or, if they may be taken from memory, the first of them
    and the error of the nodes that did not answer for the next one."""
    found: dict[AnyLog, LogInfo] = {}
    look_s = min(timeout_s, CHECK_NAME_S) if may_remember else timeout_s
    for log in logs:
        try:
            found[log] = await finding.find_log(log, create=create, timeout_s=look_s, fresh=True)
        except NO_ANSWER as error:
            if not may_remember:
                raise
            return found, error
    return found, None


def clash_of(found: Mapping[AnyLog, LogInfo]) -> tuple[AnyLog, AnyLog, int] | None:
    """Two names that lead to one log, with its number; None if there are none. Two spellings are
    one name, and a number and a name may mean one log."""
    by_number: dict[int, str] = {}
    by_name: dict[str, tuple[AnyLog, int]] = {}
    for log, info in found.items():
        if isinstance(log, str):
            other = by_number.setdefault(info.log_id, log)
            if normalise_name(other) != normalise_name(log):
                return other, log, info.log_id
        # A log that is renamed between two look-ups has the name that another log had.
        first, number = by_name.setdefault(info.name, (log, info.log_id))
        if number != info.log_id:
            return first, log, info.log_id
    return None


def one_log(first: AnyLog, second: AnyLog, number: int) -> BadSetting:
    """The error for two names of one log in one call."""
    return BadSetting(f"{first} and {second} lead to one log, number {number}: name each log once")
