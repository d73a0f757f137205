#define GRADSYNC_KERNEL_TABLE kBaselineKernels
#include "core/base/kernels_body.inc"
