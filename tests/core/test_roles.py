"""The tables of roles and protocols contain all names used in options and metrics."""

from typing import get_args

from fedvlp.core.roles import BASELINES, PROTOCOLS, ROLES, BaselineName, MeasuredRole, ProtocolName


def test_each_name_has_one_row():
    assert {name for name, role in ROLES.items() if not role.is_computed} == set(get_args(MeasuredRole))
    assert set(PROTOCOLS) == set(get_args(ProtocolName))
    assert set(BASELINES) == set(get_args(BaselineName))
    assert [name for name, role in ROLES.items() if role.selects] == ["validation"]


def test_protocols_refer_to_existing_roles():
    for protocol in PROTOCOLS.values():
        assert {protocol.role, protocol.scored_role, *protocol.columns.values()} <= set(ROLES)
