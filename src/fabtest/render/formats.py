"""The files of a fabric for other tools than SONiC's own: containerlab, clabernetes, NVIDIA Air."""

from __future__ import annotations

from collections.abc import Iterator

from fabtest.errors import UsageError
from fabtest.model import Fabric
from fabtest.render.air import air_topology
from fabtest.render.clabernetes import clabernetes_file
from fabtest.render.containerlab import container_files, default_management, images_of
from fabtest.render.files import iter_files, to_json

FORMATS = ("files", "containerlab", "clabernetes", "air")


def formatted_files(fabric: Fabric, form: str) -> Iterator[tuple[str, bytes]]:
    """Every file of a fabric in a format; a lab's name is the fabric's. Raises UsageError."""
    if form not in FORMATS:
        raise UsageError(f"no format {form!r}", hint=f"formats: {', '.join(FORMATS)}")
    return _files(fabric, form)


def _files(fabric: Fabric, form: str) -> Iterator[tuple[str, bytes]]:
    yield from iter_files(fabric)
    if form == "containerlab":
        yield from container_files(fabric, fabric.name, images_of(fabric), default_management(fabric, fabric.name))
    elif form == "clabernetes":
        yield f"{fabric.name}.clabernetes.yml", clabernetes_file(fabric, fabric.name, images_of(fabric))
    elif form == "air":
        yield f"{fabric.name}.air.json", to_json(air_topology(fabric, fabric.name))
