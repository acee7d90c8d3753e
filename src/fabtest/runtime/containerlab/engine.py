"""The Docker engine, through its SDK: containers by label, images, networks. Nothing here parses a table."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from ipaddress import IPv4Network, ip_network
from pathlib import Path
from typing import Any

from fabtest.errors import LabError, MachineError
from fabtest.render.containerlab import LABEL
from fabtest.runtime.containerlab.tool import Line, Ran

log = logging.getLogger(__name__)

NODE_NAME, LAB_NAME = "clab-node-name", "containerlab"
#: On a container that runs containerlab itself: the folder it works in.
TOOL = "fabtest.tool"
MISCOUNTED = (
    "the Docker network %s stays: the engine counts endpoints on it, though there are none (a fault of the engine, "
    "seen in 20.10). The next lab of this name uses it; once Docker has been restarted, `docker network rm` removes it"
)


@dataclass(frozen=True, slots=True)
class NodeContainer:
    """A container of a lab. ``pid`` is its first process on this machine, 0 if it does not run."""

    node: str
    id: str
    name: str
    pid: int
    status: str
    image: str
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """An image the engine has. ``digest`` is the registry's, where it came from one."""

    reference: str
    id: str
    digest: str
    labels: dict[str, str]


class Engine:
    """One connection to the engine DOCKER_HOST (or the usual socket) names."""

    @cached_property
    def client(self) -> Any:
        """The SDK's client. Raises MachineError if there is no engine."""
        import docker
        from docker.errors import DockerException

        try:
            client = docker.from_env(timeout=300)
            client.ping()
        except DockerException as error:
            raise MachineError(
                f"the Docker engine does not answer: {_reason(error)}",
                hint="start it (`systemctl start docker`), or set DOCKER_HOST to where it listens",
            ) from None
        return client

    def version(self) -> str:
        """Of the engine."""
        with translated():
            return str(self.client.version()["Version"])

    def nodes(self, lab: str) -> dict[str, NodeContainer]:
        """The containers of a lab of ours by node name, whatever their state."""
        with translated():
            found = self.client.containers.list(all=True, filters={"label": f"{LABEL}={lab}"})
        return {c.labels.get(NODE_NAME, c.name): _node(c) for c in found}

    def foreign(self, lab: str) -> list[str]:
        """Names of containers of a lab of this name that is not ours."""
        with translated():
            found = self.client.containers.list(all=True, filters={"label": f"{LAB_NAME}={lab}"})
        return sorted(c.name for c in found if LABEL not in c.labels)

    def taken(self, names: Sequence[str]) -> list[str]:
        """Which of these container names exist, whoever made them."""
        with translated():
            existing = {
                name.lstrip("/") for row in self.client.api.containers(all=True) for name in row.get("Names") or ()
            }
        return [n for n in names if n in existing]

    def labs(self) -> dict[str, int]:
        """Labs of ours that have containers, with their number."""
        found: dict[str, int] = {}
        with translated():
            for row in self.client.api.containers(all=True, filters={"label": LABEL}):
                name = row["Labels"][LABEL]
                found[name] = found.get(name, 0) + 1
        return found

    def subnets(self) -> list[IPv4Network]:
        """IPv4 subnets Docker has given out."""
        with translated():
            return [subnet for row in self.client.api.networks() for subnet in _subnets(row)]

    def has_network(self, name: str) -> bool:
        """Whether there is a network of this name."""
        with translated():
            return any(row["Name"] == name for row in self.client.api.networks(names=[name]))

    def subnet_of(self, name: str) -> IPv4Network | None:
        """IPv4 subnet of the network of this name; None if there is no such network, or it has none."""
        with translated():
            rows = [row for row in self.client.api.networks(names=[name]) if row["Name"] == name]
        return next((subnet for row in rows for subnet in _subnets(row)), None)

    def foreign_network(self, name: str) -> bool:
        """Whether there is a network of this name that containerlab did not make."""
        with translated():
            return any(
                row["Name"] == name and LAB_NAME not in (row.get("Labels") or {})
                for row in self.client.api.networks(names=[name])
            )

    def end_tools(self, folder: str) -> None:
        """End containers that run containerlab itself in a lab's folder: of a command that was killed."""
        with translated():
            for c in self.client.containers.list(all=True, filters={"label": f"{TOOL}={folder}"}, ignore_removed=True):
                self._gone(lambda c=c: c.remove(force=True))

    def remove(self, lab: str, network: str) -> list[str]:
        """Remove what is left of a lab of ours: containers by label, its network by name. Returns what it removed."""
        removed = []
        with translated():
            for c in self.client.containers.list(all=True, filters={"label": f"{LABEL}={lab}"}, ignore_removed=True):
                self._gone(lambda c=c: c.remove(force=True, v=True))
                removed.append(c.name)
            for row in self.client.api.networks(names=[network], filters={"label": LAB_NAME}):
                if row["Name"] == network:
                    if not self._remove_network(row["Id"], lab):
                        log.warning(MISCOUNTED, network)
                    removed.append(network)
        return removed

    def _remove_network(self, network: str, lab: str, timeout: float = 30.0) -> bool:
        """Remove a network of a lab whose containers are gone.

        The engine gives up a container's endpoint only after it has answered that the container is removed (or is on
        its way out, of containerlab's own doing), and keeps one for good where it was killed in between. So this
        waits, and then cuts such endpoints off. Now and then an engine (seen: 20.10; moby issue 42119) goes on counting
        an endpoint it no longer lists, until it starts again ("Fixing inconsistent endpoint_cnt" in its log): nothing
        can remove such a network, and nothing is on it. False then; the next lab of the name uses it. Raises LabError
        if a container of someone else is on the network, APIError after ``timeout`` seconds.
        """
        from docker.errors import APIError

        now = time.monotonic()
        deadline, patience, alone_since = now + timeout, now + timeout / 3, now
        while True:
            try:
                self._gone(lambda: self.client.api.remove_network(network))
                return True
            except APIError as error:
                if "active endpoints" not in str(error.explanation) or time.monotonic() > deadline:
                    raise
            if self._cut_off(network, lab, force=time.monotonic() > patience):
                alone_since = time.monotonic()
            elif time.monotonic() > alone_since + timeout / 6:
                return False
            time.sleep(0.1)

    def _cut_off(self, network: str, lab: str, force: bool) -> int:
        """With ``force``, take every endpoint off a network whose container is the lab's or is no more. How many
        endpoints there were. Raises LabError naming containers of someone else."""
        from docker.errors import NotFound

        others = []
        try:
            attached = self.client.api.inspect_network(network).get("Containers") or {}
        except NotFound:
            return 0
        for identity, endpoint in attached.items():
            name = str(endpoint.get("Name") or identity)
            try:
                labels = self.client.api.inspect_container(identity)["Config"].get("Labels") or {}
            except NotFound:
                labels = {LABEL: lab}
            if labels.get(LABEL) != lab:
                others.append(name)
            elif force:
                self._gone(partial(self.client.api.disconnect_container_from_network, name, network, force=True))
        if others:
            raise LabError(
                f"the lab's network still has containers that are not the lab's: {', '.join(sorted(others))}",
                hint="`docker network disconnect` them, then again",
            )
        return len(attached)

    @staticmethod
    def _gone(removal: Any) -> None:
        """Remove something that may be on its way out already."""
        from docker.errors import APIError, NotFound

        try:
            removal()
        except NotFound:
            pass
        except APIError as error:
            if error.status_code != 409:  # removal already in progress
                raise

    def output(self, reference: str, command: Sequence[str]) -> str:
        """What a command of an image prints; nothing if there is no such image or command."""
        from docker.errors import APIError

        with translated():
            try:
                container = self.client.containers.create(
                    reference, list(command[1:]), entrypoint=command[0], network_mode="none"
                )
            except APIError:
                return ""
            try:
                container.start()
                container.wait()
                return str(container.logs(stdout=True, stderr=False).decode(errors="replace"))
            except APIError:  # it has no such program
                return ""
            finally:
                container.remove(force=True)

    def image(self, reference: str) -> ImageInfo | None:
        """An image the engine has, or None."""
        from docker.errors import ImageNotFound

        with translated():
            try:
                image = self.client.images.get(reference)
            except ImageNotFound:
                return None
        config = image.attrs.get("Config") or {}
        digests = image.attrs.get("RepoDigests") or [""]
        return ImageInfo(
            reference, image.id, digests[0].rpartition("@")[2], dict(config.get("Labels") or {})
        )  # fmt: skip


def _subnets(row: Mapping[str, Any]) -> Iterator[IPv4Network]:
    """IPv4 subnets of a network as the engine lists it."""
    for config in (row.get("IPAM") or {}).get("Config") or ():
        with contextlib.suppress(ValueError):
            network = ip_network(config.get("Subnet", ""))
            if isinstance(network, IPv4Network):
                yield network


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """What goes wrong with Docker as an error of ours."""
    import requests
    from docker.errors import APIError, DockerException

    try:
        yield
    except APIError as error:
        raise LabError(f"Docker refused: {error.explanation or error}") from None
    except (DockerException, requests.RequestException) as error:
        raise MachineError(f"the Docker engine does not answer: {_reason(error)}", hint="is it running?") from None


def _reason(error: Exception) -> str:
    """The innermost words of a chain of wrapped errors."""
    text = str(error)
    for mark, meaning in (
        ("FileNotFoundError", "there is no such socket"),
        ("refused", "connection refused"),
        ("PermissionError", "permission denied"),
    ):
        if mark in text:
            return meaning
    return text.splitlines()[0][:200] if text else type(error).__name__


def _environment(pairs: Sequence[str] | None) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in pairs or () if "=" in pair)


def _node(container: Any) -> NodeContainer:
    state = container.attrs.get("State") or {}
    config = container.attrs.get("Config") or {}
    return NodeContainer(
        node=container.labels.get(NODE_NAME, container.name),
        id=container.id,
        name=container.name,
        pid=int(state.get("Pid") or 0),
        status=str(state.get("Status", "unknown")),
        image=str(config.get("Image", "")),
        environment=_environment(config.get("Env")),
    )


class ImageLauncher:
    """containerlab from its own image: a container that shares the machine's network, processes and Docker socket."""

    def __init__(self, image: str) -> None:
        self.image = image

    def describe(self) -> str:
        """The image."""
        return self.image

    def run(self, arguments: Sequence[str], folder: Path, line: Line) -> Ran:
        """As its documentation starts it, through the API."""
        import os

        client = Engine().client
        host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        if not host.startswith("unix://"):
            raise MachineError(
                f"containerlab's image cannot use the Docker engine at {host}",
                hint="install the containerlab binary, or use an engine on this machine",
            )
        volumes = {host.removeprefix("unix://"): {"bind": "/var/run/docker.sock", "mode": "rw"}}
        volumes |= {p: {"bind": p, "mode": "rw"} for p in ("/var/run/netns", "/etc/hosts", str(folder)) if p != "/"}
        with translated():
            container = client.containers.create(
                self.image, list(arguments), entrypoint="containerlab", privileged=True, network_mode="host",
                pid_mode="host", volumes=volumes, working_dir=str(folder),
                environment={"CLAB_VERSION_CHECK": "disable"}, labels={TOOL: str(folder)},
            )  # fmt: skip
            try:
                container.start()
                stderr: list[str] = []
                for chunk in container.logs(stdout=False, stderr=True, stream=True, follow=True):
                    text = chunk.decode(errors="replace")
                    stderr.append(text)
                    for one in text.splitlines():
                        line(one)
                code = int(container.wait()["StatusCode"])
                stdout = container.logs(stdout=True, stderr=False).decode(errors="replace")
            finally:
                container.remove(force=True)
        return Ran(code, stdout, "".join(stderr))
