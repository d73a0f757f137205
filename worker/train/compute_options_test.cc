#include "worker/train/compute_options.h"

#include "ATen/Context.h"
#include "ATen/Parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr c10::DeviceType kCpu = c10::DeviceType::CPU;
constexpr c10::DeviceType kCuda = c10::DeviceType::CUDA;

TEST(PrecisionTest, NamesAreReadAsTheyAreWritten) {
  for (Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
    EXPECT_EQ(ParsePrecision(PrecisionName(precision)).value(), precision);
  }
  const absl::Status status = ParsePrecision("fp8").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("--precision"), HasSubstr("fp8")));
}

TEST(PrecisionTest, OnlyFp16NeedsAGpu) {
  EXPECT_TRUE(CheckPrecision(Precision::kFp32, kCpu).ok());
  EXPECT_TRUE(CheckPrecision(Precision::kBf16, kCpu).ok());
  EXPECT_TRUE(CheckPrecision(Precision::kFp16, kCuda).ok());
  const absl::Status status = CheckPrecision(Precision::kFp16, kCpu);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("--precision"), HasSubstr("needs a GPU")));
}

TEST(PrecisionTest, Tf32IsAllowedOnAGpuAndOnlyWhenAskedFor) {
  EXPECT_TRUE(ApplyMathFlags(true, kCuda).ok());
  EXPECT_TRUE(at::globalContext().allowTF32CuBLAS());
  EXPECT_TRUE(at::globalContext().allowTF32CuDNN());
  EXPECT_TRUE(ApplyMathFlags(false, kCuda).ok());
  EXPECT_FALSE(at::globalContext().allowTF32CuBLAS());
  EXPECT_FALSE(at::globalContext().allowTF32CuDNN());
}

TEST(PrecisionTest, Tf32WithoutAGpuIsRefused) {
  EXPECT_TRUE(ApplyMathFlags(false, kCpu).ok());
  const absl::Status status = ApplyMathFlags(true, kCpu);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("--tf32"), HasSubstr("found the device cpu")));
}

TEST(PrecisionTest, CudnnTriesAlgorithmsOnAGpuWhereThatIsAskedFor) {
  LetCudnnTryAlgorithms(true, kCpu);
  EXPECT_FALSE(at::globalContext().benchmarkCuDNN());
  LetCudnnTryAlgorithms(true, kCuda);
  EXPECT_TRUE(at::globalContext().benchmarkCuDNN());
  LetCudnnTryAlgorithms(false, kCuda);
  EXPECT_FALSE(at::globalContext().benchmarkCuDNN());
}

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
