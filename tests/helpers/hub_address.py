"""Lets huggingface_hub ask a stand-in of the hub instead of the hub."""

from __future__ import annotations

import pytest


def ask_at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the address that the client reads from HF_ENDPOINT when it is imported."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
