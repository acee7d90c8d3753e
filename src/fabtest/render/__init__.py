"""The files of a fabric: per switch ``config_db.json`` and ``frr.conf``, per server its network, and the whole.

``render_fabric`` is pure and byte-identical on every run; ``write_tree`` and ``diff_tree`` touch the disk.
"""

from fabtest.render.files import Tree, diff_tree, iter_files, render_fabric, write_tree

__all__ = ["Tree", "diff_tree", "iter_files", "render_fabric", "write_tree"]
