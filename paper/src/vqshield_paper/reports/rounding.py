"""How many digits of a measured value are worth printing.

Two digits of a standard error, and of the value as many decimals as these two digits have: more would be
noise. A share of N images has a standard error of up to 50/√N points, so it is printed without decimals up to
N = 25, with one up to N = 2,500, and with two above.
"""

import math

MINUS = "\N{MINUS SIGN}"


def error_decimals(error: float) -> int:
    """Decimals that show two digits of a standard error: 17.7 → 0, 1.58 → 1, 0.5 → 2."""
    return max(0, 1 - math.floor(math.log10(error)))


def share_decimals(images: int) -> int:
    """Decimals of a percentage of that many images, whatever it is: 8 → 0, 200 → 1, 10,000 → 2."""
    return error_decimals(50 / math.sqrt(images))


def signed(value: float, places: int) -> str:
    """A difference with its sign, and a zero without one."""
    text = f"{abs(value):.{places}f}"
    return text if not float(text) else f"{MINUS if value < 0 else '+'}{text}"
