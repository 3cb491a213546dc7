// For processors with AVX2 and FMA.
#include "kernel.hpp"
