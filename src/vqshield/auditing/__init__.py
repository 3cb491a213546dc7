"""Red flags: can a robust accuracy be believed? Checks with figures, for any classifier and defense."""

from vqshield.auditing.auditor import audit
from vqshield.auditing.flags import TITLES
from vqshield.auditing.results import (
    FAIL,
    NOT_RUN,
    PASS,
    Accuracy,
    Agreement,
    Audit,
    AuditReport,
    Estimate,
    Flag,
    read_audit,
)
from vqshield.auditing.run import check_audit, run_audit
from vqshield.auditing.settings import QUICK, AuditSettings

__all__ = [
    "FAIL", "NOT_RUN", "PASS", "QUICK", "TITLES", "Accuracy", "Agreement", "Audit", "AuditReport",
    "AuditSettings", "Estimate", "Flag", "audit", "check_audit", "read_audit", "run_audit",
]  # fmt: skip
