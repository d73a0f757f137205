#define GRADSYNC_KERNEL_TABLE kAvx2Kernels
#include "base/kernels_body.inc"
