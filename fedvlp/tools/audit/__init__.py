"""Audits: images and memberships that a client's upload reveals."""

from fedvlp.tools.audit.command import KINDS, audit, audit_table, write_audit
from fedvlp.tools.audit.inversion import InversionOptions
from fedvlp.tools.audit.membership import MembershipOptions

__all__ = ["KINDS", "InversionOptions", "MembershipOptions", "audit", "audit_table", "write_audit"]
