"""The command line: invoke tasks, for ``invoke`` in a checkout and the ``fabtest`` command everywhere.

Tasks are thin: they read arguments, call the packages below, and print tables for people or JSON for machines.
"""

from __future__ import annotations

from invoke.collection import Collection

from fabtest.cli import capture, change, config, faults, graph, images, importing, lab, lint, show, suites, traffic

TASKS = (
    lab.lab_up, lab.lab_down, lab.lab_list, lab.lab_lock, lab.lab_status, lab.lab_exec, lab.lab_shell, lab.lab_logs,
    capture.lab_capture, graph.lab_graph, suites.lab_test, suites.test, faults.link_down, faults.link_up,
    faults.node_down, faults.node_up, faults.agent_restart, show.show, traffic.traffic_list, traffic.traffic_run,
    traffic.traffic_send, traffic.traffic_receive, traffic.traffic_pcap, traffic.traffic_decode, traffic.traffic_schema,
    lint.config_lint, importing.fabric_import, change.config_diff, change.change_test, change.lab_snapshot,
    change.lab_verify, images.images, config.config_render, config.topologies,
    config.topology_schema,
)  # fmt: skip

namespace = Collection(*TASKS)
