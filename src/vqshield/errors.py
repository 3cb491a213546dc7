"""The exceptions this library raises.

VqshieldError
├── InvalidInputError (also a ValueError)  a setting or tensor that cannot work; names the value and what can
├── MissingExtraError (also an ImportError) an optional package is needed; names the pip command
└── FileFormatError   (also a ValueError)  a data, weight or image file is broken or of another kind
"""


class VqshieldError(Exception):
    """Base of every error that vqshield raises on purpose."""


class InvalidInputError(VqshieldError, ValueError):
    """A setting or tensor cannot be used; the message names the value and what would be valid."""


class FileFormatError(VqshieldError, ValueError):
    """A file is missing parts, broken, or not of the kind it was opened as."""


class MissingExtraError(VqshieldError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed; get it with: pip install 'vqshield[{extra}]'", name=package
        )
