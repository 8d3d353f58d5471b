"""The operations and bytes a second that a disk allows, where its owner pays for a fixed rate.

`protocol.write_pace` keeps a writer to it.

Source: docs/sources/s3stream.md (d); AWS's words on gp3.
"""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.errors import BadSetting

OPERATION_BYTES_MAX = 256 << 10
"""A volume counts a larger write as several, one for each started 256 KiB."""


@dataclass(frozen=True, slots=True)
class WriteBudget:
    """What a disk may be asked for; None for no limit.

    Attributes:
        operations_per_s: writes, each of up to OPERATION_BYTES_MAX.
        bytes_per_s: bytes of them.
    """

    operations_per_s: float | None = None
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("iops", self.operations_per_s), ("bytes_per_s", self.bytes_per_s)):
            if value is not None and not 1 <= value < 1e12:
                raise BadSetting(f"a write budget of {value} {name}: it is at least 1")

    @property
    def is_limited(self) -> bool:
        """Whether there is anything to hold back for."""
        return self.operations_per_s is not None or self.bytes_per_s is not None


UNLIMITED = WriteBudget()

GP3 = WriteBudget(3000, 125 << 20)
"""What an AWS EBS gp3 volume does at no extra cost, as in the seed."""

BUDGETS = {"": UNLIMITED, "gp3": GP3}
"""By name, for settings; "" is no limit."""


def parse_budget(text: str) -> WriteBudget:
    """`gp3`, or `IOPS,MIB_PER_S` such as `3000,125`; "" for no limit.

    Raises:
        BadSetting: anything else.
    """
    named = BUDGETS.get(text)
    if named is not None:
        return named
    operations, _, mib = text.partition(",")
    try:
        return WriteBudget(float(operations), float(mib) * (1 << 20))
    except ValueError:
        raise BadSetting(
            f"a write budget of {text!r}: it is gp3, or IOPS,MIB_PER_S such as 3000,125"
        ) from None
