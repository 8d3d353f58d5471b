"""`python -m cordwood`: the command, where it is not on PATH."""

from __future__ import annotations

import sys

from cordwood.cli import main

if __name__ == "__main__":
    sys.exit(main())
