#include "core/gpu/fake_gpu.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/gpu/gpu_resources.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(FakeGpuTest, AStreamWorksInOrderAndBesideTheCaller) {
  const auto gpu = std::make_shared<FakeGpu>();
  const ScopedStream stream = *ScopedStream::Create(gpu);
  const auto from = *GpuMemory::Pinned(gpu, sizeof(float));
  const auto to = *GpuMemory::OnDevice(gpu, sizeof(float));
  const ScopedEvent done = *ScopedEvent::Create(gpu);
  EXPECT_TRUE(*gpu->Done(done.get()));  // never recorded
  Notification go;
  gpu->Enqueue(stream.get(), [&] { go.WaitForNotification(); });
  ASSERT_TRUE(gpu->Copy(to->data(), from->data(), sizeof(float), stream.get()).ok());
  ASSERT_TRUE(gpu->ScaleTwice(to->floats(), 1, 2.0f, 3.0f, stream.get()).ok());
  ASSERT_TRUE(gpu->Record(done.get(), stream.get()).ok());
  EXPECT_FALSE(*gpu->Done(done.get()));
  *from->floats() = 7;
  go.Notify();
  ASSERT_TRUE(gpu->StreamWait(gpu->ComputeStream(), done.get()).ok());
  EXPECT_EQ(*to->floats(), 42);
  EXPECT_EQ(gpu->synchronizations(), 0);
}

TEST(FakeGpuTest, AStreamWaitsForTheEventAsItWasThen) {
  const auto gpu = std::make_shared<FakeGpu>();
  const ScopedStream first = *ScopedStream::Create(gpu);
  const ScopedStream second = *ScopedStream::Create(gpu);
  const ScopedEvent event = *ScopedEvent::Create(gpu);
  const ScopedEvent end = *ScopedEvent::Create(gpu);
  Notification go;
  ASSERT_TRUE(gpu->Record(event.get(), first.get()).ok());
  ASSERT_TRUE(gpu->StreamWait(second.get(), event.get()).ok());
  gpu->Enqueue(first.get(), [&] { go.WaitForNotification(); });
  ASSERT_TRUE(gpu->Record(event.get(), first.get()).ok());  // not what `second` waits for
  ASSERT_TRUE(gpu->Record(end.get(), second.get()).ok());
  ASSERT_TRUE(gpu->Synchronize(end.get()).ok());
  EXPECT_EQ(gpu->synchronizations(), 1);
  EXPECT_FALSE(*gpu->Done(event.get()));
  go.Notify();
  ASSERT_TRUE(gpu->Synchronize(event.get()).ok());
}

TEST(FakeGpuTest, AFactorIsReadWhenItsTurnComes) {
  const auto gpu = std::make_shared<FakeGpu>();
  const ScopedStream stream = *ScopedStream::Create(gpu);
  const auto x = *GpuMemory::OnDevice(gpu, 2 * sizeof(float));
  const auto factor = *GpuMemory::Pinned(gpu, sizeof(float));
  const ScopedEvent done = *ScopedEvent::Create(gpu);
  Notification go;
  x->floats()[0] = 3;
  x->floats()[1] = -5;
  gpu->Enqueue(stream.get(), [&] { go.WaitForNotification(); });
  ASSERT_TRUE(gpu->ScaleBy(x->floats(), 2, factor->floats(), stream.get()).ok());
  ASSERT_TRUE(gpu->Record(done.get(), stream.get()).ok());
  *factor->floats() = 2;
  go.Notify();
  ASSERT_TRUE(gpu->StreamWait(gpu->ComputeStream(), done.get()).ok());
  EXPECT_EQ(x->floats()[0], 6);
  EXPECT_EQ(x->floats()[1], -10);
}

TEST(FakeGpuTest, AFoldAddsInThePiecesOrderInPlaceToo) {
  const auto gpu = std::make_shared<FakeGpu>();
  const auto pieces = *GpuMemory::Pinned(gpu, 3 * sizeof(FoldPiece));
  auto* const piece = static_cast<FoldPiece*>(pieces->data());
  piece[0] = {0, 1, 0};
  piece[1] = {1, 1, 1};
  piece[2] = {3, 0, 2};
  // (1 + 2^24) is 2^24, so the order shows.
  std::vector<float> a = {1, 1, 9}, b = {16777216, 16777216, 9}, c = {-16777216, -16777216, 9};
  const std::vector<const float*> sources = {a.data(), b.data(), c.data()};
  const std::vector<float*> destinations = {b.data(), a.data()};
  ASSERT_EQ(gpu->FoldMean(piece, 3, sources, destinations, 8.0f, 0.5f, gpu->ComputeStream()),
            absl::OkStatus());
  EXPECT_EQ(a, (std::vector<float>{0, 4, 9}));
  EXPECT_EQ(b, a);
  EXPECT_EQ(c[1], -16777216);

  const std::vector<const float*> many(kMostFoldOperands + 1, a.data());
  const absl::Status status =
      gpu->FoldMean(piece, 3, many, destinations, 1, 1, gpu->ComputeStream());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(
      absl::IsInvalidArgument(gpu->FoldMean(piece, 3, sources, {}, 1, 1, gpu->ComputeStream())));
}

TEST(FakeGpuTest, TakesWholePagesOnceAndSeesCopiesOfOtherMemory) {
  const auto gpu = std::make_shared<FakeGpu>();
  alignas(4096) static char pages[2 * 4096];
  char elsewhere[4] = {};
  const auto device = *GpuMemory::OnDevice(gpu, 4);
  EXPECT_FALSE(RegisteredMemory::Register(gpu, pages + 64, 4096).ok());
  {
    const auto registered = RegisteredMemory::Register(gpu, pages, 2 * 4096);
    ASSERT_TRUE(registered.ok()) << registered.status();
    EXPECT_FALSE(RegisteredMemory::Register(gpu, pages + 4096, 4096).ok());
    ASSERT_TRUE(gpu->Copy(pages + 4096, device->data(), 4, gpu->ComputeStream()).ok());
    EXPECT_EQ(gpu->unpinned_copies(), 0);
    EXPECT_EQ(gpu->live_objects(), 2);
  }
  EXPECT_EQ(gpu->live_objects(), 1);
  ASSERT_TRUE(gpu->Copy(pages, device->data(), 4, gpu->ComputeStream()).ok());
  ASSERT_TRUE(gpu->Copy(device->data(), elsewhere, 4, gpu->ComputeStream()).ok());
  EXPECT_EQ(gpu->unpinned_copies(), 2);
}

TEST(FakeGpuTest, TellsTheTimeBetweenEventsThatAreDone) {
  const auto gpu = std::make_shared<FakeGpu>();
  const ScopedStream stream = *ScopedStream::Create(gpu);
  EXPECT_EQ(gpu->streams(), std::vector<GpuStream>{stream.get()});
  const ScopedEvent from = *ScopedEvent::Create(gpu);
  const ScopedEvent to = *ScopedEvent::Create(gpu);
  Notification go;
  ASSERT_TRUE(gpu->Record(from.get(), stream.get()).ok());
  gpu->Enqueue(stream.get(), [&] { go.WaitForNotification(); });
  ASSERT_TRUE(gpu->Record(to.get(), stream.get()).ok());
  EXPECT_FALSE(gpu->Elapsed(from.get(), to.get()).ok());
  go.Notify();
  ASSERT_TRUE(gpu->Synchronize(to.get()).ok());
  const auto elapsed = gpu->Elapsed(from.get(), to.get());
  ASSERT_TRUE(elapsed.ok()) << elapsed.status();
  EXPECT_GE(*elapsed, absl::ZeroDuration());
}

// The fake used to wait in DestroyStream(), as cudaStreamDestroy() does not, so that whoever relied
// on that passed.
TEST(FakeGpuTest, DestroyingAStreamWaitsForNothing) {
  const auto gpu = std::make_shared<FakeGpu>();
  const auto memory = *GpuMemory::OnDevice(gpu, sizeof(float));
  Notification go;
  {
    const ScopedStream stream = *ScopedStream::Create(gpu);
    *memory->floats() = 1;
    gpu->Enqueue(stream.get(), [&] { go.WaitForNotification(); });
    ASSERT_TRUE(gpu->ScaleTwice(memory->floats(), 1, 2, 3, stream.get()).ok());
  }
  EXPECT_EQ(*memory->floats(), 1);
  EXPECT_EQ(gpu->live_objects(), 1);
  go.Notify();
  ASSERT_TRUE(gpu->SynchronizeDevice().ok());
  EXPECT_EQ(*memory->floats(), 6);
}

TEST(FakeGpuTest, CountsMemoryOfTheDeviceAndNotPinnedMemory) {
  const auto gpu = std::make_shared<FakeGpu>();
  EXPECT_EQ(gpu->most_device_bytes(), 0u);
  const auto kept = *GpuMemory::OnDevice(gpu, 257);
  GpuMemory::OnDevice(gpu, 1).value().reset();
  GpuMemory::OnDevice(gpu, 256).value().reset();
  const auto pinned = *GpuMemory::Pinned(gpu, 4096);
  EXPECT_EQ(gpu->most_device_bytes(), 512u + 256u);
}

TEST(FakeGpuTest, MemoryThatGoesWhileWorkUsesItIsAMisuse) {
  const auto gpu = std::make_shared<FakeGpu>();
  const ScopedStream stream = *ScopedStream::Create(gpu);
  alignas(4096) static char pages[4096];
  ASSERT_TRUE(gpu->RegisterHost(pages, sizeof(pages)).ok());
  char* const pinned = static_cast<char*>(*gpu->AllocatePinned(64));
  char* const device = static_cast<char*>(*gpu->AllocateDevice(64));
  Notification go;
  gpu->Enqueue(stream.get(), [&] { go.WaitForNotification(); });
  ASSERT_TRUE(gpu->Copy(device + 32, pinned, 32, stream.get()).ok());
  ASSERT_TRUE(gpu->Copy(device + 32, pages + 8, 1, stream.get()).ok());
  gpu->ReleasePinned(pinned);
  gpu->UnregisterHost(pages);
  EXPECT_FALSE(gpu->ReleaseAtOnce(device));
  EXPECT_EQ(gpu->TakeMisuses().size(), 3u);
  EXPECT_EQ(gpu->TakeMisuses().size(), 0u);
  go.Notify();
}

TEST(FakeGpuTest, MemoryOfTheDeviceGoesAfterAllThatIsQueued) {
  const auto gpu = std::make_shared<FakeGpu>();
  const ScopedStream stream = *ScopedStream::Create(gpu);
  for (const bool pinned : {false, true}) {
    auto memory = *(pinned ? GpuMemory::Pinned(gpu, 64) : GpuMemory::OnDevice(gpu, 64));
    auto other = *GpuMemory::OnDevice(gpu, 64);
    Notification go;
    gpu->Enqueue(stream.get(), [&] { go.WaitForNotification(); });
    ASSERT_TRUE(gpu->Copy(memory->data(), other->data(), 64, stream.get()).ok());
    std::thread releaser([&] { memory = nullptr; });
    GiveOthersTime();
    EXPECT_EQ(gpu->live_objects(), 3);
    go.Notify();
    releaser.join();
    EXPECT_EQ(gpu->live_objects(), 2);
  }
}

TEST(FakeGpuTest, WorkOfAStreamThatWaitsForTheDeviceIsAMisuse) {
  const auto gpu = std::make_shared<FakeGpu>();
  const ScopedStream stream = *ScopedStream::Create(gpu);
  ASSERT_TRUE(gpu->RunOnHost([&] { gpu->SynchronizeDevice().IgnoreError(); }, stream.get()).ok());
  ASSERT_TRUE(gpu->SynchronizeDevice().ok());
  EXPECT_EQ(gpu->TakeMisuses().size(), 1u);
}

TEST(FakeGpuTest, FailsWhatItIsToldTo) {
  const auto gpu = std::make_shared<FakeGpu>();
  gpu->FailNext("AllocateDevice", absl::ResourceExhaustedError("full"));
  EXPECT_TRUE(absl::IsResourceExhausted(GpuMemory::OnDevice(gpu, 4).status()));
  const auto memory = GpuMemory::OnDevice(gpu, 4);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*memory)->data()) % 256, 0u);
  EXPECT_EQ(gpu->calls("AllocateDevice"), 2);
  EXPECT_EQ(gpu->live_objects(), 1);
}

// A page of the host, registered.
class FlagPage {
 public:
  explicit FlagPage(std::shared_ptr<GpuApi> gpu)
      : gpu_(std::move(gpu)), page_(std::aligned_alloc(4096, 4096)) {
    std::memset(page_, 0, 4096);
    EXPECT_TRUE(gpu_->RegisterHost(page_, 4096).ok());
  }
  ~FlagPage() {
    gpu_->UnregisterHost(page_);
    std::free(page_);
  }
  std::atomic<uint32_t>& host() { return *static_cast<std::atomic<uint32_t>*>(page_); }
  uint32_t* device() { return *gpu_->FlagOnDevice(page_); }

 private:
  const std::shared_ptr<GpuApi> gpu_;
  void* const page_;
};

TEST(FakeGpuTest, AStreamWaitsForAFlagThatAnotherWrites) {
  const auto gpu = std::make_shared<FakeGpu>();
  FlagPage flag(gpu);
  const ScopedStream first = *ScopedStream::Create(gpu);
  const ScopedStream second = *ScopedStream::Create(gpu);
  const auto memory = *GpuMemory::OnDevice(gpu, sizeof(float));
  const ScopedEvent done = *ScopedEvent::Create(gpu);
  ASSERT_TRUE(gpu->WaitFlag(flag.device(), 5, second.get()).ok());
  ASSERT_TRUE(gpu->ScaleTwice(memory->floats(), 1, 2.0f, 3.0f, second.get()).ok());
  ASSERT_TRUE(gpu->Record(done.get(), second.get()).ok());
  ASSERT_TRUE(gpu->WriteFlag(flag.device(), 4, first.get()).ok());
  gpu->Enqueue(first.get(), [&] {
    EXPECT_FALSE(*gpu->Done(done.get()));
    *memory->floats() = 7;
  });
  ASSERT_TRUE(gpu->WriteFlag(flag.device(), 5, first.get()).ok());
  ASSERT_TRUE(gpu->Synchronize(done.get()).ok());
  EXPECT_EQ(*memory->floats(), 42);
}

TEST(FakeGpuTest, FlagsAreComparedCyclicallyAndStoredByTheHostToo) {
  const auto gpu = std::make_shared<FakeGpu>();
  FlagPage flag(gpu);
  const ScopedStream stream = *ScopedStream::Create(gpu);
  const ScopedEvent done = *ScopedEvent::Create(gpu);
  flag.host() = 0xfffffff0u;
  ASSERT_TRUE(gpu->WaitFlag(flag.device(), 0xffffffffu, stream.get()).ok());
  ASSERT_TRUE(gpu->Record(done.get(), stream.get()).ok());
  EXPECT_FALSE(*gpu->Done(done.get()));
  flag.host() = 3;  // has wrapped around
  EXPECT_TRUE(gpu->Synchronize(done.get()).ok());
}

TEST(FakeGpuTest, ExportedMemoryIsTheSameElsewhereAndNoticedWhenReleasedEarly) {
  const auto owner = std::make_shared<FakeGpu>();
  const auto other = std::make_shared<FakeGpu>();
  auto memory = *GpuMemory::OnDevice(owner, GpuApi::kSharedPage);
  void* const imported = *other->ImportMemory(*owner->ExportMemory(memory->data()));
  EXPECT_EQ(imported, memory->data());
  EXPECT_EQ(other->live_objects(), 1);
  memory = nullptr;
  EXPECT_EQ(owner->early_releases(), 1);
  other->CloseImported(imported);
  EXPECT_EQ(other->live_objects(), 0);
  memory = *GpuMemory::OnDevice(owner, 4096);
  EXPECT_FALSE(owner->ExportMemory(memory->data()).ok());  // shares its page with others'
}

TEST(FakeGpuTest, BytesAreLookedUpInBothSizesAndOrders) {
  FakeGpu gpu;
  ImageLayout layout;
  layout.images = 2;
  layout.channels = 2;
  layout.pixels = 3;
  const std::vector<uint8_t> bytes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255};
  std::vector<uint16_t> table(512);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<uint16_t>(1000 + i);
  const std::vector<uint32_t> wide(table.begin(), table.end());
  for (const bool channels_last : {false, true}) {
    layout.channels_last = channels_last;
    const std::vector<uint16_t> expected =
        channels_last ? std::vector<uint16_t>{1000, 1259, 1001, 1260, 1002, 1261,
                                              1006, 1265, 1007, 1266, 1008, 1511}
                      : std::vector<uint16_t>{1000, 1001, 1002, 1259, 1260, 1261,
                                              1006, 1007, 1008, 1265, 1266, 1511};
    std::vector<uint16_t> values(12);
    layout.element_bytes = 2;
    ASSERT_EQ(gpu.LookUpBytes(layout, bytes.data(), table.data(), values.data(), nullptr),
              absl::OkStatus());
    EXPECT_EQ(values, expected);
    std::vector<uint32_t> wide_values(12);
    layout.element_bytes = 4;
    ASSERT_EQ(gpu.LookUpBytes(layout, bytes.data(), wide.data(), wide_values.data(), nullptr),
              absl::OkStatus());
    EXPECT_EQ(wide_values, std::vector<uint32_t>(expected.begin(), expected.end()));
  }
}

}  // namespace
}  // namespace gradsync
