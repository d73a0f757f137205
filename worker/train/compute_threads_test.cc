#include "worker/train/compute_threads.h"

#include "ATen/Parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

// OpenBLAS took all cores for each matrix product, whatever LibTorch was told.
TEST(ComputeThreadsTest, LibTorchAndItsBlasHaveAsManyAsTheyAreTold) {
  for (int threads : {1, 2, 1}) {
    SetComputeThreads(threads);
    EXPECT_EQ(at::get_num_threads(), threads);
    // 0: LibTorch from pip, whose BLAS is MKL.
    EXPECT_THAT(OpenBlasThreads(), testing::AnyOf(0, threads));
  }
}

}  // namespace
}  // namespace gradsync
