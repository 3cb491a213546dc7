"""The paper's results, measured again and compared with the published values.

experiments  an experiment file (TOML) → Experiment: one table or plot, with its parts
parts/       a Part is one data set and one way of measuring it: which studies it takes, what their records
say targets      the images and the classifier that are used for a data set of the paper
published    the paper's own values, transcribed in paper/published.toml
runner       Reproduction: runs the studies of an experiment, each into its own folder, and sums them up
model        Summary: what was found, as reports are given it
"""
