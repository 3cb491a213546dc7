"""What the paper published: published.toml, read by vqshield.reproduction.published."""
