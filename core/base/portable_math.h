// Powers and cosines with the same bits on every host.
//
// The C library chooses its code by the CPU, with or without fused multiply-add, and by its version,
// so its pow() and cos() may round differently on two hosts of one job. Values that all ranks must
// have alike (learning rates, Adam's bias corrections) are computed by these functions instead. They
// use the basic operations of IEEE doubles alone, whose results the standard prescribes.
//
// Results are computed to about 100 bits and rounded once, so hardly ever differ from the exact value
// rounded to a double. Those of the C library do for about one argument in a thousand, by one unit in
// the last place.

#ifndef GRADSYNC_CORE_BASE_PORTABLE_MATH_H_
#define GRADSYNC_CORE_BASE_PORTABLE_MATH_H_

#include <cstdint>

namespace gradsync {

// `base` to the power `exponent`, both finite and at least 0; 1 for 0 to the power 0. Thread-safe.
double PortablePow(double base, double exponent);

// The same for a whole exponent, which is faster.
double PortablePow(double base, int64_t exponent);

// The cosine of `x`, -4 to 4, in radians. Thread-safe.
double PortableCos(double x);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_PORTABLE_MATH_H_
