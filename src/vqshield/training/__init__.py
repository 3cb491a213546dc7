"""Training, hardening and calibration of the classifiers that the defenses shield."""
