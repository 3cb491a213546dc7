"""Adapters to other libraries, one a file or folder, imported only when asked for.

Importing one whose library is not installed raises a MissingExtraError that names the extra.
"""

from vqshield.core.entry_points import require as require
