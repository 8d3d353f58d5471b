"""Verbs with their code in the distribution `cordwood-testing`, and the message without it."""

from __future__ import annotations

import importlib.util

from cordwood.errors import BadSetting


def need_testing(verb: str) -> None:
    """Refuse a verb where the simulator and its relatives are not installed.

    Args:
        verb: as the user typed it, such as `cordwood sim`.
    Raises:
        BadSetting: they are not; the text says how to install them.
    """
    if importlib.util.find_spec("cordwood.sim") is None:
        raise BadSetting(
            f"`{verb}` comes with the simulator: pip install 'cordwood[testing]', or run it in a "
            "clone of the repository"
        )
