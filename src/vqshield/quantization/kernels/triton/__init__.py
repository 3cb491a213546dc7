"""The quantizers on a GPU, in Triton: images that no CUDA kernel serves.

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

The GPU backend (kernels/gpu.py) uses them where no CUDA kernel serves, and for rebuilding large images.
Only workspace.py can be imported where triton is not installed.
"""
