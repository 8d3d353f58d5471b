"""A log for each test of a job."""

from __future__ import annotations

import uuid

import pytest


@pytest.fixture
def log() -> str:
    """A name that no other test uses."""
    return f"/j-{uuid.uuid4().hex[:8]}"
