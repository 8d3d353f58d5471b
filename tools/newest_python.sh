#!/bin/sh
# Prints the newest Python on this machine for which the locked packages have wheels, if it is
# newer than 3.11, the oldest that Cordwood takes. Prints nothing and exits with 1 if there is none.
#
# pyenv keeps its Pythons off PATH unless somebody chose them, so its directory is looked at too.

has_venv='import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, int(sys.argv[1])))'

for minor in 14 13 12; do
  for python in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python3; do
    if "$python" -c "$has_venv" "$minor" 2>/dev/null; then
      # Where it really is: a shim of pyenv's asks again each time which Python is meant.
      "$python" -c 'import sys; print(sys.executable)'
      exit 0
    fi
  done
done
exit 1
