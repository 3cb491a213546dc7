"""The paper's tables and figures: a TOML file each, in experiments/paper, and what makes figures of them."""
