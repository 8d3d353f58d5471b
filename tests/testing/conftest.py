"""The plugin, where an installed Cordwood does not bring it (a checkout on PYTHONPATH)."""

from __future__ import annotations

import pytest

from cordwood.testing import plugin


def pytest_configure(config: pytest.Config) -> None:
    """Register it once, however it was found."""
    if not config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(plugin, "cordwood")
