"""What is logged shows names as they are."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import fedvlp
from fedvlp.utils.logs import visible_log


def test_a_name_in_a_log_can_not_forge_a_line(caplog):
    log = visible_log("fedvlp.tests.log")
    log.warning("Ignoring %d image(s), such as %s.", 2, "a\x1b[2K\r\nfedvlp: all is well\u202e")
    (record,) = caplog.records
    assert record.getMessage() == "Ignoring 2 image(s), such as a\\x1b[2K\\r\n  fedvlp: all is well\\u202e."
    log.warning("100 % of it")
    assert caplog.records[-1].getMessage() == "100 % of it"
    assert visible_log("fedvlp.tests.log") is logging.getLogger("fedvlp.tests.log")
    assert len(log.filters) == 1, "however often it is asked for"


def test_every_module_that_warns_logs_so():
    for path in Path(fedvlp.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"\blog\.(warning|info|error)\(", text):
            assert "log = visible_log(__name__)" in text, path
