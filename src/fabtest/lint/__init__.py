"""Lint of SONiC configurations for RoCE: what is wrong with a ``config_db.json``, or between those of a fabric.

``read`` takes files as they are (``position`` knows their lines), ``switch`` is one configuration as rules see it,
``rules_*`` are the rules (small functions in one table), ``fabric`` compares neighbours, ``yang`` asks SONiC's own models
(by libyang, if it is there), ``run`` puts them together, ``output`` prints. Needs neither root, Docker nor network.
"""
