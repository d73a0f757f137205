#define GRADSYNC_KERNEL_TABLE kAvx2Kernels
#include "core/base/kernels_body.inc"
