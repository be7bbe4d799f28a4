"""Units and compose files start the processes of the page, without unneeded rights."""

import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from textwrap import indent

import pytest
import yaml

from tests.helpers.documents import ROOT, Document

FOLDER = ROOT / "docs" / "deploy"
UNITS = sorted(FOLDER.glob("*.service"))
SITE = "fedvlp-site.service"
SERVICES = {
    name: service
    for path in FOLDER.glob("*.compose.yaml")
    for name, service in yaml.safe_load(path.read_text(encoding="utf-8"))["services"].items()
}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_without_privileges_and_restarts(path, tmp_path):
    unit = ConfigParser(strict=False, interpolation=None, delimiters="=")
    unit.read_string(path.read_text(encoding="utf-8"))
    service = unit["Service"]
    assert service["User"] == "federation"
    assert (service["Restart"], unit["Unit"]["StartLimitIntervalSec"]) == ("always", "0")
    assert (service["ProtectSystem"], service["StateDirectory"]) == ("strict", "fedvlp")
    assert not {"readwritepaths", "ambientcapabilities"} & set(service)
    assert path.name == SITE or "--host 127.0.0.1" in service["ExecStart"]
    if shutil.which("systemd-analyze"):
        copy = tmp_path / path.name
        copy.write_text(re.sub(r"/opt/fedvlp/bin/\S+", sys.executable, path.read_text(encoding="utf-8")))
        verified = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
        assert (verified.returncode, verified.stderr) == (0, "")


@pytest.mark.parametrize("name", ["superlink", "proxy", "site"])
def test_a_container_runs_without_privileges_and_restarts(name):
    service = SERVICES[name]
    assert service["user"] == "1000:1000"
    assert service["read_only"] is True
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert (service["restart"], service["tmpfs"]) == ("always", ["/tmp"])
    written = [volume for volume in service["volumes"] if not volume.endswith(":ro")]
    assert written == {"superlink": ["./state:/state"], "proxy": [], "site": ["./home:/home/site"]}[name]
    # The proxy shares the SuperLink's network, which publishes its port; a site has none.
    assert service.get("ports", []) == (["8443:8443"] if name == "superlink" else [])


def test_unit_and_container_start_a_site_alike():
    unit = (FOLDER / SITE).read_text(encoding="utf-8").replace("\\\n", " ")
    words = shlex.split(re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE).group(1))
    service = SERVICES["site"]
    assert words[1:3] == service["entrypoint"][1:3]
    assert words[4::2] == [option.partition("=")[0] for option in service["command"]]


def test_the_page_shows_the_proxy():
    (block,) = Document(ROOT / "docs" / "sites.md").blocks("nginx")
    assert indent(block, "    ") in (FOLDER / "nginx.conf").read_text(encoding="utf-8")
