"""The part of `cordwood tier status | verify` about ledgers, from the object store alone.

Source: docs/objects.md, "The command line".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from cordwood.cli.tables import show_table
from cordwood.cli.wording import bytes_words
from cordwood.errors import BadSetting, Corrupt, NoObject

if TYPE_CHECKING:
    from cordwood.tier.ledger_verify import LedgerAttempt
    from cordwood.tier.patient_store import PatientStore


async def ledger_attempts(
    objects: PatientStore, logs: list[int] | None, ledgers: list[int] | None
) -> AsyncIterator[LedgerAttempt]:
    """The attempts of the named ledgers, or of all ledgers in the store. If only logs were named,
    it gives none.

    Raises:
        BadSetting: the store has nothing of a ledger that was named.
    """
    from cordwood.tier.ledger_verify import find_ledgers

    if logs and not ledgers:
        return
    missing = set(ledgers or ())
    async for found in find_ledgers(objects, ledgers or ()):
        missing.discard(found.ledger)
        yield found
    if missing:
        raise BadSetting(f"this store holds nothing of ledger {min(missing)}")


async def ledger_rows(objects: PatientStore, found: LedgerAttempt) -> list[dict[str, object]]:
    """A row for each manifest of an attempt, or a row that tells that it has no manifest."""
    from cordwood.tier.ledger_verify import read_manifest

    row: dict[str, object] = {
        "ledger": found.ledger, "attempt": f"{found.attempt:016x}", "manifest": False,
        "objects": found.objects, "bytes": found.stored,
        "last": None, "length": None, "missing": 0, "fault": None,
    }  # fmt: skip
    if not found.manifests:
        return [row]
    rows: list[dict[str, object]] = []
    for name in found.manifests:
        try:
            manifest = await read_manifest(objects, name)
        except NoObject:
            continue  # deleted since it was listed
        except Corrupt as error:
            rows.append({**row, "manifest": True, "fault": str(error)})
            continue
        missing = max(0, len(manifest.parts) - found.objects)
        rows.append({
            **row, "manifest": True, "last": manifest.last, "length": manifest.length,
            "missing": missing,
        })  # fmt: skip
    return rows


def show_ledgers(rows: list[dict[str, object]]) -> None:
    """Print rows of `ledger_rows`."""

    def state(row: dict[str, object]) -> object:
        if row["fault"] or row["missing"]:
            return row["fault"] or f"{row['missing']} objects are missing"
        return "whole" if row["manifest"] else "no manifest: under way, or given up"

    show_table(
        ["ledger>", "attempt", "last entry>", "objects>", "stored>", "payloads>", "state"],
        [
            (
                row["ledger"], row["attempt"], "" if row["last"] is None else row["last"],
                row["objects"], bytes_words(int(str(row["bytes"]))),
                "" if row["length"] is None else bytes_words(int(str(row["length"]))), state(row),
            )
            for row in rows
        ],
    )  # fmt: skip
