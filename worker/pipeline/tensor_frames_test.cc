#include "worker/pipeline/tensor_frames.h"

#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/randn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

constexpr TensorKey kKey = {TensorKey::kGradient, 7, 3};

// In two parts, the cut in the midst of a number.
Payload InParts(const OutgoingFrame& frame) {
  const size_t cut = frame.payload.size() / 2 / 4 * 4 + (frame.payload.empty() ? 0 : 1);
  return MakePayload({frame.payload.subspan(0, cut), frame.payload.subspan(cut)}, nullptr);
}

at::Tensor Sent(const at::Tensor& tensor) {
  const OutgoingFrame frame = TensorFrame(kKey, tensor);
  const auto received = TensorIn(frame.header, InParts(frame));
  EXPECT_TRUE(received.ok()) << received.status();
  return received.value_or(at::Tensor());
}

TEST(TensorFramesTest, ATensorArrivesWithItsTypeSizesStridesAndBits) {
  const at::Tensor images = at::randn({2, 3, 5, 4});
  for (const at::Tensor& tensor :
       {images, images.contiguous(at::MemoryFormat::ChannelsLast), images.to(at::kBFloat16),
        images.to(at::kHalf), images[1], at::randn({}), at::randn({1}), at::randn({0, 3}),
        images.permute({3, 1, 0, 2})}) {
    const at::Tensor received = Sent(tensor);
    EXPECT_EQ(received.scalar_type(), tensor.scalar_type());
    EXPECT_EQ(received.sizes(), tensor.sizes());
    EXPECT_EQ(received.strides(), tensor.strides());
    EXPECT_TRUE(received.equal(tensor));
  }
}

TEST(TensorFramesTest, GapsAreNotSent) {
  const at::Tensor columns = at::randn({4, 6}).slice(1, 0, 6, 2);
  EXPECT_EQ(TensorFrame(kKey, columns).payload.size(), 4u * 3 * 4);
  EXPECT_TRUE(Sent(columns).equal(columns));
  const at::Tensor expanded = at::randn({1, 3}).expand({2, 3});
  EXPECT_TRUE(Sent(expanded).equal(expanded));
}

TEST(TensorFramesTest, TheKeyIsReadBack) {
  const TensorKey key = KeyIn(TensorFrame(kKey, at::empty({0})).header).value();
  EXPECT_EQ(key.what, TensorKey::kGradient);
  EXPECT_EQ(key.step, 7);
  EXPECT_EQ(key.micro_batch, 3);
  EXPECT_EQ(DescribeKey(key), "the gradient of micro-batch 3 of step 7");
}

TEST(TensorFramesTest, RefusesWhatNoTensorIs) {
  const at::Tensor tensor = at::randn({2, 3});
  const OutgoingFrame good = TensorFrame(kKey, tensor);
  const auto refused = [&](const proto::FrameHeader& header, size_t bytes) {
    const auto received = TensorIn(header, MakePayload({good.payload.subspan(0, bytes)}, nullptr));
    EXPECT_EQ(received.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(received.status().message()), HasSubstr("TENSOR: expected float"));
  };
  refused(good.header, 20);
  refused(good.header, 0);
  const auto with = [&good](const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                            const std::string& type) {
    proto::FrameHeader header = good.header;
    header.mutable_tensor()->clear_sizes();
    header.mutable_tensor()->clear_strides();
    header.mutable_tensor()->mutable_sizes()->Add(sizes.begin(), sizes.end());
    header.mutable_tensor()->mutable_strides()->Add(strides.begin(), strides.end());
    header.mutable_tensor()->set_type(type);
    return header;
  };
  refused(with({2, 3}, {3, 1}, "double"), 24);
  refused(with({2, 3}, {3, 1}, ""), 24);
  refused(with({2, 3}, {3}, "float"), 24);
  refused(with({2, 3}, {4, 1}, "float"), 24);
  refused(with({2, 3}, {0, 1}, "float"), 24);
  refused(with({-2, -3}, {3, 1}, "float"), 24);
  refused(with({int64_t{1} << 62, 4}, {4, 1}, "float"), 0);

  proto::FrameHeader header = good.header;
  header.mutable_tensor()->set_what(9);
  EXPECT_FALSE(KeyIn(header).ok());
  header = good.header;
  header.set_kind(proto::FrameHeader::PUSH);
  EXPECT_FALSE(KeyIn(header).ok());
}

}  // namespace
}  // namespace gradsync
