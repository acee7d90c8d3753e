"""``python -m fabtest.litenode LAB``: the agent of a running lab."""

import sys

from fabtest.litenode.agent import main

main(sys.argv[1])
