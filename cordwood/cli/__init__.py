"""The `cordwood` command, with a file for each group of verbs.

This module imports nothing heavy. A verb does its imports when it runs, so that `cordwood --help`
is quick.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Run a command line; returns the exit code.

    0 is success, 1 a failure told in one line, 2 a wrong command line, 130 Ctrl-C,
    141 a reader of our output that went away.
    """
    try:
        from cordwood.cli.app import run

        return run(sys.argv[1:])
    except KeyboardInterrupt:
        # While modules load: a verb handles its own.
        return 130
