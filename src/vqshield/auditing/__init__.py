"""Red flags: can a robust accuracy be believed? Ten checks with figures, for any classifier and defense."""

from vqshield.auditing.auditor import QUICK, Audit, AuditSettings, audit
from vqshield.auditing.flags import FAIL, NOT_RUN, PASS, TITLES, Accuracy, Flag

__all__ = [
    "FAIL", "NOT_RUN", "PASS", "QUICK", "TITLES", "Accuracy", "Audit", "AuditSettings", "Flag", "audit",
]  # fmt: skip
