"""Shows the logs of the processes of a test that fails, as for other tests of whole processes."""

from tests.e2e.conftest import pytest_runtest_makereport, pytest_runtest_setup

__all__ = ["pytest_runtest_makereport", "pytest_runtest_setup"]
