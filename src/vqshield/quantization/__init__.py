"""The quantizers' arithmetic: patches, noise, k-means and its kernels, as torch operators."""
