"""The runs that the tests of trained models share."""

from tests.tools.pretrained.conftest import finished_fed_otp, finished_run

__all__ = ["finished_fed_otp", "finished_run"]
