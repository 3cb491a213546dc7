// For any processor: SSE2 on x86-64, NEON on ARM.
#include "kernel.hpp"
