"""lab-test and test."""
from fabtest.cli.common import fabtest_task
from typing import Any
@fabtest_task()
def lab_test(c: Any) -> None:
    """x"""
@fabtest_task()
def test(c: Any) -> None:
    """x"""
