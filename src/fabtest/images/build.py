"""Building the images by content: an image is built only if what would go into it differs from what is there.

The base is Debian 12: ``debian:bookworm-slim`` where a registry can be reached, else a root file system made from
Debian's packages with mmdebstrap and imported. One Dockerfile serves both.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from fabtest.errors import FileProblem, LabError, MachineError
from fabtest.runtime.containerlab.engine import Engine, translated

REGISTRY_BASE = "debian:bookworm-slim"
SUITE = "bookworm"
CONTENT, GENERATION, SOURCE = "fabtest.content", "fabtest.generation", "fabtest.source-sha256"
SONIC_VS = "fabtest/sonic-vs"
#: What of fabtest the lite node runs.
LITE_PACKAGES = ("litenode", "model", "runtime", "sonic")
LITE_MODULES = ("__init__.py", "errors.py")
#: Called with what is being done.
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """An image: its name, the folder of its Dockerfile, the Debian packages in it, its labels."""

    name: str
    folder: str
    packages: tuple[str, ...]
    labels: dict[str, str]


SONIC_LITE = Recipe(
    "fabtest/sonic-lite", "sonic-lite",
    (
        "ethtool", "frr", "frr-pythontools", "iproute2", "iputils-ping", "procps", "python3-hiredis", "python3-redis",
        "redis-server", "supervisor", "tcpdump",
    ),
    {GENERATION: "lite", "fabtest.max-ports": "256"},
)  # fmt: skip
HOST = Recipe(
    "fabtest/host", "host",
    ("ethtool", "iperf3", "iproute2", "iputils-ping", "lldpd", "procps", "tcpdump"), {},
)  # fmt: skip
RECIPES = (SONIC_LITE, HOST)


@dataclass(frozen=True, slots=True)
class Built:
    """An image that is there now. ``fresh``: it was built just now."""

    name: str
    id: str
    content: str
    fresh: bool


def context(recipe: Recipe) -> Iterator[tuple[str, bytes, int]]:
    """The build context: path, content, mode; in a fixed order."""
    root = Path(str(files("fabtest")))
    folder = root / "images" / recipe.folder
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        content = path.read_bytes()
        yield str(path.relative_to(folder)), content, 0o755 if content.startswith(b"#!") else 0o644
    if recipe is SONIC_LITE:
        sources = [root / name for name in LITE_MODULES]
        sources += [p for name in LITE_PACKAGES for p in sorted((root / name).glob("*.py"))]
        for path in sources:
            yield f"fabtest/{path.relative_to(root)}", path.read_bytes(), 0o644


def content_hash(recipe: Recipe) -> str:
    """Of everything that decides what the image is."""
    digest = hashlib.sha256(json.dumps([SUITE, recipe.packages, recipe.labels]).encode())
    for name, content, mode in context(recipe):
        digest.update(f"{name}\0{mode}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def build(engine: Engine, recipe: Recipe, *, base: str = "auto", force: bool = False, say: Say) -> Built:
    """Build an image unless one of the same content is there. ``base``: ``registry``, ``packages`` or ``auto``.

    Raises LabError with Docker's last words, MachineError if no base can be had.
    """
    wanted = content_hash(recipe)
    there = engine.image(f"{recipe.name}:latest")
    if there is not None and there.labels.get(CONTENT) == wanted and not force:
        return Built(recipe.name, there.id, wanted, False)
    image_base = _base(engine, recipe, base, say)
    say(f"{recipe.name}: building on {image_base}")
    labels = {**recipe.labels, CONTENT: wanted}
    image = _docker_build(engine, recipe, _tar(context(recipe)), image_base, labels)
    return Built(recipe.name, image.id, wanted, True)


def _tar(entries: Iterator[tuple[str, bytes, int]]) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content, mode in entries:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            archive.addfile(info, io.BytesIO(content))
    out.seek(0)
    return out


def _docker_build(engine: Engine, recipe: Recipe, archive: io.BytesIO, base: str, labels: dict[str, str]) -> Any:
    from docker.errors import BuildError

    with translated():
        try:
            image, _ = engine.client.images.build(
                fileobj=archive, custom_context=True, tag=f"{recipe.name}:latest", rm=True, forcerm=True,
                labels=labels, buildargs={"BASE": base, "PACKAGES": " ".join(recipe.packages)},
            )  # fmt: skip
        except BuildError as error:
            lines = [str(row.get("stream") or row.get("error") or "").strip() for row in error.build_log]
            tail = "\n    ".join([line for line in lines if line][-8:])
            raise LabError(f"{recipe.name} does not build: {error.msg}", hint=tail or None) from None
    return image


def _base(engine: Engine, recipe: Recipe, how: str, say: Say) -> str:
    tag = f"{recipe.name}-base:{hashlib.sha256(json.dumps([SUITE, recipe.packages]).encode()).hexdigest()[:12]}"
    if how != "registry" and engine.image(tag) is not None:
        return tag
    if how in ("auto", "registry"):
        if engine.image(REGISTRY_BASE) is not None:
            return REGISTRY_BASE
        say(f"pulling {REGISTRY_BASE}")
        reason = _pull(engine, REGISTRY_BASE)
        if not reason:
            return REGISTRY_BASE
        if how == "registry":
            raise MachineError(f"{REGISTRY_BASE} cannot be pulled: {reason}", hint="use --base packages")
        say(f"no image registry ({reason}); Debian packages instead")
    _import_packages(engine, recipe, tag, say)
    return tag


def _pull(engine: Engine, reference: str) -> str:
    """Pull an image; why not, or nothing."""
    import requests
    from docker.errors import APIError, DockerException

    try:
        engine.client.images.pull(reference)
    except APIError as error:
        return str(error.explanation or error).splitlines()[0][:120]
    except (DockerException, requests.RequestException) as error:  # a credentials helper that is not there, a timeout
        return str(error).splitlines()[0][:120]
    return ""


def _import_packages(engine: Engine, recipe: Recipe, tag: str, say: Say) -> None:
    """A root file system from Debian's packages, imported under a tag. Raises MachineError."""
    program = shutil.which("mmdebstrap")
    if program is None:
        raise MachineError(
            "no image registry can be reached, and mmdebstrap is not installed",
            hint="apt-get install mmdebstrap, then `images` again",
        )
    say(f"{recipe.name}: a root file system of {len(recipe.packages)} Debian packages")
    with tempfile.TemporaryDirectory(prefix="fabtest-images-") as scratch:
        archive = Path(scratch) / "root.tar"
        argv = [
            program, "--quiet", "--variant=minbase", f"--include={','.join(recipe.packages)}",
            *(f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "man", "locale", "info")),
            SUITE, str(archive),
        ]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            tail = "\n    ".join(done.stderr.strip().splitlines()[-6:])
            raise MachineError("mmdebstrap could not make a root file system", hint=tail or None)
        repository, _, version = tag.rpartition(":")
        say(f"{recipe.name}: importing {archive.stat().st_size >> 20} MB")
        with translated():
            result = engine.client.api.import_image_from_file(str(archive), repository=repository, tag=version)
        if '"error"' in result:
            raise LabError(f"Docker could not import the root file system: {result.strip().splitlines()[-1]}")


def load_sonic_vs(engine: Engine, file: Path, *, say: Say) -> Built:
    """Load a docker-sonic-vs as SONiC publishes it (``docker-sonic-vs.gz``), and tag it ``fabtest/sonic-vs``.

    Its generation (``a``: BGP by vtysh only; ``b``: bgpcfgd, from June 2026) and the file's SHA-256 become labels.
    Raises FileProblem, LabError.
    """
    try:
        digest = hashlib.sha256()
        with open(file, "rb") as stream:
            while part := stream.read(1 << 20):
                digest.update(part)
    except OSError as error:
        raise FileProblem(f"cannot read {file}: {error.strerror}") from None
    say(f"loading {file}")
    from docker.errors import ImageLoadError

    try:
        with translated(), open(file, "rb") as stream:
            try:
                images = engine.client.images.load(stream)
            except ImageLoadError:
                images = []
    except LabError as error:
        raise FileProblem(f"Docker cannot load {file}: {error.message}") from None
    if not images:
        raise FileProblem(f"{file} holds no image", hint="it should be what `docker save` writes, gzipped or not")
    generation = sonic_generation(engine, images[0].id)
    if generation is None:
        raise LabError(
            f"{file} is not a docker-sonic-vs: it has no SONiC device folder or no supervisord",
            hint="docs/sonic-vs.md says where SONiC publishes it",
        )
    content = digest.hexdigest()
    labels = {GENERATION: generation, SOURCE: content, CONTENT: content}
    with translated():
        image, _ = engine.client.images.build(
            fileobj=_tar(iter([("Dockerfile", f"FROM {images[0].id}\n".encode(), 0o644)])), custom_context=True,
            tag=f"{SONIC_VS}:{generation}-{content[:12]}", labels=labels, rm=True,
        )  # fmt: skip
        image.tag(SONIC_VS, "latest")
    return Built(SONIC_VS, image.id, content, True)


def sonic_generation(engine: Engine, image: str) -> str | None:
    """``a``, ``b``, ``lite``, or None if the image is no SONiC-VS; read from its files, without starting it."""
    from docker.errors import NotFound

    with translated():
        known = engine.client.images.get(image).labels.get(GENERATION)
        if known:
            return str(known)
        container = engine.client.containers.create(image, entrypoint="/bin/true")
        try:
            try:
                stream, _ = container.get_archive("/etc/supervisor/conf.d/supervisord.conf")
                container.get_archive("/usr/share/sonic/device/x86_64-kvm_x86_64-r0/Force10-S6000/lanemap.ini")
            except NotFound:
                return None
            with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
                member = archive.extractfile(archive.getmembers()[0])
                text = member.read().decode(errors="replace") if member else ""
        finally:
            container.remove(force=True)
    return "b" if "[program:bgpcfgd]" in text else "a"
