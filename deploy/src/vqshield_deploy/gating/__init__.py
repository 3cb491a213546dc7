"""Compare finished runs image by image, and fail a build only where a drop is more than noise."""
