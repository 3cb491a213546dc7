"""Codebooks on NVIDIA GPUs, in CUDA C++: what Triton cannot say quickly enough.

program.py      kernels compiled for the GPU at hand, by the compiler that torch brings, and launched
resident.py     which codebooks resident.cu finds, and how it is launched
resident.cu     k-means in a multiprocessor's own memory, for small images
noise.cuh       the random numbers
device.cuh      what the kernels need of a GPU
emulated.hpp    the same on a CPU, for tests

The Triton backend uses them where it can.
"""
