"""What the paper published: published.toml, read by vqshield_paper.reproduction.published."""
