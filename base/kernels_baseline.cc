#define GRADSYNC_KERNEL_TABLE kBaselineKernels
#include "base/kernels_body.inc"
