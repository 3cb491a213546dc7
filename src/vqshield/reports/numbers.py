"""Numbers as tables show them."""


def percent(fraction: float) -> str:
    """0.6734 as 67.3, the way tables of accuracies show it."""
    return f"{100 * fraction:.1f}"


def duration(seconds: float) -> str:
    """Seconds the way a person would say them."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
