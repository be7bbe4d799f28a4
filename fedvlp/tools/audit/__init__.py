"""What a client's upload tells: images, members, words. Imports clip, core, data, explain, report and utils."""

from fedvlp.tools.audit.audit import AUDITS, Audit, audit
from fedvlp.tools.audit.inversion import InversionOptions
from fedvlp.tools.audit.membership import MembershipOptions
from fedvlp.tools.audit.method import AuditedMethod, AuditRequest
from fedvlp.tools.audit.output import audit_csv, audit_table, write_audit

__all__ = [
    "AUDITS",
    "Audit",
    "AuditRequest",
    "AuditedMethod",
    "InversionOptions",
    "MembershipOptions",
    "audit",
    "audit_csv",
    "audit_table",
    "write_audit",
]
