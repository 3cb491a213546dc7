"""Studies: what is measured, one file each."""
