"""What a GPU's kernels are compiled for and told about images: their shape, the recipe and the codes."""

from dataclasses import dataclass
from functools import cached_property

from vqshield.quantization.kernels.base import Recipe
from vqshield.quantization.patches import Sliding


@dataclass(frozen=True)
class Shape:
    """Images of one shape, with one recipe and number of codes."""

    recipe: Recipe
    codes: int
    channels: int
    height: int
    width: int

    @cached_property
    def patches(self) -> int:
        """n, the number of patches in an image."""
        return self.recipe.grid.count(self.height, self.width)

    @cached_property
    def dimensions(self) -> int:
        """d, the number of values in a patch."""
        return self.recipe.grid.dimensions(self.channels)

    @cached_property
    def rows(self) -> int:
        """Of patches."""
        return self.recipe.grid.shape(self.height, self.width)[0]

    @cached_property
    def columns(self) -> int:
        """Of patches."""
        return self.recipe.grid.shape(self.height, self.width)[1]

    @cached_property
    def is_sliding(self) -> bool:
        """Whether patches overlap."""
        return isinstance(self.recipe.grid, Sliding)
