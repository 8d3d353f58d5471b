#!/bin/sh
# Runs its arguments with a Python that Cordwood works on: the one named by PYTHON, else the
# first on PATH that fits. `make` starts tools/setup.py through this, because a machine whose
# `python3` is too old often has a newer one beside it.
#
# 3.14 is the newest for which the locked packages have wheels.

fits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'

for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
  if "$python" -c "$fits" 2>/dev/null; then
    exec "$python" "$@"
  fi
done

{
  echo "cordwood: no Python from 3.11 to 3.14 here."
  for python in ${PYTHON:-python3}; do
    echo "  $python: $("$python" --version 2>&1 | tail -n 1)"
  done
  echo "Install one with the line for your machine, then run make again:"
  echo "  sudo apt-get install python3 python3-venv    (Debian 12, Ubuntu 24.04, and newer)"
  echo "  sudo dnf install python3.12                  (Fedora, RHEL 9)"
  echo "  brew install python@3.12                     (macOS)"
  echo "Or name one that is not on PATH:  make PYTHON=/path/to/python3.12"
} >&2
exit 1
