"""Many defenses measured alike: rows, their cost, and the sortable page."""
