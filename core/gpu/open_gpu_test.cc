#include "core/gpu/open_gpu.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/kernels.h"
#include "core/gpu/fake_gpu.h"
#include "core/gpu/gpu_resources.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

#ifndef GRADSYNC_CUDA

TEST(OpenGpuTest, ABuildWithoutCudaSaysHowToMakeOneWithIt) {
  const absl::Status status = OpenGpu(0).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("tools/setup --cuda"));
  EXPECT_THAT(status.message(), HasSubstr("bazel build --config=cuda"));
  EXPECT_THAT(status.message(), Not(HasSubstr("\n")));
  EXPECT_EQ(CheckGpu(0), status);
}

#else

TEST(OpenGpuTest, AMachineWithoutGpuIsNotFoundInOneLine) {
  const absl::Status status = OpenGpu(0).status();
  if (status.ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("this machine "));
  EXPECT_THAT(status.message(), Not(HasSubstr("\n")));
}

// What needs a GPU; skipped without one.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::shared_ptr<GpuApi> > gpu = OpenGpu(0);
    if (absl::IsNotFound(gpu.status())) GTEST_SKIP() << gpu.status();
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    gpu_ = *std::move(gpu);
    stream_ = *ScopedStream::Create(gpu_);
    done_ = *ScopedEvent::Create(gpu_);
  }

  std::shared_ptr<GpuMemory> Upload(const std::vector<float>& values) {
    const size_t bytes = values.size() * sizeof(float);
    const auto staging = *GpuMemory::Pinned(gpu_, bytes);
    auto memory = *GpuMemory::OnDevice(gpu_, bytes);
    if (bytes > 0) std::memcpy(staging->data(), values.data(), bytes);
    EXPECT_EQ(gpu_->Copy(memory->data(), staging->data(), bytes, stream_.get()), absl::OkStatus());
    Finish();
    return memory;
  }

  std::vector<float> Download(const GpuMemory& memory) {
    const auto staging = *GpuMemory::Pinned(gpu_, memory.bytes());
    EXPECT_EQ(gpu_->Copy(staging->data(), memory.data(), memory.bytes(), stream_.get()),
              absl::OkStatus());
    Finish();
    return std::vector<float>(staging->floats(), staging->floats() + memory.bytes() / 4);
  }

  void Finish() {
    ASSERT_EQ(gpu_->Record(done_.get(), stream_.get()), absl::OkStatus());
    ASSERT_EQ(gpu_->Synchronize(done_.get()), absl::OkStatus());
    EXPECT_TRUE(*gpu_->Done(done_.get()));
  }

  std::shared_ptr<GpuApi> gpu_;
  ScopedStream stream_;
  ScopedEvent done_;
};

std::vector<float> Values(uint32_t seed, size_t n) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> exponent(-35, 5);
  std::normal_distribution<float> mantissa;
  std::vector<float> values(n);
  for (float& value : values) value = std::ldexp(mantissa(random), exponent(random));
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

const size_t kSizes[] = {0, 1, 15, 16, 17, 4095, 4096, 4097, 1'000'003, 20'000'001};

TEST_F(GpuTest, ANumberThatIsNotThereIsRefusedWithThoseThatAre) {
  const absl::Status status = OpenGpu(1000).status();
  EXPECT_EQ(CheckGpu(1000), status);
  EXPECT_EQ(CheckGpu(0), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("GPU 1000: expected a number from 0 to "));
}

TEST_F(GpuTest, MemoryIsZeroedAndAligned) {
  for (const size_t bytes : {size_t{0}, size_t{4}, size_t{1} << 20}) {
    const auto memory = *GpuMemory::OnDevice(gpu_, bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 256, 0u);
    EXPECT_EQ(Download(*memory), std::vector<float>(bytes / 4, 0.0f));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(GpuMemory::OnDevice(gpu_, size_t{1} << 50).status()));
}

TEST_F(GpuTest, SgdGivesTheBitsOfTheCpuKernel) {
  for (const size_t n : kSizes) {
    for (const bool nesterov : {false, true}) {
      for (const double momentum : {0.0, 0.9}) {
        std::vector<float> param = Values(1, n), buffer(n);
        const auto device_param = Upload(param), device_buffer = Upload(buffer);
        for (const bool first_step : {true, false}) {
          const std::vector<float> grad = Values(2 + first_step, n);
          const auto device_grad = Upload(grad);
          const SgdCoefficients c =
              MakeSgdCoefficients(0.1, momentum, 0.2, 5e-4, nesterov, first_step);
          ASSERT_EQ(
              gpu_->SgdStep(c, device_param->floats(), device_grad->floats(),
                            momentum == 0 ? nullptr : device_buffer->floats(), n, stream_.get()),
              absl::OkStatus());
          SgdStep(c, param.data(), grad.data(), buffer.data(), n);
          Finish();
        }
        EXPECT_TRUE(SameBits(Download(*device_param), param)) << n;
        EXPECT_TRUE(SameBits(Download(*device_buffer), buffer)) << n;
      }
    }
  }
}

TEST_F(GpuTest, AdamGivesTheBitsOfTheCpuKernel) {
  for (const size_t n : kSizes) {
    for (const AdamDecay kind : {AdamDecay::kAddedToGradient, AdamDecay::kDecoupled}) {
      std::vector<float> param = Values(4, n), average(n), squares(n);
      const auto device_param = Upload(param);
      const auto device_average = Upload(average), device_squares = Upload(squares);
      for (const int64_t step : {1, 2, 3}) {
        const std::vector<float> grad = Values(static_cast<uint32_t>(4 + step), n);
        const auto device_grad = Upload(grad);
        const AdamCoefficients c = MakeAdamCoefficients(1e-3, 0.9, 0.999, 1e-8, 1e-2, kind, step);
        ASSERT_EQ(
            gpu_->AdamStep(c, device_param->floats(), device_grad->floats(),
                           device_average->floats(), device_squares->floats(), n, stream_.get()),
            absl::OkStatus());
        AdamStep(c, param.data(), grad.data(), average.data(), squares.data(), n);
        Finish();
      }
      EXPECT_TRUE(SameBits(Download(*device_param), param)) << n;
      EXPECT_TRUE(SameBits(Download(*device_average), average)) << n;
      EXPECT_TRUE(SameBits(Download(*device_squares), squares)) << n;
    }
  }
}

TEST_F(GpuTest, ScaleTwiceGivesTheBitsOfTheCpuKernel) {
  for (const size_t n : kSizes) {
    std::vector<float> x = Values(8, n);
    const auto device = Upload(x);
    ASSERT_EQ(gpu_->ScaleTwice(device->floats(), n, 1.0f / 3, 1.0f / 7, stream_.get()),
              absl::OkStatus());
    ScaleTwice(x.data(), n, 1.0f / 3, 1.0f / 7);
    EXPECT_TRUE(SameBits(Download(*device), x)) << n;
  }
}

TEST_F(GpuTest, ScaleByReadsItsFactorWhenItsTurnComes) {
  const auto factor = *GpuMemory::Pinned(gpu_, sizeof(float));
  for (const size_t n : kSizes) {
    std::vector<float> x = Values(10, n);
    const auto device = Upload(x);
    *factor->floats() = 0;
    ASSERT_EQ(gpu_->RunOnHost([&] { *factor->floats() = 1.0f / 7; }, stream_.get()),
              absl::OkStatus());
    ASSERT_EQ(gpu_->ScaleBy(device->floats(), n, factor->floats(), stream_.get()),
              absl::OkStatus());
    Scale(x.data(), n, 1.0f / 7);
    EXPECT_TRUE(SameBits(Download(*device), x)) << n;
  }
}

TEST_F(GpuTest, SumOfSquaresGivesTheBitsOfTheCpuKernel) {
  const auto sum = *GpuMemory::Pinned(gpu_, sizeof(double));
  for (const size_t n : kSizes) {
    const std::vector<float> x = Values(9, n);
    const auto device = Upload(x);
    ASSERT_EQ(
        gpu_->SumOfSquares(device->floats(), n, static_cast<double*>(sum->data()), stream_.get()),
        absl::OkStatus());
    Finish();
    EXPECT_EQ(*static_cast<double*>(sum->data()), SumOfSquares(x.data(), n)) << n;
  }
}

TEST_F(GpuTest, SumsOfSquaresGiveTheBitsOfTheCpuKernelForEachPiece) {
  constexpr size_t kElements = 1'000'003;
  const std::vector<float> x = Values(12, kElements);
  const auto device = Upload(x);
  std::vector<SquaresPiece> cut;
  std::vector<double> expected;
  const size_t sizes[] = {65'536, 0, 1, 4097, 15, 16, 300'000};
  for (size_t begin = 0; begin < kElements;) {
    const size_t size = std::min(sizes[cut.size() % 7], kElements - begin);
    cut.push_back({device->floats() + begin, static_cast<int64_t>(size)});
    expected.push_back(SumOfSquares(x.data() + begin, size));
    begin += size;
  }
  const auto pieces = *GpuMemory::Pinned(gpu_, cut.size() * sizeof(SquaresPiece));
  std::memcpy(pieces->data(), cut.data(), cut.size() * sizeof(SquaresPiece));
  const auto sums = *GpuMemory::Pinned(gpu_, cut.size() * sizeof(double));
  ASSERT_EQ(gpu_->SumsOfSquares(static_cast<const SquaresPiece*>(pieces->data()), cut.size(),
                                static_cast<double*>(sums->data()), stream_.get()),
            absl::OkStatus());
  Finish();
  const double* const found = static_cast<const double*>(sums->data());
  EXPECT_EQ(std::vector<double>(found, found + cut.size()), expected);
}

TEST_F(GpuTest, KernelsGiveTheSameBitsAtAddressesThatVectorsDoNotFit) {
  constexpr size_t kElements = 10'007;
  for (const size_t param_at : {0, 1, 2, 3}) {
    for (const size_t grad_at : {0, 3}) {
      std::vector<float> param = Values(21, kElements + 8), grad = Values(22, kElements + 8);
      std::vector<float> buffer(kElements + 8), squares(kElements + 8);
      const auto device_param = Upload(param), device_grad = Upload(grad);
      const auto device_buffer = Upload(buffer), device_squares = Upload(squares);
      float* const p = device_param->floats() + param_at;
      const float* const g = device_grad->floats() + grad_at;
      float* const b = device_buffer->floats() + param_at;
      float* const v = device_squares->floats() + param_at;
      const SgdCoefficients sgd = MakeSgdCoefficients(0.1, 0.9, 0, 5e-4, true, true);
      const AdamCoefficients adam =
          MakeAdamCoefficients(1e-3, 0.9, 0.999, 1e-8, 1e-2, AdamDecay::kDecoupled, 3);
      ASSERT_EQ(gpu_->ScaleTwice(p, kElements, 1.0f / 3, 1.0f / 7, stream_.get()),
                absl::OkStatus());
      ASSERT_EQ(gpu_->SgdStep(sgd, p, g, b, kElements, stream_.get()), absl::OkStatus());
      ASSERT_EQ(gpu_->AdamStep(adam, p, g, b, v, kElements, stream_.get()), absl::OkStatus());
      ScaleTwice(param.data() + param_at, kElements, 1.0f / 3, 1.0f / 7);
      SgdStep(sgd, param.data() + param_at, grad.data() + grad_at, buffer.data() + param_at,
              kElements);
      AdamStep(adam, param.data() + param_at, grad.data() + grad_at, buffer.data() + param_at,
               squares.data() + param_at, kElements);
      EXPECT_TRUE(SameBits(Download(*device_param), param)) << param_at << " " << grad_at;
      EXPECT_TRUE(SameBits(Download(*device_buffer), buffer)) << param_at << " " << grad_at;
      EXPECT_TRUE(SameBits(Download(*device_squares), squares)) << param_at << " " << grad_at;
    }
  }
}

// Sources and destinations of a fold, one after the other in one memory, `gap` floats apart, and
// the same on the host.
struct FoldRows {
  std::shared_ptr<GpuMemory> device;
  std::vector<float> host;
  size_t gap = 0;

  std::vector<const float*> From(int rows, float* base) const {
    std::vector<const float*> from(rows);
    for (int k = 0; k < rows; ++k) from[k] = base + k * gap;
    return from;
  }
  std::vector<float*> To(int first, int rows, float* base) const {
    std::vector<float*> to(rows);
    for (int k = 0; k < rows; ++k) to[k] = base + (first + k) * gap;
    return to;
  }
};

// A cut at multiples of 16 and elsewhere, with empty pieces, each in an order of its own.
std::vector<FoldPiece> CutForFold(int64_t n, int sources) {
  std::vector<FoldPiece> pieces;
  const int64_t sizes[] = {16, 4096, 1, 0, 3, 100'000, 64, 30'011};
  for (int64_t begin = 0; begin < n;) {
    const int64_t size = std::min(sizes[pieces.size() % 8], n - begin);
    pieces.push_back({begin, size, static_cast<int>(pieces.size() % sources)});
    begin += size;
  }
  return pieces;
}

void FoldOnHost(const std::vector<FoldPiece>& pieces, std::vector<const float*> from,
                std::vector<float*> to, float a, float b) {
  for (const FoldPiece& piece : pieces) {
    std::vector<const float*> ins;
    for (size_t k = 0; k < from.size(); ++k) {
      ins.push_back(from[(piece.first + k) % from.size()] + piece.offset);
    }
    std::vector<float*> outs;
    for (float* out : to) outs.push_back(out + piece.offset);
    FoldMean(outs.data(), static_cast<int>(outs.size()), ins.data(), static_cast<int>(ins.size()),
             static_cast<size_t>(piece.count), a, b);
  }
}

TEST_F(GpuTest, FoldMeanGivesTheBitsOfTheCpuKernelInOneLaunch) {
  constexpr size_t kElements = 300'017;
  for (const int sources : {1, 2, 3, 4, 5, 6, 7, 8, 9, 64}) {
    // In place at the last source; elsewhere; to all sources; and addresses that differ mod 16.
    for (const int way : {0, 1, 2, 3}) {
      FoldRows rows;
      rows.gap = kElements + (way == 3 ? 1 : 15);  // 300'032 divides by 4
      rows.host = Values(static_cast<uint32_t>(sources), (sources + 2) * rows.gap);
      rows.device = Upload(rows.host);
      const int first = way == 0 ? sources - 1 : way == 2 ? 0 : sources;
      const int to = way == 0 ? 1 : way == 2 ? sources : 2;
      const std::vector<FoldPiece> cut = CutForFold(kElements, sources);
      const auto pieces = *GpuMemory::Pinned(gpu_, cut.size() * sizeof(FoldPiece));
      std::memcpy(pieces->data(), cut.data(), cut.size() * sizeof(FoldPiece));
      float* const base = rows.device->floats();
      ASSERT_EQ(gpu_->FoldMean(static_cast<const FoldPiece*>(pieces->data()), cut.size(),
                               rows.From(sources, base), rows.To(first, to, base), 1.0f / 3,
                               1.0f / 7, stream_.get()),
                absl::OkStatus());
      FoldOnHost(cut, rows.From(sources, rows.host.data()), rows.To(first, to, rows.host.data()),
                 1.0f / 3, 1.0f / 7);
      EXPECT_TRUE(SameBits(Download(*rows.device), rows.host)) << sources << ", way " << way;
    }
  }
}

TEST_F(GpuTest, FoldMeanTakesMoreOperandsThanTravelWithALaunchForAnError) {
  const auto memory = *GpuMemory::OnDevice(gpu_, 64);
  const std::vector<const float*> many(kMostFoldOperands + 1, memory->floats());
  const std::vector<float*> one = {memory->floats()};
  EXPECT_TRUE(absl::IsInvalidArgument(gpu_->FoldMean(nullptr, 0, many, one, 1, 1, stream_.get())));
  EXPECT_EQ(gpu_->FoldMean(nullptr, 0, {memory->floats()}, one, 1, 1, stream_.get()),
            absl::OkStatus());
}

TEST_F(GpuTest, BytesAreLookedUpInBothSizesAndOrders) {
  const size_t shapes[][3] = {{0, 3, 4}, {1, 1, 1}, {2, 3, 1024}, {3, 4, 5001}, {33, 3, 50176}};
  for (const auto& [images, channels, pixels] : shapes) {
    ImageLayout layout;
    layout.images = images;
    layout.channels = channels;
    layout.pixels = pixels;
    std::mt19937 random(static_cast<uint32_t>(pixels));
    const size_t n = layout.values();
    // As floats, since Upload() takes these.
    std::vector<float> bytes((n + 3) / 4), table(256 * channels);
    for (size_t i = 0; i < n; ++i) reinterpret_cast<uint8_t*>(bytes.data())[i] = random() & 255;
    for (float& value : table) value = static_cast<float>(random());
    const auto device_bytes = Upload(bytes), device_table = Upload(table);
    for (const size_t element_bytes : {2, 4}) {
      for (const bool channels_last : {false, true}) {
        layout.element_bytes = element_bytes;
        layout.channels_last = channels_last;
        const auto values = *GpuMemory::OnDevice(gpu_, (n + 1) / 2 * 2 * element_bytes);
        ASSERT_EQ(gpu_->LookUpBytes(layout, static_cast<const uint8_t*>(device_bytes->data()),
                                    device_table->data(), values->data(), stream_.get()),
                  absl::OkStatus());
        FakeGpu fake;
        std::vector<float> expected(values->bytes() / 4);
        ASSERT_EQ(fake.LookUpBytes(layout, reinterpret_cast<const uint8_t*>(bytes.data()),
                                   table.data(), expected.data(), nullptr),
                  absl::OkStatus());
        EXPECT_TRUE(SameBits(Download(*values), expected)) << images << " " << element_bytes;
      }
    }
  }
  ImageLayout layout;
  layout.images = layout.pixels = 1;
  layout.channels = 5;
  EXPECT_TRUE(
      absl::IsInternal(gpu_->LookUpBytes(layout, nullptr, nullptr, nullptr, stream_.get())));
}

TEST_F(GpuTest, StreamsWaitForEventsAndHostCallsKeepTheOrder) {
  const ScopedStream other = *ScopedStream::Create(gpu_);
  const ScopedEvent event = *ScopedEvent::Create(gpu_);
  EXPECT_TRUE(*gpu_->Done(event.get()));  // never recorded
  std::atomic<bool> go{false};
  std::atomic<int> order{0};
  int second = 0;
  ASSERT_EQ(gpu_->RunOnHost(
                [&] {
                  while (!go) std::this_thread::yield();
                  order = 1;
                },
                other.get()),
            absl::OkStatus());
  ASSERT_EQ(gpu_->Record(event.get(), other.get()), absl::OkStatus());
  ASSERT_EQ(gpu_->StreamWait(stream_.get(), event.get()), absl::OkStatus());
  ASSERT_EQ(gpu_->RunOnHost([&] { second = order; }, stream_.get()), absl::OkStatus());
  EXPECT_FALSE(*gpu_->Done(event.get()));
  go = true;
  Finish();
  EXPECT_EQ(second, 1);
}

TEST_F(GpuTest, RegisteredMemoryIsCopiedAndElapsedTimeIsThatOfTheStream) {
  constexpr size_t kBytes = size_t{64} << 20;
  void* const pages =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(gpu_->RegisterHost(pages, kBytes), absl::OkStatus());
  const auto device = *GpuMemory::OnDevice(gpu_, kBytes);
  const ScopedEvent begin = *ScopedEvent::Create(gpu_);
  std::memset(pages, 0x3f, kBytes);
  ASSERT_EQ(gpu_->Record(begin.get(), stream_.get()), absl::OkStatus());
  ASSERT_EQ(gpu_->Copy(device->data(), pages, kBytes, stream_.get()), absl::OkStatus());
  Finish();
  EXPECT_GT(*gpu_->Elapsed(begin.get(), done_.get()), absl::Microseconds(100));  // 64 MiB
  EXPECT_LT(*gpu_->Elapsed(begin.get(), done_.get()), absl::Seconds(10));
  gpu_->UnregisterHost(pages);
  munmap(pages, kBytes);
  const std::vector<float> values = Download(*device);
  EXPECT_EQ(values.front(), values.back());
  EXPECT_NE(values.front(), 0.0f);
}

TEST_F(GpuTest, AThreadThatWasNeverToldOfTheDeviceMayCall) {
  absl::Status status = absl::UnknownError("");
  std::thread thread([&] { status = GpuMemory::OnDevice(gpu_, 4).status(); });
  thread.join();
  EXPECT_EQ(status, absl::OkStatus());
}

TEST_F(GpuTest, AStreamWaitsForAFlagUntilAStreamOrTheHostWritesIt) {
  constexpr size_t kPage = 4096;
  void* const page =
      mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  {
    const RegisteredMemory registered = *RegisteredMemory::Register(gpu_, page, kPage);
    uint32_t* const flag = *gpu_->FlagOnDevice(page);
    auto& host = *static_cast<std::atomic<uint32_t>*>(page);
    const ScopedStream other = *ScopedStream::Create(gpu_);
    host = 0xfffffff0u;
    ASSERT_TRUE(gpu_->WaitFlag(flag, 0xffffffffu, stream_.get()).ok());
    ASSERT_TRUE(gpu_->Record(done_.get(), stream_.get()).ok());
    ASSERT_TRUE(gpu_->WriteFlag(flag, 0xfffffff1u, other.get()).ok());
    while (host != 0xfffffff1u) std::this_thread::yield();
    EXPECT_FALSE(*gpu_->Done(done_.get()));
    ASSERT_TRUE(gpu_->WriteFlag(flag, 1, other.get()).ok());  // has wrapped around
    ASSERT_TRUE(gpu_->Synchronize(done_.get()).ok());
    ASSERT_TRUE(gpu_->WaitFlag(flag, 2, stream_.get()).ok());
    ASSERT_TRUE(gpu_->Record(done_.get(), stream_.get()).ok());
    EXPECT_FALSE(*gpu_->Done(done_.get()));
    host = 3;
    EXPECT_TRUE(gpu_->Synchronize(done_.get()).ok());
  }
  munmap(page, kPage);
}

TEST_F(GpuTest, MemoryIsExportedAndNotMappedIntoTheProcessThatHasIt) {
  const auto memory = *GpuMemory::OnDevice(gpu_, GpuApi::kSharedPage);
  const auto exported = gpu_->ExportMemory(memory->data());
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_TRUE(absl::IsInternal(gpu_->ImportMemory(*exported).status()));
  EXPECT_TRUE(absl::IsInternal(gpu_->ImportMemory("no handle").status()));
}

#endif  // GRADSYNC_CUDA

}  // namespace
}  // namespace gradsync
