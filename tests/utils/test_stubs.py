"""The public names: one list, which imports nothing until a name is asked for."""

from __future__ import annotations

import subprocess
import sys

import fedvlp
from fedvlp.utils.stubs import exported_names


def test_names_are_read_and_sorted(tmp_path):
    stub = tmp_path / "stub.pyi"
    stub.write_text("from a.b import name as name\nfrom a import Kind as Kind\nfrom c import PI as PI\n")
    assert list(exported_names(stub).items()) == [("PI", "c"), ("Kind", "a"), ("name", "a.b")]


def test_every_public_name_is_there():
    for name in fedvlp.__all__:
        assert getattr(fedvlp, name) is not None
    assert set(fedvlp.__all__) <= set(dir(fedvlp))


def test_importing_the_package_imports_no_torch():
    code = "import fedvlp, sys; assert 'TRIP' in dir(fedvlp); assert 'torch' not in sys.modules; fedvlp.TRIP"
    subprocess.run([sys.executable, "-c", code], check=True)
