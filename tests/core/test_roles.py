"""The tables of roles and protocols cover the names that options and metrics have."""

from typing import get_args

from fedvlp.core.roles import BASELINES, PROTOCOLS, ROLES, BaselineName, MeasuredRole, ProtocolName


def test_each_name_has_one_row():
    assert {name for name, role in ROLES.items() if not role.is_computed} == set(get_args(MeasuredRole))
    assert set(PROTOCOLS) == set(get_args(ProtocolName))
    assert set(BASELINES) == set(get_args(BaselineName))
    assert [name for name, role in ROLES.items() if role.selects] == ["validation"]


def test_protocols_name_roles():
    for protocol in PROTOCOLS.values():
        assert {protocol.role, protocol.scored_role, *protocol.columns.values()} <= set(ROLES)
