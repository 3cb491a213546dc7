"""The quantizers on a GPU, in Triton: images that no CUDA kernel serves.

launch.py       which kernels run, on how many programs
workspace.py    what the kernels work in, and the block sizes
tiles.py        noisy patches, stored for k-means or labelled where they are made
start.py        the patches that k-means starts from
rounds.py       Lloyd's rounds
rebuild.py      images from labels; after CUDA kernels for large images too
parts.py        what several of them share
noise.py        the random numbers
soft.py         the soft surrogate's gradient: its launches
soft_kernels.py and its kernels

Only workspace.py can be imported where triton is not installed. The GPU backend is kernels/gpu.py.
"""
