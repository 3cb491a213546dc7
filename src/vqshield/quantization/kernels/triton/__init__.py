"""The quantizers on a GPU, in Triton: images that no CUDA kernel serves, and the soft surrogate's gradient.

Nothing here can be imported where triton is not installed. The GPU backend is kernels/gpu.py.
"""
