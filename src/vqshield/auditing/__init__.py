"""Red flags: can a robust accuracy be believed? Checks with figures, for any classifier and defense."""

from vqshield.auditing.auditor import PARTS, audit
from vqshield.auditing.flags import LEAST_IMAGES, POWER, TITLES
from vqshield.auditing.results import (
    FAIL,
    NOT_RUN,
    PASS,
    SUSPICIOUS,
    UNDECIDED,
    Agreement,
    Audit,
    AuditReport,
    Flag,
    Uncertain,
    read_audit,
)
from vqshield.auditing.settings import QUICK, AuditSettings

__all__ = [
    "FAIL",
    "LEAST_IMAGES",
    "NOT_RUN",
    "PARTS",
    "PASS",
    "POWER",
    "QUICK",
    "SUSPICIOUS",
    "TITLES",
    "UNDECIDED",
    "Agreement",
    "Audit",
    "AuditReport",
    "AuditSettings",
    "Flag",
    "Uncertain",
    "audit",
    "read_audit",
]  # fmt: skip
