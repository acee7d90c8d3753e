"""What the RoCEv2 engine sends, receives and builds, with tcpreplay and scapy beside it in the same run.

    .venv/bin/python benchmarks/roce_engine.py [--runs N] [--no-lab]

A veth pair between two namespaces of its own; the far end has a UDP socket on port 4791, as a server has, whoever
sends. Payloads of 64, 1024 and 4096 bytes. Needs root and Debian's tcpreplay. Prints JSON with every bound and
whether it held; exit code 1 if one did not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import socket
import struct
import subprocess
import sys
import time
from datetime import date
from ipaddress import ip_address
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fabtest.roce.arena import Arena, payload_bytes
from fabtest.roce.frames import UDP_PORT, Flow, finish, header, icrc_is_right
from fabtest.roce.open_loop import OpenLoop, realtime
from fabtest.roce.receiver import Receiver
from fabtest.roce.transmit import transmitter
from fabtest.runtime.namespaces import inside
from fabtest.runtime.processes import program

NEAR, FAR = "fabbench-near", "fabbench-far"
NEAR_PATH, FAR_PATH = Path("/run/netns") / NEAR, Path("/run/netns") / FAR
NEAR_MAC, FAR_MAC = bytes.fromhex("02fabe000001"), bytes.fromhex("02fabe000002")
SIZES = (64, 1024, 4096)
FLOWS = 64
SAMPLE = 64
SECONDS = 1.0  # as long as tcpreplay's --duration


def flows(count: int = FLOWS) -> list[Flow]:
    src, dst = ip_address("10.9.0.1"), ip_address("10.9.0.2")
    return [Flow(src, dst, 0xC000 + n % 0x4000, dqpn=1 + n) for n in range(count)]


def run(*argv: str) -> str:
    return subprocess.run([program("ip", "iproute2"), *argv[1:]], check=True, capture_output=True, text=True).stdout


def set_up() -> None:
    tear_down()
    run("ip", "netns", "add", NEAR)
    run("ip", "netns", "add", FAR)
    run("ip", "link", "add", "near0", "netns", NEAR, "type", "veth", "peer", "name", "far0", "netns", FAR)
    for netns, name, address, mac in (
        (NEAR, "near0", "10.9.0.1/24", NEAR_MAC),
        (FAR, "far0", "10.9.0.2/24", FAR_MAC),
    ):
        run("ip", "-n", netns, "link", "set", name, "address", mac.hex(":"), "mtu", "9100", "up")
        run("ip", "-n", netns, "addr", "add", address, "dev", name)
    time.sleep(0.3)


def listen(netns: Path) -> socket.socket:
    """A UDP socket on port 4791, so that the kernel does not answer with ICMP port unreachable."""
    with inside(netns):
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    udp.bind(("0.0.0.0", UDP_PORT))
    return udp


def tear_down() -> None:
    for netns in (NEAR, FAR):
        subprocess.run([program("ip", "iproute2"), "netns", "del", netns], check=False, capture_output=True)


def write_pcap(path: Path, payload: int) -> None:
    records = []
    for flow in flows() * (1024 // FLOWS):
        frame = finish(header(flow, NEAR_MAC, FAR_MAC, 0x24, payload), payload_bytes(payload))
        records.append(struct.pack("=IIII", 0, 0, len(frame), len(frame)) + frame)
    path.write_bytes(struct.pack("=IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + b"".join(records))


def send_engine(
    payload: int, method: str, pps: float = 0.0, seconds: float = SECONDS, batch: int = 64
) -> tuple[float, int, int]:
    """(packets per second, packets, biggest burst)"""
    arena = Arena(flows(), NEAR_MAC, FAR_MAC, payload)
    out = transmitter(NEAR_PATH, "near0", arena, method)
    try:
        sent = OpenLoop(arena, out, batch=batch).run(pps=pps, seconds=seconds)
    finally:
        out.close()
    return sent.pps, sent.packets, sent.biggest_burst


def send_tcpreplay(pcap: Path) -> float:
    argv = ["ip", "netns", "exec", NEAR, "tcpreplay", "-K", "-t", "-i", "near0", "--duration=1", "--loop=0", str(pcap)]
    text = subprocess.run([program("ip", "iproute2"), *argv[1:]], capture_output=True, text=True, check=False).stdout
    found = re.search(r"([\d.]+) pps", text)
    assert found is not None, text
    return float(found[1])


def send_scapy(payload: int, seconds: float = SECONDS) -> float:
    """A loop that builds each frame anew."""
    from scapy.config import conf
    from scapy.contrib.roce import BTH
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether

    body = payload_bytes(payload)
    with inside(NEAR_PATH):
        out = conf.L2socket(iface="near0")
        end = time.perf_counter() + seconds
        start, count = time.perf_counter(), 0
        while time.perf_counter() < end:
            frame = Ether(src=NEAR_MAC.hex(":"), dst=FAR_MAC.hex(":"))
            frame /= IP(src="10.9.0.1", dst="10.9.0.2", tos=0x6A, flags="DF", id=0)
            frame /= UDP(sport=0xC000 + count % 64, dport=4791, chksum=0)
            frame /= BTH(opcode=0x24, dqpn=1 + count % 64, psn=count)
            out.send(frame / body)
            count += 1
        took = time.perf_counter() - start
        out.close()
    return count / took


def far_packets() -> int:
    shown = json.loads(run("ip", "-n", FAR, "-j", "-s", "link", "show", "far0"))
    return int(shown[0]["stats64"]["rx"]["packets"])


def _sender(payload: int, pps: float, seconds: float, result: Any) -> None:
    result.put(send_engine(payload, "auto", pps, seconds, 256))


def receive_engine(payload: int, pps: float, seconds: float = 1.0) -> dict[str, float]:
    """The engine receives what the engine sends at a rate."""
    result: Any = multiprocessing.Queue()
    with Receiver(FAR_PATH, ["far0"], slots=32768, sample=SAMPLE) as receiver, realtime():
        child = multiprocessing.Process(target=_sender, args=(payload, pps, seconds, result))
        child.start()
        got = wrong = checked = 0
        quiet = time.monotonic() + 5
        fields = 0
        while time.monotonic() < quiet:
            batch = receiver.take()
            if batch is None:
                if not child.is_alive():
                    quiet = min(quiet, time.monotonic() + 0.2)
                time.sleep(0.0007)
                continue
            got += len(batch)
            fields += int(batch.psn[-1])
            bad, sample = receiver.ring.wrong_icrc()
            wrong += bad
            checked += sample
            receiver.ring.release()
            quiet = time.monotonic() + 5
            # A real-time process that never sleeps starves the machine.
            if len(batch) < 1024:
                time.sleep(0.0007)
        dropped = receiver.ring.dropped()
        rate, sent, _ = result.get(timeout=10)
        child.join()
    return {"pps": rate, "sent": sent, "received": got, "dropped": dropped, "icrc_checked": checked, "wrong": wrong}


def receive_scapy(payload: int, seconds: float = 1.0) -> float:
    """Packets per second scapy's sniff handles of a flood, the same fields read as the engine's columns."""
    from scapy.config import conf
    from scapy.contrib.roce import BTH
    from scapy.layers.inet import IP, UDP
    from scapy.sendrecv import sniff

    count = 0

    def each(frame: Any) -> None:
        nonlocal count
        if BTH in frame:
            ip, udp, bth = frame[IP], frame[UDP], frame[BTH]
            fields = (ip.src, ip.dst, ip.tos, ip.ttl, udp.sport, bth.opcode, bth.becn, bth.dqpn, bth.ackreq, bth.psn)
            count += len(fields) == 10

    with inside(FAR_PATH):
        sock = conf.L2listen(iface="far0")
    child = multiprocessing.Process(target=_sender, args=(payload, 0.0, seconds + 0.5, multiprocessing.Queue()))
    child.start()
    time.sleep(0.3)
    start = time.perf_counter()
    sniff(opened_socket=sock, prn=each, store=False, timeout=seconds)
    took = time.perf_counter() - start
    child.terminate()
    child.join()
    sock.close()
    return count / took


def build(payload: int) -> float:
    """Microseconds per frame updated in place: PSN and ICRC."""
    arena = Arena(flows(), NEAR_MAC, FAR_MAC, payload)
    times = []
    for _ in range(200):
        start = time.perf_counter_ns()
        arena.fill(0, 0, min(1024, arena.count))
        times.append((time.perf_counter_ns() - start) / 1000 / min(1024, arena.count))
    assert icrc_is_right(arena.frame(17))
    return median(times)


def many_qps(count: int = 100_000) -> dict[str, float]:
    """Seconds until the first batch of so many QPs is on the wire, and memory, in a process of its own."""
    script = f"""
import time, resource, json
start = time.perf_counter()
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from roce_engine import *
arena = Arena(flows({count}), NEAR_MAC, FAR_MAC, 1024)
out = transmitter(NEAR_PATH, "near0", arena)
OpenLoop(arena, out).run(count={count})
first = time.perf_counter() - start
out.close()
print(json.dumps({{"seconds": first, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}}))
"""
    text = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    return dict(json.loads(text))


def across_a_lab(seconds: float = 1.5, runs: int = 3) -> dict[str, float]:
    """Leaf-spine-leaf: what tcpreplay and the kernel carry, and what the engine sends and receives."""
    from fabtest.roce.send import nic_addresses, resolve
    from fabtest.runtime.netns import NetnsRuntime
    from fabtest.topology.load import load_fabric, topology_path

    name = "fabbench"
    runtime = NetnsRuntime()
    runtime.destroy(name)
    path = topology_path("clos-2x2")
    lab = runtime.deploy(load_fabric(path), path.read_text(), name, lambda *_: None)
    try:
        time.sleep(3)
        servers = lab.fabric.servers
        src = nic_addresses(lab, servers[0].name, 4)[0]
        dst = next(n for s in servers for n in nic_addresses(lab, s.name, 4) if n.port.leaf.node != src.port.leaf.node)
        near, far = lab.node(src.server), lab.node(dst.server)
        gateway = bytes.fromhex(resolve(near, src.port.name, src.gateway).replace(":", ""))
        own = bytes.fromhex(src.port.mac.replace(":", ""))
        many = [Flow(src.address, dst.address, 0xC000 + n, dqpn=1 + n) for n in range(FLOWS)]
        pcap = Path("/tmp/fabbench-lab.pcap")
        with pcap.open("wb") as out:
            out.write(struct.pack("=IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
            for flow in many * 16:
                frame = finish(header(flow, own, gateway, 0x24, 1024), payload_bytes(1024))
                out.write(struct.pack("=IIII", 0, 0, len(frame), len(frame)) + frame)
        plain, engine, lost = [], [], 0
        with listen(far.netns):
            for _ in range(runs):
                plain.append(_kernel_carries(near, far, src.port.name, dst.port.name, pcap))
        for _ in range(runs):
            result: Any = multiprocessing.Queue()
            with Receiver(far.netns, [dst.port.name], slots=32768) as receiver:
                job = (near.netns, src.port.name, many, own, gateway, seconds, result)
                child = multiprocessing.Process(target=_lab_sender, args=job)
                child.start()
                got, quiet = 0, time.monotonic() + 5
                while time.monotonic() < quiet:
                    batch = receiver.take()
                    if batch is None:
                        if not child.is_alive():
                            quiet = min(quiet, time.monotonic() + 0.3)
                        time.sleep(0.0007)
                        continue
                    got += len(batch)
                    receiver.ring.release()
                    quiet = time.monotonic() + 5
                    time.sleep(0.0003)
                pps, sent = result.get(timeout=10)
                child.join()
            engine.append(got / (sent / pps))
            lost += sent - got
        pcap.unlink()
        return {"kernel_pps": median(plain), "engine_pps": median(engine), "lost": lost}
    finally:
        runtime.destroy(name)


def _lab_sender(netns: Path, port: str, many: list[Flow], own: bytes, to: bytes, seconds: float, result: Any) -> None:
    arena = Arena(many, own, to, 1024)
    out = transmitter(netns, port, arena)
    sent = OpenLoop(arena, out, batch=64).run(seconds=seconds)
    out.close()
    result.put((sent.pps, sent.packets))


def _kernel_carries(near: Any, far: Any, out_port: str, in_port: str, pcap: Path) -> float:
    """Packets per second that tcpreplay sends and the far NIC's counter sees."""

    def count() -> int:
        return int(far.exec(["cat", f"/sys/class/net/{in_port}/statistics/rx_packets"]).stdout)

    before = count()
    text = near.exec(
        ["tcpreplay", "-K", "-t", "-i", out_port, "--duration=1", "--loop=0", str(pcap)], timeout=20
    ).stdout
    time.sleep(0.3)
    found = re.search(r"Actual: (\d+) packets.*? in ([\d.]+) seconds", text)
    assert found is not None, text
    return (count() - before) / float(found[2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of each; medians are printed (default 5)")
    parser.add_argument("--no-lab", action="store_true", help="leave out the run across a lab")
    options = parser.parse_args()
    bounds: dict[str, bool] = {}
    report: dict[str, Any] = {
        "date": date.today().isoformat(), "kernel": platform.release(), "cpus": os.cpu_count(),
        "python": platform.python_version(), "numpy": np.__version__, "runs": options.runs, "icrc_sample": SAMPLE,
    }  # fmt: skip
    set_up()
    try:
        report["method"] = transmitter_name()
        for payload in SIZES:
            pcap = Path(f"/tmp/fabbench-{payload}.pcap")
            write_pcap(pcap, payload)
            seen: dict[str, list[float]] = {}
            with listen(FAR_PATH):
                for _ in range(options.runs):
                    for method in ("sendmmsg", "auto"):
                        before = far_packets()
                        pps, packets, _burst = send_engine(payload, method)
                        assert far_packets() - before >= packets, "frames did not leave"
                        seen.setdefault(method, []).append(pps)
                    seen.setdefault("tcpreplay", []).append(send_tcpreplay(pcap))
                    seen.setdefault("scapy", []).append(send_scapy(payload))
            pcap.unlink()
            rate = {method: round(median(values)) for method, values in seen.items()}
            # Ratios of runs that stood beside each other, then their median: the machine's speed drifts.
            over = {
                peer: median(ours / theirs for ours, theirs in zip(seen["auto"], seen[peer], strict=True))
                for peer in ("tcpreplay", "scapy")
            }
            sniffed, flood = [], []
            for _ in range(options.runs):  # one beside the other: a machine's speed changes within a minute
                with listen(FAR_PATH):
                    sniffed.append(receive_scapy(payload))
                flood.append(receive_engine(payload, 0.0))
            sniff = round(median(sniffed))
            most = round(median(r["received"] / (r["sent"] / r["pps"]) for r in flood))
            received, shares = [], []
            for _ in range(options.runs):  # so too what can be sent now, and nine tenths of it received
                with listen(FAR_PATH):
                    now = send_engine(payload, "auto")[0]
                received.append(receive_engine(payload, 0.9 * now))
                shares.append(received[-1]["pps"] / now)
            at = round(median(r["pps"] for r in received))
            lost = sum(r["sent"] - r["received"] for r in received)
            microseconds = median(build(payload) for _ in range(options.runs))
            paced = [send_engine(payload, "auto", 50_000) for _ in range(3)]
            report[f"{payload} B"] = {
                "send_pps": rate, "send_over": {peer: round(ratio, 2) for peer, ratio in over.items()},
                "sniff_pps": sniff, "receive_at_pps": at, "receive_share_of_send": round(median(shares), 3),
                "receive_lost": lost, "receive_flood_pps": most,
                "receive": received,
                "build_us": round(microseconds, 4), "paced_50k_pps": [round(p[0], 1) for p in paced],
                "paced_biggest_burst": max(p[2] for p in paced),
            }  # fmt: skip
            bounds |= {
                f"{payload} B: send >= 1.15 x tcpreplay": over["tcpreplay"] >= 1.15,
                f"{payload} B: send >= 300 x scapy": over["scapy"] >= 300,
                f"{payload} B: no loss at 90 % of send": lost == 0 and median(shares) >= 0.89,
                f"{payload} B: receive >= 80 x sniff": most >= 80 * sniff,
                f"{payload} B: mean rate within 1 %": all(abs(p[0] / 50_000 - 1) <= 0.01 for p in paced),
            }
            if payload == 1024:
                bounds["1024 B: build <= 0.05 us"] = microseconds <= 0.05
        many = many_qps()
        report["100,000 QPs"] = {k: round(v, 2) for k, v in many.items()}
        bounds["100,000 QPs start in < 2 s"] = many["seconds"] < 2
        bounds["100,000 QPs < 500 MB"] = many["mb"] < 500
    finally:
        tear_down()
    if not options.no_lab:
        report["leaf-spine-leaf, 1024 B"] = crossing = across_a_lab()
        bounds["leaf-spine-leaf >= 90 % of the kernel"] = crossing["engine_pps"] >= 0.9 * crossing["kernel_pps"]
    report["bounds"] = bounds
    print(json.dumps(report, indent=2))
    return 0 if all(bounds.values()) else 1


def transmitter_name() -> str:
    arena = Arena(flows(), NEAR_MAC, FAR_MAC, 64)
    out = transmitter(NEAR_PATH, "near0", arena)
    out.close()
    return out.name


if __name__ == "__main__":
    sys.exit(main())
