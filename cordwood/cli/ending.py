"""The endings of a verb. An error of Cordwood or of the machine is shown in one line; Ctrl-C and a
closed pipe show nothing.

Any other error is a bug: its traceback is shown, always.

Source: the shell's conventions: a process that a signal ended counts as 128 plus
the signal's number.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from cordwood.errors import CordwoodError

FAILED = 1
INTERRUPTED = 128 + signal.SIGINT
PIPE_CLOSED = 128 + signal.SIGPIPE


@contextmanager
def verb_ending(*, debug: bool) -> Iterator[None]:
    """Turn the ways in which a verb may fail into exit codes and at most one line.

    Args:
        debug: show the traceback of an error of ours too.
    Raises:
        typer.Exit: in place of a CordwoodError, an OSError or a KeyboardInterrupt.
    """
    try:
        yield
        sys.stdout.flush()
    except CordwoodError as error:
        if debug:
            traceback.print_exc()
        tell_error(str(error) or type(error).__name__)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _discard_output()
        raise typer.Exit(PIPE_CLOSED) from None
    except OSError as error:
        # A refusal of the machine (no space, no permission) is not a bug of Cordwood.
        if debug:
            traceback.print_exc()
        tell_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        raise typer.Exit(FAILED) from None


@contextmanager
def terminated() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the code in the `with` statement by an error, so that
    it can print a last line.

    Raises:
        SystemExit: with 128 plus the signal's number.
    """
    numbers = (signal.SIGTERM, signal.SIGHUP)
    # An ignored signal stays ignored: nohup lets a command continue without its terminal.
    ends = [each for each in numbers if signal.getsignal(each) is signal.SIG_DFL]
    before = {number: signal.signal(number, _end) for number in ends}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is _end:
                signal.signal(number, handler)


def finish() -> None:
    """All work is done, and the process is about to end: from here on the signals that ask for its
    end are ignored, because they would call the work unfinished."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def tell_error(text: str) -> None:
    """One line on standard error: line ends in the text become spaces."""
    typer.secho(f"cordwood: {' '.join(text.split())}", fg=typer.colors.RED, err=True)


def _discard_output() -> None:
    """Point standard output at the null device: else Python's flush at exit fails once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
