"""Programs of the system, run to their end: ip, nft, losetup, mount and similar programs."""

from __future__ import annotations

import asyncio
import subprocess

from cordwood.errors import Unreachable

COMMAND_TIMEOUT_S = 30.0
"""Most commands take milliseconds. Making a file system on a busy disk takes seconds."""


def run(*words: str, text: str | None = None) -> str:
    """Run a program. Returns its output.

    Args:
        text: its standard input.
    Raises:
        Unreachable: the program does not exist, failed, or did not end; the text quotes it.
    """
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False,
            **({"stdin": subprocess.DEVNULL} if text is None else {"input": text}),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"{' '.join(words)}: {error}") from error
    if done.returncode:
        raise Unreachable(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


async def run_beside(*words: str, text: str | None = None) -> str:
    """As `run`, while the loop goes on.

    Raises:
        Unreachable: as `run`.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL if text is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        raise Unreachable(f"{' '.join(words)}: {error}") from error
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            said, complaint = await process.communicate(None if text is None else text.encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        raise Unreachable(f"{' '.join(words)}: no end in {COMMAND_TIMEOUT_S:g} s") from None
    if process.returncode:
        raise Unreachable(f"{' '.join(words)}: {(complaint or said).decode().strip()}")
    return said.decode()
