#define GRADSYNC_KERNEL_TABLE kAvx512Kernels
#include "base/kernels_body.inc"
