"""The exceptions this library raises.

VqshieldError
├── InvalidInputError (also a ValueError)  a setting or tensor that cannot work; names the value and what can
│   └── NoGradientError                    a model whose answers have no gradient towards its images
├── MissingExtraError (also an ImportError) an optional package is needed; names the pip command
└── FileFormatError   (also a ValueError)  a data, weight or image file is broken or of another kind
"""

import unicodedata


class VqshieldError(Exception):
    """Base of every error that vqshield raises on purpose."""

    def __str__(self) -> str:
        # Messages quote file names and file contents, which must not be able to steer a terminal.
        return "\n".join(map(printable, super().__str__().split("\n")))


class InvalidInputError(VqshieldError, ValueError):
    """A setting or tensor cannot be used; the message names the value and what would be valid."""

    def __str__(self) -> str:
        return printable(Exception.__str__(self))


class NoGradientError(InvalidInputError):
    """A model's answers have no gradient towards its images, and something needs one."""


class FileFormatError(VqshieldError, ValueError):
    """A file is missing parts, broken, or not of the kind it was opened as."""

    def __str__(self) -> str:
        return printable(Exception.__str__(self))


class MissingExtraError(VqshieldError, ImportError):
    """An optional package is not installed.

    Args:
        package: what is missing.
        extra: the extra of vqshield that brings it, or another distribution, as in "./deploy[onnx]".
    """

    def __init__(self, package: str, extra: str) -> None:
        target = f'"{extra}"' if extra.startswith("./") else f'".[{extra}]"'
        super().__init__(
            f"{package} is not installed; in a clone of vqshield, get it with: "
            f"pip install {target} -c constraints.txt",
            name=package,
        )


def printable(text: object) -> str:
    r"""The text on one line, with control, bidirectional and undecodable characters as escapes (\x1b)."""
    return "".join(
        ascii(each)[1:-1] if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp") else each
        for each in str(text)
    )
