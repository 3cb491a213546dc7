"""The quantizers on a GPU, in Triton.

backend.py      what the registry of backends knows
launch.py       which kernels run, on how many programs
workspace.py    what the kernels work in, and the block sizes
small.py        kernels for small images of few codes: one program an image
selective.py    k-means that looks again only at patches which can change
tiles.py        noisy patches, stored for k-means or labelled where they are made
strips.py       kernels for large images: one program a strip of an image
parts.py        the steps that both are made of
noise.py        the random numbers
soft.py         the soft surrogate's gradient: its launches
soft_kernels.py and its kernels

Only backend.py and workspace.py can be imported where triton is not installed.
"""
