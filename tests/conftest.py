"""What all tests share: where the reference material is, if it is."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of oracles and reference data beside the checkout."""
    if not (SHARED / "tools").is_dir():
        pytest.skip(f"reference material is not at {SHARED}")
    return SHARED
