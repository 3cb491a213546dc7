"""The quantizers on NVIDIA GPUs, in CUDA C++: what Triton cannot say quickly enough.

program.py      kernels compiled for the GPU at hand, by the compiler that torch brings, and launched
shapes.py       what they are compiled for and told about images, and whether they can serve them
resident.py     small images: the launch of resident.cu
resident.cu     the whole defense in a multiprocessor's own memory
strips.py       large images: the launches of strips.cu
strips.cu       k-means and labels by strips of patches
clusters.cuh    Lloyd's rounds, for both
products.cuh    patches and centres for the matrix units, and distances between them
noise.cuh       the random numbers
device.cuh      what the kernels need of a GPU
emulated.hpp    the same on a CPU, for tests

The GPU backend (kernels/gpu.py) uses them where it can.
"""
