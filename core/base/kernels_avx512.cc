#define GRADSYNC_KERNEL_TABLE kAvx512Kernels
#include "core/base/kernels_body.inc"
