"""fabtest: build, run and prove Ethernet fabrics for GPU clusters on one machine.

One straight line, one package per step; nothing later reaches back:

``topology`` (YAML to a ``model.Fabric``) -> ``render`` (files per node, by ``sonic``) -> ``runtime``
(a live lab of ``litenode`` switches) -> ``roce`` (traffic) and ``checks`` (verdicts) -> ``report``.
``cli`` ties them to the command line.
"""

__version__ = "0.1.0"
