#include "core/plan/plan_proto.h"

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

Plan SamplePlan(int64_t chunk_bytes = 512) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(2);
  optimizer.groups[0].momentum = 0.9;
  optimizer.groups[0].nesterov = true;
  optimizer.groups[1].lr_scale = 1.0 / 3;
  optimizer.groups[1].weight_decay = 5e-4;
  return *Plan::FromBuckets({{"a", {3, 5}, {1, 3}, 0}, {"b", {}, {}, 1}, {"c", {5000}, {1}, 0}},
                            {{2}, {1, 0}}, optimizer, 3, chunk_bytes);
}

std::string Refused(const proto::Plan& message) {
  const absl::Status status = PlanFromProto(message).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(PlanProto, APlanComesBackWithTheSameDescription) {
  for (int64_t chunk_bytes : {0, 512}) {
    const Plan plan = SamplePlan(chunk_bytes);
    const absl::StatusOr<Plan> back = PlanFromProto(PlanToProto(plan));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->Describe(), plan.Describe());
    EXPECT_EQ(back->fingerprint(), plan.fingerprint());
    EXPECT_EQ(back->optimizer(), plan.optimizer());
  }
}

TEST(PlanProto, SlotsTravelAndAreOfTheFingerprint) {
  BucketSlots slots;
  slots.gradients = 2;
  slots.parameters = 3;
  const Plan plan = SamplePlan().WithSlots(slots).value();
  EXPECT_NE(plan.fingerprint(), SamplePlan().fingerprint());
  const absl::StatusOr<Plan> back = PlanFromProto(PlanToProto(plan));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(back->slots() == slots);
  EXPECT_EQ(back->fingerprint(), plan.fingerprint());
  proto::Plan message = PlanToProto(plan);
  message.set_gradient_slots(-1);
  EXPECT_TRUE(absl::StrContains(Refused(message), "found -1 and 3"));
}

TEST(PlanProto, APartOfAPlanComesBackWithItsCut) {
  for (const std::vector<int>& members : {std::vector<int>{2}, {0, 2}, {1}, {0, 1, 2}}) {
    const Plan part = SamplePlan().Part(members).value();
    const absl::StatusOr<Plan> back = PlanFromProto(PlanToProto(part));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->Describe(), part.Describe());
    EXPECT_EQ(back->fingerprint(), part.fingerprint());
    EXPECT_EQ(PlanToProto(*back).SerializeAsString(), PlanToProto(part).SerializeAsString());
  }
}

TEST(PlanProto, CutsThatNoPartHasAreRefused) {
  proto::Plan message = PlanToProto(SamplePlan().Part({0, 2}).value());
  ASSERT_GT(message.buckets_size(), 1);
  const proto::Plan good = message;
  message.mutable_buckets(0)->set_chunk_elements(8);
  EXPECT_TRUE(absl::StrContains(Refused(message), "multiples of 16"));
  message = good;
  message.mutable_buckets(0)->set_chunk_elements(-16);
  EXPECT_TRUE(absl::StrContains(Refused(message), "buckets.chunk_elements"));
  message = good;
  message.mutable_buckets(0)->set_chunk_elements(int64_t{1} << 40);
  EXPECT_TRUE(absl::StrContains(Refused(message), "buckets.chunk_elements"));
  message = good;
  message.mutable_buckets(0)->set_lead(int64_t{1} << 40);
  EXPECT_TRUE(absl::StrContains(Refused(message), "lead within a stripe"));
  message = good;
  message.mutable_buckets(0)->set_lead(-16);
  EXPECT_TRUE(absl::StrContains(Refused(message), "lead within a stripe"));
  message = good;
  message.mutable_buckets(0)->set_chunk_elements(0);
  EXPECT_TRUE(absl::StrContains(Refused(message), "one for each bucket"));
}

TEST(PlanProto, EveryOptimizerComesBack) {
  for (OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    OptimizerSpec optimizer;
    optimizer.kind = kind;
    optimizer.groups.resize(1);
    const Plan plan = *Plan::FromBuckets({{"a", {7}, {1}, 0}}, {{0}}, optimizer, 1, 0);
    const absl::StatusOr<Plan> back = PlanFromProto(PlanToProto(plan));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->optimizer(), optimizer);
  }
}

TEST(PlanProto, SizesThatOverflowAreRefused) {
  proto::Plan message = PlanToProto(SamplePlan());
  message.mutable_tensors(0)->set_sizes(0, int64_t{1} << 40);
  EXPECT_TRUE(absl::StrContains(Refused(message), "sizes of \"a\""));
  message.mutable_tensors(0)->set_sizes(0, int64_t{1} << 32);
  message.mutable_tensors(0)->set_sizes(1, int64_t{1} << 32);
  Refused(message);
  message.mutable_tensors(0)->set_sizes(0, -1);
  Refused(message);
}

TEST(PlanProto, IndicesOutOfRangeAreRefused) {
  proto::Plan message = PlanToProto(SamplePlan());
  message.mutable_buckets(0)->set_tensors(0, 3);
  EXPECT_TRUE(absl::StrContains(Refused(message), "found 3"));
  message.mutable_buckets(0)->set_tensors(0, -1);
  Refused(message);
  message = PlanToProto(SamplePlan());
  message.mutable_tensors(0)->set_group(2);
  Refused(message);
}

// A server would divide by their number.
TEST(PlanProto, APlanWithoutBucketsIsRefused) {
  proto::Plan message = PlanToProto(SamplePlan());
  message.clear_tensors();
  message.clear_buckets();
  EXPECT_TRUE(absl::StrContains(Refused(message), "expected buckets, found none"));
}

TEST(PlanProto, ATensorInTwoBucketsIsRefused) {
  proto::Plan message = PlanToProto(SamplePlan());
  message.mutable_buckets(0)->add_tensors(0);
  Refused(message);
}

TEST(PlanProto, AbsurdlyManyChunksAreRefused) {
  proto::Plan message = PlanToProto(SamplePlan());
  message.mutable_tensors(2)->set_sizes(0, int64_t{1} << 34);
  message.set_chunk_bytes(64);
  EXPECT_TRUE(absl::StrContains(Refused(message), "chunks"));
}

TEST(PlanProto, OptionsOutOfRangeAreRefused) {
  proto::Plan message = PlanToProto(SamplePlan());
  message.set_world_size(0);
  Refused(message);
  message.set_world_size(std::numeric_limits<int32_t>::max());
  Refused(message);
  message = PlanToProto(SamplePlan());
  message.set_chunk_bytes(63);
  Refused(message);
  message.set_chunk_bytes(std::numeric_limits<int64_t>::max());
  Refused(message);
  message = PlanToProto(SamplePlan());
  message.mutable_optimizer()->set_kind("lion");
  EXPECT_TRUE(absl::StrContains(Refused(message), "lion"));
  message = PlanToProto(SamplePlan());
  message.mutable_optimizer()->mutable_groups(0)->set_momentum(
      std::numeric_limits<double>::quiet_NaN());
  Refused(message);
}

TEST(PlanProto, AnEmptyMessageIsRefused) { Refused(proto::Plan()); }

// Flips bytes of a good message: whatever parses must be refused or give a plan that can be walked.
TEST(PlanProto, CorruptedMessagesNeverCrash) {
  const std::string good = PlanToProto(SamplePlan()).SerializeAsString();
  std::mt19937 random(1);
  int parsed = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    const int flips = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < flips; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    proto::Plan message;
    if (!message.ParseFromString(bytes)) continue;
    ++parsed;
    const absl::StatusOr<Plan> plan = PlanFromProto(message);
    if (plan.ok()) {
      EXPECT_FALSE(plan->Describe().empty());
    }
  }
  EXPECT_GT(parsed, 1000);
}

}  // namespace
}  // namespace gradsync
