"""The paper's tables and figures, measured again beside what it published.

experiments  an experiment file (TOML) → Experiment: one table or figure, with its parts
parts/       a Part is one data set and one way of measuring it: which studies it takes, what their records
say targets      which images and which classifier stand for a data set of the paper
published    the paper's own values, transcribed in paper/published.toml
runner       Reproduction: runs the studies of an experiment, each into its own folder, and sums them up
model        Summary: what was found, as reports are given it
"""
