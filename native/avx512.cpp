// For processors with AVX-512 (F and DQ).
#include "kernel.hpp"
