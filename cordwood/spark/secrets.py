"""Reads the secrets of a job from the environment or from a file, and never from the text that
defines the job.

Every user of the machine can read a command line, and a pipeline's file is kept with the code. So
both say only where a token is, `env:NAME` or `file:PATH`, which may be shown.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from cordwood.errors import BadSetting

ENVIRONMENT = "env:"
FILE = "file:"

SECRET_BYTES_MAX = 1 << 20
"""A file of tokens is small: a larger file is something else."""


def check_place(name: str, place: str) -> str:
    """The place, if it is one.

    Args:
        name: of the setting, for the error, which never shows what may be the secret itself.
    Raises:
        BadSetting: it says neither environment nor file.
    """
    for scheme in (ENVIRONMENT, FILE):
        if place.startswith(scheme) and len(place) > len(scheme):
            return place
    raise BadSetting(
        f"{name} says where the tokens are, {ENVIRONMENT}NAME of a variable or {FILE}PATH; a token "
        "itself would be seen by each reader of the command or the file"
    )


def tokens_at(name: str, place: str, environment: Mapping[str, str] = os.environ) -> str:
    """The tokens, with commas between, as the option takes them.

    Args:
        place: `env:NAME` with tokens and commas, or `file:PATH` with a token a line.
    Raises:
        BadSetting: nothing is there.
    """
    check_place(name, place)
    if place.startswith(ENVIRONMENT):
        variable = place.removeprefix(ENVIRONMENT)
        found = environment.get(variable, "")
        source = f"the variable {variable}"
    else:
        path = os.path.expanduser(place.removeprefix(FILE))
        found, source = _read(name, path), f"the file {path}"
    tokens = [each.strip() for each in found.replace("\n", ",").split(",")]
    if not any(tokens):
        raise BadSetting(f"{name}: {source} holds no token")
    return ",".join(each for each in tokens if each)


def _read(name: str, path: str) -> str:
    try:
        with open(path, "rb") as file:
            found = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise BadSetting(f"{name}: {path} cannot be read: {error.strerror}") from error
    if len(found) > SECRET_BYTES_MAX:
        raise BadSetting(f"{name}: {path} is no file of tokens, it has more than a MiB")
    try:
        return found.decode()
    except UnicodeDecodeError:
        # Not from the error, which holds the bytes.
        raise BadSetting(f"{name}: {path} is no text") from None
