"""Lint of SONiC configurations for RoCE: what is wrong with a ``config_db.json``, or between those of a fabric.

``read`` takes files as they are, ``switch`` is one configuration as rules see it, ``rules_*`` are the rules (small
functions in one table), ``fabric`` compares neighbours, ``run`` puts them together, ``output`` prints. Needs neither
root, Docker nor network.
"""
