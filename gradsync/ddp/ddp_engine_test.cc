#include "gradsync/ddp/ddp_engine.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "c10/util/Exception.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "core/sync/local_sync.h"
#include "gmock/gmock.h"
#include "gradsync/ddp/tiny_module.h"
#include "gtest/gtest.h"
#include "torch/nn/utils/clip_grad.h"
#include "torch/optim/sgd.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

Deadline Soon() { return Deadline::In(absl::Seconds(30)); }

// Copies values only, so that two modules start alike.
void CopyParameters(const torch::nn::Module& from, const torch::nn::Module& to) {
  c10::NoGradGuard no_grad;
  for (const auto& item : from.named_parameters()) {
    to.named_parameters()[item.key()].copy_(item.value());
  }
}

void ExpectClose(const torch::nn::Module& a, const torch::nn::Module& b) {
  for (const auto& item : a.named_parameters()) {
    EXPECT_TRUE(item.value().allclose(b.named_parameters()[item.key()], 1e-5, 1e-6)) << item.key();
  }
}

OptimizerSpec NesterovSpec() {
  OptimizerSpec spec = {OptimizerKind::kSgd, {{}}};
  spec.groups[0].momentum = 0.9;
  spec.groups[0].nesterov = true;
  spec.groups[0].weight_decay = 0.01;
  return spec;
}

torch::optim::SGDOptions NesterovTorch() {
  return torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01);
}

// One worker with a module of its own, over a local sync.
struct Local {
  explicit Local(UpdateSite site, OptimizerSpec optimizer = NesterovSpec(),
                 bool skip_nonfinite_steps = false)
      : module(std::make_shared<TinyModule>()), sync(CreateLocalSync(site)) {
    DdpEngineOptions options;
    options.optimizer = std::move(optimizer);
    options.skip_nonfinite_steps = skip_nonfinite_steps;
    options.plan.first_bucket_bytes = options.plan.bucket_bytes = 128;
    options.forward_backward = [this] { module->Loss(at::ones({2, 4})).backward(); };
    ddp = DdpEngine::Create(module, sync.get(), nullptr, std::move(options)).value();
  }

  absl::Status Step(const StepOptions& step, const at::Tensor& x) {
    absl::Status status = ddp->BeginStep(step);
    if (!status.ok()) return status;
    module->Loss(x).backward();
    return ddp->FinishStep(Soon());
  }

  std::shared_ptr<TinyModule> module;
  std::unique_ptr<GradientSync> sync;
  std::unique_ptr<DdpEngine> ddp;
};

class AtBothSitesTest : public ::testing::TestWithParam<UpdateSite> {
 protected:
  AtBothSitesTest() { at::manual_seed(1); }
};
INSTANTIATE_TEST_SUITE_P(, AtBothSitesTest,
                         ::testing::Values(UpdateSite::kWorker, UpdateSite::kOwner),
                         [](const auto& info) {
                           return info.param == UpdateSite::kWorker ? "Worker" : "Owner";
                         });

TEST_P(AtBothSitesTest, TrainsAsTorchSgdWithinRounding) {
  Local local(GetParam());
  TinyModule reference;
  CopyParameters(*local.module, reference);
  torch::optim::SGD sgd(reference.parameters(), NesterovTorch());
  EXPECT_GT(local.ddp->plan().buckets().size(), 1u);
  for (int64_t step = 1; step <= 6; ++step) {
    const at::Tensor x = at::randn({7, 4});
    const double lr = 0.1 / static_cast<double>(step);
    ASSERT_TRUE(local.Step({step, lr, 0, 1}, x).ok());
    sgd.zero_grad();
    reference.Loss(x).backward();
    static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options()).lr(lr);
    sgd.step();
    ExpectClose(*local.module, reference);
  }
}

// With the bits of a cast in each forward.
TEST_P(AtBothSitesTest, CopiesFollowTheirWeightsThroughStepsAndState) {
  const auto loss = [](const TinyModule& module, const at::Tensor& first, const at::Tensor& x) {
    const at::Tensor hidden = at::linear(x.to(at::kBFloat16), first).to(at::kFloat);
    return at::linear(at::relu(hidden + module.first_bias) * module.scale, module.last_weight)
        .pow(2)
        .mean();
  };
  Local cast(GetParam());
  auto module = std::make_shared<TinyModule>();
  CopyParameters(*cast.module, *module);
  const std::unique_ptr<GradientSync> sync = CreateLocalSync(GetParam());
  DdpEngineOptions options;
  options.optimizer = NesterovSpec();
  options.plan.first_bucket_bytes = options.plan.bucket_bytes = 128;
  options.copies = {at::kBFloat16, {"first_weight"}};
  const auto ddp = *DdpEngine::Create(module, sync.get(), nullptr, options);
  const at::Tensor copy = ddp->CopyOf("first_weight");
  EXPECT_FALSE(ddp->CopyOf("scale").defined());
  const auto expect_equal = [&] {
    EXPECT_TRUE(copy.equal(module->first_weight.to(at::kBFloat16)));
    for (const auto& item : module->named_parameters()) {
      EXPECT_TRUE(item.value().equal(cast.module->named_parameters()[item.key()])) << item.key();
    }
  };
  for (int64_t step = 1; step <= 3; ++step) {
    const StepOptions numbers = {step, 0.1, 0, 1};
    const at::Tensor x = at::randn({7, 4});
    ASSERT_TRUE(cast.ddp->BeginStep(numbers).ok());
    loss(*cast.module, cast.module->first_weight.to(at::kBFloat16), x).backward();
    ASSERT_TRUE(cast.ddp->FinishStep(Soon()).ok());
    ASSERT_TRUE(ddp->BeginStep(numbers).ok());
    loss(*module, copy, x).backward();
    ASSERT_EQ(ddp->FinishStep(Soon()), absl::OkStatus());
    expect_equal();
  }
  // What a program writes between steps is copied when a state is imported.
  {
    c10::NoGradGuard no_grad;
    module->first_weight.mul_(2);
    cast.module->first_weight.mul_(2);
  }
  ASSERT_TRUE(ddp->ImportState(*ddp->ExportState(Soon()), Soon()).ok());
  expect_equal();
}

TEST(DdpEngineTest, CopiesOfParametersThatComeAndGoAreRefused) {
  auto module = std::make_shared<TinyModule>();
  const std::unique_ptr<GradientSync> sync = CreateLocalSync(UpdateSite::kOwner);
  DdpEngineOptions options;
  options.optimizer = NesterovSpec();
  options.copies = {at::kBFloat16, {"first_weight"}};
  options.units = {{"first_weight", "first_bias", "scale", "last_weight"}};
  const absl::Status status = DdpEngine::Create(module, sync.get(), nullptr, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("copies"));
}

TEST_P(AtBothSitesTest, ClipsAsTorchClipGradNormWithinRounding) {
  Local local(GetParam());
  TinyModule reference;
  CopyParameters(*local.module, reference);
  torch::optim::SGD sgd(reference.parameters(), NesterovTorch());
  for (int64_t step = 1; step <= 4; ++step) {
    const at::Tensor x = at::randn({7, 4});
    sgd.zero_grad();
    reference.Loss(x).backward();
    // Half of what it is at odd steps, far above it at even ones.
    const double norm = torch::nn::utils::clip_grad_norm_(reference.parameters(), 1e9);
    const double max_norm = step % 2 == 1 ? norm / 2 : norm * 10;
    torch::nn::utils::clip_grad_norm_(reference.parameters(), max_norm);
    sgd.step();
    ASSERT_TRUE(local.Step({step, 0.1, max_norm, 1}, x).ok());
    ExpectClose(*local.module, reference);
    if (GetParam() == UpdateSite::kWorker) {
      EXPECT_NEAR(local.ddp->grad_norm(), norm, 1e-5 * norm);
    }
  }
}

TEST_P(AtBothSitesTest, NoSyncTrainsAsOneLargeBatchWould) {
  Local local(GetParam());
  TinyModule reference;
  CopyParameters(*local.module, reference);
  torch::optim::SGD sgd(reference.parameters(), NesterovTorch());
  for (int64_t step = 1; step <= 3; ++step) {
    const at::Tensor x = at::randn({8, 4});
    sgd.zero_grad();
    reference.Loss(x).backward();
    sgd.step();
    {
      const auto guard = local.ddp->NoSync();
      (local.module->Loss(x.slice(0, 0, 4)) / 2).backward();
    }
    ASSERT_TRUE(local.ddp->BeginStep({step, 0.1, 0, 1}).ok());
    (local.module->Loss(x.slice(0, 4, 8)) / 2).backward();
    ASSERT_TRUE(local.ddp->FinishStep(Soon()).ok());
    ExpectClose(*local.module, reference);
  }
}

TEST_P(AtBothSitesTest, ALossScaleIsTakenOutAgain) {
  Local local(GetParam());
  Local plain(GetParam());
  CopyParameters(*local.module, *plain.module);
  const at::Tensor x = at::randn({8, 4});
  ASSERT_TRUE(local.ddp->BeginStep({1, 0.1, 0, 1.0 / 1024}).ok());
  (local.module->Loss(x) * 1024).backward();
  ASSERT_TRUE(local.ddp->FinishStep(Soon()).ok());
  ASSERT_TRUE(plain.Step({1, 0.1, 0, 1}, x).ok());
  ExpectClose(*local.module, *plain.module);
}

// One infinity, in one gradient of one bucket of several.
at::Tensor LossWithAnInfiniteGradient(TinyModule& module, const at::Tensor& x) {
  return module.Loss(x) + std::numeric_limits<float>::infinity() * module.last_weight.flatten()[3];
}

TEST(SkipNonFiniteStepsTest, ASkippedStepNeverWas) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({8, 4});
  for (double max_norm : {0.0, 0.01}) {
    Local skipping(UpdateSite::kWorker, {OptimizerKind::kAdam, {{}}}, true);
    Local plain(UpdateSite::kWorker, {OptimizerKind::kAdam, {{}}});
    CopyParameters(*skipping.module, *plain.module);
    int64_t plain_step = 0;
    for (int64_t step = 1; step <= 6; ++step) {
      const bool bad = step == 1 || step == 4;
      ASSERT_TRUE(skipping.ddp->BeginStep({step, 0.1, max_norm, 1}).ok());
      (bad ? LossWithAnInfiniteGradient(*skipping.module, x) : skipping.module->Loss(x)).backward();
      ASSERT_TRUE(skipping.ddp->FinishStep(Soon()).ok());
      EXPECT_EQ(skipping.ddp->skipped(), bad);
      if (!bad) {
        ASSERT_TRUE(plain.Step({++plain_step, 0.1, max_norm, 1}, x).ok());
      }
      EXPECT_EQ(skipping.ddp->ParamsSha256(), plain.ddp->ParamsSha256()) << "step " << step;
    }
    EXPECT_EQ(skipping.ddp->ExportState(Soon())->step, plain_step);
  }
}

TEST(SkipNonFiniteStepsTest, WithoutItAnInfinityReachesTheParameters) {
  Local local(UpdateSite::kWorker);
  ASSERT_TRUE(local.ddp->BeginStep({1, 0.1, 0, 1}).ok());
  LossWithAnInfiniteGradient(*local.module, at::ones({2, 4})).backward();
  ASSERT_TRUE(local.ddp->FinishStep(Soon()).ok());
  EXPECT_FALSE(local.ddp->skipped());
  EXPECT_FALSE(local.module->last_weight.isfinite().all().item<bool>());
}

TEST(SkipNonFiniteStepsTest, OwnersRefuseIt) {
  const auto sync = CreateLocalSync(UpdateSite::kOwner);
  DdpEngineOptions options;
  options.optimizer = NesterovSpec();
  options.skip_nonfinite_steps = true;
  const absl::Status status =
      DdpEngine::Create(std::make_shared<TinyModule>(), sync.get(), nullptr, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("update at the workers"));
}

// Chunks of 96 KiB between hosts became larger ones where the job went on on one host, and sums got
// other bits.
TEST(DdpEngineTest, WhatContinuesAJobKeepsItsChunksUnlessOthersAreAskedFor) {
  const auto chunk_bytes = [](int64_t asked, absl::optional<int64_t> earlier) {
    const auto sync = CreateLocalSync(UpdateSite::kWorker);
    SideChannel alone(WorkerGroup(), "ddp");
    DdpEngineOptions options;
    options.optimizer = NesterovSpec();
    options.plan.chunk_bytes = asked;
    options.earlier_chunk_bytes = earlier;
    const auto ddp = DdpEngine::Create(std::make_shared<TinyModule>(), sync.get(), &alone, options);
    EXPECT_TRUE(ddp.ok()) << ddp.status();
    return (*ddp)->plan().chunk_bytes();
  };
  EXPECT_EQ(chunk_bytes(0, absl::nullopt), 0);
  EXPECT_EQ(chunk_bytes(0, 96 << 10), 96 << 10);
  EXPECT_EQ(chunk_bytes(64, 96 << 10), 64);
}

TEST_P(AtBothSitesTest, AMissingGradientIsNamedAndTheGroupAborted) {
  Local local(GetParam());
  ASSERT_TRUE(local.ddp->BeginStep({1, 0.1, 0, 1}).ok());
  (local.module->scale.sum() + local.module->last_weight.sum()).backward();
  const absl::Status status = local.ddp->FinishStep(Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("first_weight, first_bias"));
  EXPECT_EQ(local.sync->status(), status);
  EXPECT_EQ(local.ddp->BeginStep({2, 0.1, 0, 1}), status);
}

TEST_P(AtBothSitesTest, AGradientSetToNoneIsNamedAtTheNextStep) {
  Local local(GetParam());
  ASSERT_TRUE(local.Step({1, 0.1, 0, 1}, at::ones({2, 4})).ok());
  local.module->zero_grad(/*set_to_none=*/true);
  const absl::Status status = local.ddp->BeginStep({2, 0.1, 0, 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("gradient of parameter first_weight was removed"));
}

TEST_P(AtBothSitesTest, ZeroGradInTheLoopIsHarmless) {
  Local local(GetParam()), plain(GetParam());
  CopyParameters(*local.module, *plain.module);
  const at::Tensor x = at::randn({8, 4});
  for (int64_t step = 1; step <= 2; ++step) {
    ASSERT_TRUE(local.ddp->BeginStep({step, 0.1, 0, 1}).ok());
    local.module->zero_grad(/*set_to_none=*/false);
    local.module->Loss(x).backward();
    ASSERT_TRUE(local.ddp->FinishStep(Soon()).ok());
    ASSERT_TRUE(plain.Step({step, 0.1, 0, 1}, x).ok());
  }
  EXPECT_EQ(local.ddp->ParamsSha256(), plain.ddp->ParamsSha256());
}

TEST_P(AtBothSitesTest, CallsOutOfOrderAreRefused) {
  Local local(GetParam());
  EXPECT_EQ(local.ddp->FinishStep(Soon()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(local.ddp->BeginStep({0, 0.1, 0, 1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(local.ddp->BeginStep({1, 0.1, -1, 1}).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(local.ddp->BeginStep({1, 0.1, 0, 1}).ok());
  EXPECT_EQ(local.ddp->BeginStep({2, 0.1, 0, 1}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(local.ddp->ExportState(Soon()).status().code(), absl::StatusCode::kFailedPrecondition);
  local.module->Loss(at::ones({2, 4})).backward();
  EXPECT_TRUE(local.ddp->FinishStep(Soon()).ok());
}

TEST_P(AtBothSitesTest, AGraphThatWasBuiltBeforeTheUpdateGetsAVersionError) {
  Local local(GetParam());
  const at::Tensor stale = local.module->Loss(at::ones({2, 4}));
  ASSERT_TRUE(local.Step({1, 0.1, 0, 1}, at::ones({2, 4})).ok());
  ASSERT_TRUE(local.ddp->BeginStep({2, 0.1, 0, 1}).ok());
  EXPECT_THROW(stale.backward(), c10::Error);
}

TEST(DdpEngineTest, SavedDetachedParametersGetAVersionErrorWhenOwnersUpdate) {
  for (const UpdateSite site : {UpdateSite::kOwner, UpdateSite::kWorker}) {
    Local local(site);
    TinyModule& m = *local.module;
    ASSERT_TRUE(local.ddp->BeginStep({1, 0.1, 0, 1}).ok());
    // The first layer's backward reads last_weight's memory after the gradient of last_weight left.
    const at::Tensor input = at::linear(at::ones({2, 4}), m.first_weight, m.first_bias);
    const at::Tensor hidden = at::linear(input, m.last_weight.detach());  // [2, 3]
    const at::Tensor out = at::linear((hidden.sum() * at::ones({2, 8})) * m.scale, m.last_weight);
    if (site == UpdateSite::kOwner) {
      EXPECT_THROW(out.sum().backward(), c10::Error);
    } else {
      out.sum().backward();
      EXPECT_TRUE(local.ddp->FinishStep(Soon()).ok());
    }
  }
}

TEST(DdpEngineTest, BothSitesEndWithTheSameBitsAndExchangeStateMidway) {
  Local worker(UpdateSite::kWorker), owner(UpdateSite::kOwner), crossed(UpdateSite::kOwner);
  CopyParameters(*worker.module, *owner.module);
  EXPECT_EQ(worker.ddp->ParamsSha256(), owner.ddp->ParamsSha256());
  for (int64_t step = 1; step <= 6; ++step) {
    const at::Tensor x = at::randn({8, 4});
    const StepOptions options = {step, 0.1, step % 3 == 0 ? 0.05 : 0.0, 1};
    ASSERT_TRUE(worker.Step(options, x).ok());
    ASSERT_TRUE(owner.Step(options, x).ok());
    if (step > 3) {
      ASSERT_TRUE(crossed.Step(options, x).ok());
    }
    if (step == 3) {
      CopyParameters(*worker.module, *crossed.module);
      const OptimizerState state = worker.ddp->ExportState(Soon()).value();
      EXPECT_EQ(state.step, 3);
      EXPECT_EQ(state.slots, owner.ddp->ExportState(Soon())->slots);
      ASSERT_TRUE(crossed.ddp->ImportState(state, Soon()).ok());
      EXPECT_EQ(crossed.ddp->BeginStep(options).code(), absl::StatusCode::kInvalidArgument);
    }
    EXPECT_EQ(worker.ddp->ParamsSha256(), owner.ddp->ParamsSha256());
  }
  EXPECT_EQ(worker.ddp->ParamsSha256(), crossed.ddp->ParamsSha256());
}

TEST(DdpEngineTest, ParametersStayValidWhenEverythingElseIsGone) {
  std::shared_ptr<TinyModule> module;
  {
    Local local(UpdateSite::kWorker);
    module = local.module;
    ASSERT_TRUE(local.Step({1, 0.1, 0, 1}, at::ones({2, 4})).ok());
  }
  module->Loss(at::ones({2, 4})).backward();
  EXPECT_TRUE(module->scale.grad().defined());
}

// A module whose steps begin in backward.
struct InBackward {
  explicit InBackward(DdpEngineOptions options, UpdateSite site = UpdateSite::kWorker)
      : module(std::make_shared<TinyModule>()), sync(CreateLocalSync(site)) {
    options.optimizer = NesterovSpec();
    options.plan.first_bucket_bytes = options.plan.bucket_bytes = 128;
    options.on_backward = [this] { ++steps; };
    ddp = DdpEngine::Create(module, sync.get(), nullptr, std::move(options)).value();
  }

  absl::Status Step(const at::Tensor& x) {
    module->Loss(x).backward();
    return ddp->FinishStep(Soon());
  }

  int steps = 0;
  std::shared_ptr<TinyModule> module;
  std::unique_ptr<GradientSync> sync;
  std::unique_ptr<DdpEngine> ddp;
};

TEST_P(AtBothSitesTest, AStepThatBeginsInBackwardUpdatesByWhatTheNextStepsHave) {
  InBackward in_backward(DdpEngineOptions(), GetParam());
  Local plain(GetParam());
  CopyParameters(*in_backward.module, *plain.module);
  for (int64_t step = 1; step <= 3; ++step) {
    const StepOptions options = {step, 0.1 / static_cast<double>(step), 0.05, 1};
    const at::Tensor x = at::randn({7, 4});
    in_backward.ddp->SetNextSteps(options);
    ASSERT_EQ(in_backward.Step(x), absl::OkStatus());
    ASSERT_EQ(plain.Step(options, x), absl::OkStatus());
    EXPECT_EQ(in_backward.ddp->step(), step);
    EXPECT_EQ(in_backward.steps, step);
    ExpectClose(*in_backward.module, *plain.module);
  }
  in_backward.ddp->SetNextSteps({0, std::numeric_limits<double>::quiet_NaN(), 0, 1});
  EXPECT_EQ(in_backward.Step(at::ones({2, 4})).code(), absl::StatusCode::kInvalidArgument);
}

TEST(DdpEngineTest, UnusedParametersCountAsZeroWhereTheyMayBe) {
  DdpEngineOptions options;
  options.updates = false;
  options.find_unused_parameters = true;
  InBackward unused(std::move(options));
  ASSERT_TRUE(unused.Step(at::ones({2, 4})).ok());
  unused.module->scale.sum().backward();
  ASSERT_EQ(unused.ddp->FinishStep(Soon()), absl::OkStatus());
  EXPECT_TRUE(unused.module->scale.grad().equal(at::ones({8})));
  EXPECT_TRUE(unused.module->last_weight.grad().equal(at::zeros({3, 8})));
}

TEST(DdpEngineTest, AStepOfZerosIsAStep) {
  DdpEngineOptions options;
  options.updates = false;
  InBackward in_backward(std::move(options));
  ASSERT_TRUE(in_backward.Step(at::ones({2, 4})).ok());
  in_backward.module->zero_grad(/*set_to_none=*/true);
  ASSERT_EQ(in_backward.ddp->StepOfZeros(Soon()), absl::OkStatus());
  EXPECT_EQ(in_backward.ddp->step(), 2);
  EXPECT_EQ(in_backward.steps, 1);
  for (const at::Tensor& parameter : in_backward.module->parameters()) {
    EXPECT_TRUE(parameter.grad().equal(at::zeros_like(parameter)));
  }
  ASSERT_TRUE(in_backward.Step(at::ones({2, 4})).ok());
  EXPECT_EQ(in_backward.ddp->step(), 3);
}

TEST(DdpEngineTest, HooksMeetEachBucketBeforeItLeavesAndWhenItsMeanHasCome) {
  std::vector<std::string> calls;
  DdpEngineOptions options;
  options.updates = false;
  options.before_exchange = [&calls](int bucket) {
    calls.push_back(absl::StrCat("before ", bucket));
    return absl::OkStatus();
  };
  options.after_exchange = [&calls](int bucket) {
    calls.push_back(absl::StrCat("after ", bucket));
    return absl::OkStatus();
  };
  InBackward hooked(std::move(options));
  const int buckets = static_cast<int>(hooked.ddp->plan().buckets().size());
  ASSERT_GT(buckets, 1);
  ASSERT_TRUE(hooked.Step(at::ones({2, 4})).ok());
  std::vector<std::string> expected;
  for (const char* when : {"before ", "after "}) {
    for (int b = 0; b < buckets; ++b) expected.push_back(absl::StrCat(when, b));
  }
  EXPECT_EQ(calls, expected);
}

TEST(DdpEngineTest, AHooksErrorIsTheStepsAndNoLaterBucketLeaves) {
  int calls = 0;
  DdpEngineOptions options;
  options.updates = false;
  options.before_exchange = [&calls](int bucket) {
    ++calls;
    return bucket == 0 ? absl::DataLossError("not a number") : absl::OkStatus();
  };
  InBackward hooked(std::move(options));
  EXPECT_EQ(hooked.Step(at::ones({2, 4})), absl::DataLossError("not a number"));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(hooked.sync->status(), absl::DataLossError("not a number"));
}

TEST(DdpEngineTest, AHookForTheMeanIsRefusedWhereNobodyHasIt) {
  const auto sync = CreateLocalSync(UpdateSite::kOwner);
  DdpEngineOptions options;
  options.optimizer = NesterovSpec();
  options.after_exchange = [](int) { return absl::OkStatus(); };
  const absl::Status status =
      DdpEngine::Create(std::make_shared<TinyModule>(), sync.get(), nullptr, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("after_exchange"));
}

TEST(DdpEngineTest, GroupsComeFromTheCallersFunction) {
  auto module = std::make_shared<TinyModule>();
  const auto sync = CreateLocalSync(UpdateSite::kWorker);
  DdpEngineOptions options;
  options.optimizer = NesterovSpec();
  options.optimizer.groups.push_back({});
  options.group_of = [](const TensorSpec& spec) { return spec.sizes.size() < 2 ? 1 : 0; };
  const auto ddp = DdpEngine::Create(module, sync.get(), nullptr, std::move(options)).value();
  EXPECT_EQ(ddp->plan().tensors()[0].group, 0);
  EXPECT_EQ(ddp->plan().tensors()[1].group, 1);
}

}  // namespace
}  // namespace gradsync
