"""What everything else stands on: errors, checks, settings, seeds, files, serialization, devices."""
