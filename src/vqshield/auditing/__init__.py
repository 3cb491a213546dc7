"""Can a robust accuracy be believed? Fourteen checks with numbers, for any classifier and defense."""

from vqshield.auditing.auditor import PARTS, audit
from vqshield.auditing.flags import LEAST_IMAGES, POWER, TITLES
from vqshield.auditing.results import (
    FAIL,
    NOT_RUN,
    PASS,
    QUICK,
    SUSPICIOUS,
    UNDECIDED,
    Agreement,
    Audit,
    AuditReport,
    AuditSettings,
    Flag,
    Uncertain,
    read_audit,
)

__all__ = [
    "FAIL", "LEAST_IMAGES", "NOT_RUN", "PARTS", "PASS", "POWER", "QUICK", "SUSPICIOUS", "TITLES", "UNDECIDED",
    "Agreement", "Audit", "AuditReport", "AuditSettings", "Flag", "Uncertain", "audit", "read_audit",
]  # fmt: skip
