"""Lets huggingface_hub ask a stand-in of the hub instead of the hub."""

from __future__ import annotations

import pytest


def ask_at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the address that the client reads from HF_ENDPOINT when it is imported."""
    from huggingface_hub import constants, file_download

    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    for module in (constants, file_download):  # huggingface_hub 0.30 has a name of its own for it in the latter
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
