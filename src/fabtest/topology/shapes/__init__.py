"""One generator per kind of fabric: a specification in, a ``Wiring`` out. Each reads like the drawing."""

from collections.abc import Callable
from typing import Any

from fabtest.topology.shapes.clos import clos
from fabtest.topology.shapes.custom import custom
from fabtest.topology.shapes.rail import dual_plane, rail, rail_only
from fabtest.topology.wiring import Wiring

GENERATORS: dict[str, Callable[[Any], Wiring]] = {
    "clos": clos,
    "rail": rail,
    "rail-only": rail_only,
    "dual-plane": dual_plane,
    "custom": custom,
}

__all__ = ["GENERATORS"]
