"""Bringing a fabric up as containers through containerlab, and taking it down whatever became of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from ipaddress import IPv4Network
from pathlib import Path

import yaml

from fabtest.errors import FabtestError, LabError, MachineError
from fabtest.model import Endpoint, Fabric
from fabtest.render import iter_files, write_tree
from fabtest.render.containerlab import (
    Images,
    Management,
    candidate_subnets,
    container_files,
    containerlab_topology,
    images_of,
    topology_faults,
)
from fabtest.runtime import host
from fabtest.runtime.base import LabInfo, Progress
from fabtest.runtime.containerlab.engine import Engine, ImageInfo
from fabtest.runtime.containerlab.lab import ContainerLab
from fabtest.runtime.containerlab.tool import Containerlab
from fabtest.runtime.live import stored_lab
from fabtest.runtime.namespaces import NETNS_DIR, require_root
from fabtest.runtime.netlink import NetlinkSocket
from fabtest.runtime.state import HOST_LIMITS, ROOT, LabFolder, LabRecord, folders

#: Ports a docker-sonic-vs takes; its releases have been run with so many (the lane map is ours). An image says
#: otherwise with the label below.
MAX_PORTS = 128
MAX_PORTS_LABEL = "fabtest.max-ports"
BOOT_TIMEOUT_S = 180.0
SSH_CONFIG, HOSTS = Path("/etc/ssh/ssh_config.d"), Path("/etc/hosts")


def network_name(lab: str) -> str:
    """The Docker network of a lab's management ports."""
    return f"fabtest-{lab}"


class ContainerlabRuntime:
    """Implements Runtime."""

    name = "containerlab"

    def __init__(self) -> None:
        self.engine = Engine()

    def deploy(self, fabric: Fabric, source: str, name: str, progress: Progress) -> ContainerLab:
        """Bring a fabric up under a lab name. The caller holds the lab's lock. On any failure, or an interrupt,
        what was built is taken down again. A lab of that name whose containers are not whole is built anew."""
        require_root()
        folder = LabFolder(name)
        tool = Containerlab.find()
        images = images_of(fabric)
        self._check(fabric, name, images)
        self._make_way(folder, source)
        try:
            with contextlib.ExitStack() as stack:
                return self._build(fabric, source, folder, tool, images, progress, stack)
        except BaseException as error:
            self.destroy(name)
            if isinstance(error, OSError):
                what = f"{error.strerror}" + (f": {error.filename}" if error.filename else "")
                raise MachineError(f"lab {name} could not be built: {what}") from error
            raise

    def _check(self, fabric: Fabric, lab: str, images: Images) -> None:
        """All that can be known to go wrong before anything is built."""
        sonic = self._image(images.sonic)
        self._image(images.server)
        limit = int(sonic.labels.get(MAX_PORTS_LABEL, MAX_PORTS))
        for switch in fabric.switches:
            cabled = [n for n, p in enumerate(switch.ports, 1) if Endpoint(switch.name, p.name) in fabric.link_at]
            if cabled and cabled[-1] > limit:
                port = switch.ports[cabled[-1] - 1].name
                raise LabError(
                    f"{switch.name}: {port} is port {cabled[-1]}, and {images.sonic} has {limit}",
                    hint="use switches with fewer ports, or `--runtime netns`, which has no such limit",
                )
        if foreign := self.engine.foreign(lab):
            raise LabError(
                f"there is a containerlab lab {lab} that fabtest did not make: {', '.join(foreign[:3])}"
                + (", ..." if len(foreign) > 3 else ""),
                hint="choose another name with --name, or take that lab down with containerlab",
            )
        if self.engine.foreign_network(network_name(lab)):
            raise LabError(
                f"there is a Docker network {network_name(lab)} that containerlab did not make",
                hint="choose another name with --name, or remove it",
            )
        wanted = [f"clab-{lab}-{node}" for node in fabric.node_names]
        mine = {c.name for c in self.engine.nodes(lab).values()}
        if taken := [n for n in self.engine.taken(wanted) if n not in mine]:
            raise LabError(
                f"there are containers of these names already: {', '.join(taken[:3])}",
                hint="choose another name with --name, or remove them",
            )

    def _image(self, reference: str) -> ImageInfo:
        found = self.engine.image(reference)
        if found is None:
            if reference.startswith("fabtest/"):
                raise LabError(f"the image {reference} is not there", hint="`images` builds it")
            raise LabError(
                f"the image {reference} is not there",
                hint="`images --sonic-vs FILE.gz` loads a docker-sonic-vs; or pull it with Docker",
            )
        return found

    def _make_way(self, folder: LabFolder, source: str) -> None:
        """A whole lab of that name stays, and is an error; what is left of one goes."""
        record = folder.read()
        if record is not None and record.runtime != self.name and folder.exists():
            raise LabError(
                f"lab {folder.name} is already there, as {record.runtime}",
                hint=f"`lab-down {folder.name}` first, or choose --name",
            )
        if record is not None and record.state == "up":
            try:
                damaged = bool(self.attach(folder.name).damage())
                same = folder.topology.read_text() == source
            except (FabtestError, OSError):  # its files have gone, or mean nothing any more
                damaged = same = True
            if not same:
                raise LabError(
                    f"lab {folder.name} is already up, of another topology",
                    hint=f"`lab-down {folder.name}` first, or choose --name",
                )
            if not damaged:
                raise LabError(f"lab {folder.name} is already up", hint=f"`lab-down {folder.name}` first, or --name")
        if folder.exists() or self.engine.nodes(folder.name):
            self.destroy(folder.name)

    def _build(
        self,
        fabric: Fabric,
        source: str,
        folder: LabFolder,
        tool: Containerlab,
        images: Images,
        progress: Progress,
        stack: contextlib.ExitStack,
    ) -> ContainerLab:
        record = LabRecord(
            folder.name, fabric.name, "building", time.strftime("%Y-%m-%dT%H:%M:%S"), self.name, len(fabric.switches),
            len(fabric.servers),
        )  # fmt: skip
        os.umask(0o022)
        folder.write(record)
        folder.keep(fabric, source)
        progress("files", 0, len(fabric.node_names))
        # From the choice of a subnet until Docker has given it out, no other lab chooses.
        choosing = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, choosing)
        fcntl.flock(choosing, fcntl.LOCK_EX)
        management = self._management(fabric, network_name(folder.name))
        faults = topology_faults(containerlab_topology(fabric, folder.name, images, management))
        if faults:
            raise LabError(f"this fabric is nothing containerlab can build: {faults[0]}")
        write_tree(iter_files(fabric), folder.nodes)
        write_tree(container_files(fabric, folder.name, images, management, own=True), folder.nodes)
        host.make_room(fabric, HOST_LIMITS)
        total = len(fabric.node_names) + len(fabric.links)
        progress("containerlab", 0, total)
        done = 0

        def count(line: str) -> None:
            nonlocal done
            if re.search(r"Creating container|Created link", line):
                fcntl.flock(choosing, fcntl.LOCK_UN)
                done += 1
                progress("containerlab", min(done, total), total)

        tool.deploy(clab_file(folder), log=folder.path / "containerlab.log", line=count)
        lab = ContainerLab(folder, fabric, self.engine)
        progress("boot", 0, len(fabric.switches))
        lab.wait_booted(
            [s.name for s in fabric.switches], BOOT_TIMEOUT_S, lambda ready, of: progress("boot", ready, of)
        )
        fcntl.flock(choosing, fcntl.LOCK_UN)
        lab.hasten_neighbours()
        lab.check_servers([s.name for s in fabric.servers])
        record.state = "up"
        folder.write(record)
        return ContainerLab(folder, fabric, self.engine)

    def _management(self, fabric: Fabric, network: str) -> Management:
        """The management network; one that the engine would not remove is used again."""
        left = self.engine.subnet_of(network)
        if left is None:
            return Management(network, self._free_subnet(fabric))
        if left.num_addresses < len(fabric.node_names) + 3:
            raise LabError(
                f"the Docker network {network} ({left}) of an earlier lab is still there, and too small for this one",
                hint=f"`docker network rm {network}`, after a restart of Docker if it refuses; or choose --name",
            )
        return Management(network, left)

    def _free_subnet(self, fabric: Fabric) -> IPv4Network:
        """One that neither Docker, nor the machine's routes, nor the fabric itself uses."""
        used = list(self.engine.subnets())
        with NetlinkSocket() as kernel:
            used += [r.prefix for r in kernel.routes(2) if isinstance(r.prefix, IPv4Network) and r.prefix.prefixlen]
        own = [p for s in fabric.switches for p in (*s.server_prefixes, *(i.network for i in s.loopbacks))]
        own += [a.network for s in fabric.switches for addresses in s.addresses.values() for a in addresses]
        used += [p for p in own if isinstance(p, IPv4Network)]
        for subnet in candidate_subnets(len(fabric.node_names)):
            if not any(subnet.overlaps(other) for other in used):
                return subnet
        raise MachineError("no free subnet for the management network", hint="`docker network prune` frees some")

    def attach(self, name: str) -> ContainerLab:
        """A lab that is up. Raises LabError saying what is there instead."""
        return ContainerLab(*stored_lab(name, [info.name for info in self.list()]), self.engine)

    def destroy(self, name: str) -> bool:
        """Containers, network, links and files of the lab, and no others'; False if there was nothing."""
        folder = LabFolder(name)
        containers = self.engine.nodes(name)
        found = bool(containers) or folder.exists()
        file = clab_file(folder)
        self.engine.end_tools(str(folder.nodes))
        if containers and file.is_file():
            try:
                Containerlab.find().destroy(file, log=folder.path / "containerlab.log")
            except FabtestError:
                pass  # what it left is removed below
        found = bool(self.engine.remove(name, network_name(name))) or found
        if not self.engine.foreign(name):
            forget(name, {*containers, *_nodes_of(file)})
        if folder.exists():
            folder.delete()
        if HOST_LIMITS.exists() and not [f for f in folders() if f.name != name]:
            host.give_back(HOST_LIMITS)
        return found

    def list(self) -> list[LabInfo]:
        """Labs of this runtime with a folder; those whose containers are not all there are ``broken``."""
        found = []
        for folder in folders():
            record = folder.read()
            if record is None or record.runtime != self.name:
                continue
            state = record.state
            if state == "up":
                try:
                    running = [c for c in self.engine.nodes(folder.name).values() if c.pid]
                    state = "up" if len(running) == record.switches + record.servers else "broken"
                except FabtestError:
                    state = "broken"
            found.append(
                LabInfo(folder.name, state, record.topology, record.switches, record.servers, record.since, self.name)
            )
        return found


def clab_file(folder: LabFolder) -> Path:
    """The containerlab topology of a lab, beside the folders of its nodes."""
    return folder.nodes / f"{folder.name}.clab.yml"


def _nodes_of(file: Path) -> list[str]:
    """The nodes of a lab's containerlab topology, also when their containers have gone."""
    try:
        return list(yaml.safe_load(file.read_text())["topology"]["nodes"])
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return []


def forget(lab: str, nodes: set[str]) -> None:
    """What containerlab leaves on the machine when it was killed, of this lab only: names below /run/netns, its block
    of /etc/hosts, its ssh configuration."""
    from fabtest.runtime.namespaces import unmount

    (SSH_CONFIG / f"clab-{lab}.conf").unlink(missing_ok=True)
    text = HOSTS.read_text() if HOSTS.is_file() else ""
    start, end = f"###### CLAB-{lab}-START ######\n", f"###### CLAB-{lab}-END ######\n"
    before, _, rest = text.partition(start)
    if end in rest:
        HOSTS.write_text(before + rest.partition(end)[2])  # in place: it may be a mount of its own
    for node in nodes:
        for name in (f"clab-{lab}-{node}", f"clab-park-clab-{lab}-{node}"):
            path = NETNS_DIR / name
            if path.is_symlink():
                path.unlink(missing_ok=True)
            elif path.exists():
                try:
                    unmount(str(path))
                except OSError:
                    pass
                path.unlink(missing_ok=True)
