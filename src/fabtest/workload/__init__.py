"""Workloads: what GPUs say to each other, from ``traffic/*.yml`` to the messages and queue pairs of a plan.

``schema`` and ``load``: the file; ``patterns``: who sends what to whom, and after what; ``compile``: ranks to NICs,
messages to queue pairs; ``run``: engine processes on a lab; ``results``: what came of it; ``schedule`` and ``otg``: the
same workload as a capture and for a hardware tester.
"""

from fabtest.workload.load import load_workload, shipped_workloads, workload_path

__all__ = ["load_workload", "shipped_workloads", "workload_path"]
