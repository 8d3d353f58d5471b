"""`python -m cordwood.cli`: the command, where it is not on the path."""

import sys

from cordwood.cli import main

if __name__ == "__main__":
    sys.exit(main())
