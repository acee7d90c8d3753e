"""What a running lab is compared with its design by, and the verdicts that come of it.

``observe`` reads a lab, ``converge`` waits for it, and ``underlay``, ``ecmp``, ``qos_config`` and ``failover`` are the
suites: functions from a ``Lab`` to ``Verdict``s. They know the contracts of ``fabtest.runtime.base`` and no runtime.
"""
