"""The quantizers on NVIDIA GPUs in CUDA C++, where Triton is too slow; kernels/gpu.py uses them.

resident.cu has the whole defense of small images in a multiprocessor's own memory; strips.cu has k-means and
labels of large images. emulated.hpp runs both on a CPU, for tests.
"""
