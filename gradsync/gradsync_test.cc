#include "gradsync/gradsync.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gradsync/collectives.h"
#include "gradsync/exchange.h"
#include "gtest/gtest.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/utils/clip_grad.h"
#include "torch/optim/adam.h"
#include "torch/optim/adamw.h"
#include "torch/optim/sgd.h"

namespace gradsync {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// A port of this host that nothing listens at.
std::string FreeMaster() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(listener);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

// Runs a rank in each of `ranks` threads.
void RunRanks(int ranks, Options options, const std::function<void(const Options& options)>& rank) {
  options.world_size = ranks;
  options.master = FreeMaster();
  std::vector<std::thread> threads;
  for (options.rank = 0; options.rank < ranks; ++options.rank) threads.emplace_back(rank, options);
  for (std::thread& thread : threads) thread.join();
}

Options Of(const std::string& topology, const std::string& link) {
  Options options;
  options.topology = topology;
  options.link = link;
  return options;
}

// The same values on all ranks.
void Fill(const torch::nn::Module& module) {
  c10::NoGradGuard no_grad;
  double value = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    for (int64_t i = 0; i < parameter.numel(); ++i) {
      value += 0.37;
      parameter.view(-1)[i] = 0.3 * std::sin(value);
    }
  }
}

torch::nn::Sequential MakeModel() {
  torch::nn::Sequential model(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3));
  Fill(*model);
  return model;
}

at::Tensor InputsOf(int64_t step, int rank) {
  return at::sin(at::arange(20).reshape({4, 5}) * 0.7 + static_cast<double>(10 * step + rank));
}

at::Tensor Loss(torch::nn::Sequential& model, const at::Tensor& inputs) {
  return (model->forward(inputs) - inputs.sum(1, true)).pow(2).mean();
}

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;

std::unique_ptr<torch::optim::Optimizer> MakeSgd(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(
      std::move(parameters), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
}

std::unique_ptr<torch::optim::Optimizer> MakeAdam(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                              torch::optim::AdamOptions(0.01));
}

constexpr int kSteps = 6;

// One process on all ranks' batches, in `parts` micro-batches each.
torch::nn::Sequential TrainAlone(int ranks, const MakeOptimizer& make, bool clip) {
  torch::nn::Sequential model = MakeModel();
  const auto optimizer = make(model->parameters());
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    for (int rank = 0; rank < ranks; ++rank) (Loss(model, InputsOf(step, rank)) / ranks).backward();
    if (clip) torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5);
    optimizer->step();
  }
  return model;
}

void ExpectClose(const torch::nn::Module& model, const torch::nn::Module& expected) {
  for (size_t i = 0; i < expected.parameters().size(); ++i) {
    EXPECT_TRUE(at::allclose(model.parameters()[i], expected.parameters()[i], 1e-5, 1e-6)) << i;
  }
}

// Small, so that each model has several.
DdpOptions SmallBuckets() {
  DdpOptions options;
  options.bucket_bytes = options.first_bucket_bytes = 128;
  return options;
}

TEST(GradsyncTest, AnyOptimizerTrainsAsOneProcessWould) {
  for (const MakeOptimizer& make : {MakeOptimizer(MakeSgd), MakeOptimizer(MakeAdam)}) {
    for (const Options& options : {Of("ring", "shm"), Of("ring", "grpc"), Of("ring", "gloo"),
                                   Of("ps", "grpc"), Of("ps", "auto")}) {
      torch::nn::Sequential alone = TrainAlone(3, make, /*clip=*/true);
      RunRanks(3, options, [&](const Options& own) {
        torch::nn::Sequential model = MakeModel();
        if (own.rank != 0) model->parameters()[0].data().zero_();  // rank 0's is taken
        Group group = Group::Join(own).value();
        auto ddp = DistributedDataParallel::Create(model.ptr(), group).value();
        const auto optimizer = make(model->parameters());
        for (int64_t step = 0; step < kSteps; ++step) {
          if (step % 3 == 0) optimizer->zero_grad();
          if (step % 3 == 1) model->zero_grad(/*set_to_none=*/true);
          Loss(model, InputsOf(step, own.rank)).backward();
          torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5);
          optimizer->step();
        }
        ExpectClose(*model, *alone);
        EXPECT_EQ(ddp.ParametersSha256().size(), 64u);
        EXPECT_TRUE(group.Leave().ok());
      });
    }
  }
}

TEST(GradsyncTest, MicroBatchesAreAddedUpUnderNoSync) {
  torch::nn::Sequential alone = TrainAlone(4, MakeSgd, /*clip=*/false);
  RunRanks(2, Of("ring", "shm"), [&](const Options& own) {
    torch::nn::Sequential model = MakeModel();
    Group group = Group::Join(own).value();
    auto ddp = DistributedDataParallel::Create(model.ptr(), group).value();
    const auto optimizer = MakeSgd(model->parameters());
    for (int64_t step = 0; step < kSteps; ++step) {
      optimizer->zero_grad();
      {
        const auto no_sync = ddp.no_sync();
        (Loss(model, InputsOf(step, own.rank)) / 2).backward();
      }
      (Loss(model, InputsOf(step, own.rank + 2)) / 2).backward();
      optimizer->step();
    }
    ExpectClose(*model, *alone);
  });
}

TEST(GradsyncTest, BuffersAreRankZerosWhenTheyAreAskedFor) {
  RunRanks(2, Of("ring", "shm"), [&](const Options& own) {
    torch::nn::Sequential model(torch::nn::Linear(5, 3), torch::nn::BatchNorm1d(3));
    Group group = Group::Join(own).value();
    DdpOptions options;
    options.broadcast_buffers = true;
    auto ddp = DistributedDataParallel::Create(model.ptr(), group, options).value();
    const at::Tensor mean = model->buffers()[0];
    Loss(model, InputsOf(1, own.rank)).backward();
    EXPECT_NE(mean[0].item<float>(), 0.0f);
    mean.fill_(own.rank + 4.0);
    EXPECT_TRUE(ddp.BroadcastBuffers().ok());
    EXPECT_EQ(mean[0].item<float>(), 4.0f);
  });
}

TEST(GradsyncTest, AParameterWithoutAGradientIsNamedByBackward) {
  RunRanks(2, Of("ring", "shm"), [&](const Options& own) {
    torch::nn::Sequential model(torch::nn::Linear(5, 3), torch::nn::Linear(3, 3));
    Group group = Group::Join(own).value();
    try {
      // The other rank may have failed before this call has returned.
      auto ddp = DistributedDataParallel::Create(model.ptr(), group).value();
      model->ptr(0)->as<torch::nn::Linear>()->forward(InputsOf(1, 0)).sum().backward();
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      if (error.status().code() == StatusCode::kInvalidArgument) {
        EXPECT_THAT(error.what(), HasSubstr("found none for 1.weight, 1.bias"));
      } else {
        EXPECT_EQ(error.status().code(), StatusCode::kAborted) << error.what();
      }
    }
    EXPECT_FALSE(group.Leave().ok());
  });
}

TEST(GradsyncTest, AGroupFailsWhenAnExceptionFlies) {
  RunRanks(2, Of("ring", "grpc"), [&](const Options& own) {
    torch::nn::Sequential model = MakeModel();
    try {
      Group group = Group::Join(own).value();
      auto ddp = DistributedDataParallel::Create(model.ptr(), group).value();
      for (int64_t step = 0;; ++step) {
        Loss(model, InputsOf(step, own.rank)).backward();
        // LibTorch's, of a size that does not fit.
        if (step == 2 && own.rank == 1) model->forward(at::zeros({1, 99}));
      }
    } catch (const Error& error) {
      EXPECT_EQ(own.rank, 0);
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
      EXPECT_THAT(error.what(), HasSubstr("ended in the middle of its training"));
    } catch (const c10::Error& error) {
      EXPECT_EQ(own.rank, 1) << error.what();
    }
  });
}

TEST(GradsyncTest, WhatAGroupOrAModuleMayNotBeIsSaid) {
  EXPECT_THAT(Group::Join(Of("star", "auto")).status().message(), HasSubstr("--topology"));
  Group group = Group::Join(Of("local", "auto")).value();
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.world_size(), 1);
  torch::nn::Sequential model = MakeModel();
  auto ddp = DistributedDataParallel::Create(model.ptr(), group);
  ASSERT_TRUE(ddp.ok());
  EXPECT_THAT(Exchange::Bind(&group, {{"weight", 3}}).status().message(),
              HasSubstr("found one that has a model"));
  Group other = Group::Join(Of("local", "auto")).value();
  torch::nn::Sequential empty;
  EXPECT_THAT(DistributedDataParallel::Create(empty.ptr(), other).status().message(),
              HasSubstr("expected trainable parameters, found none"));
  EXPECT_TRUE(group.Leave().ok());
  EXPECT_TRUE(group.Leave().ok());
}

// A parameter that is used twice, and two branches that are not used in each step.
struct Branches : torch::nn::Module {
  Branches() {
    tied = register_parameter("tied", at::zeros({5, 5}));
    left = register_module("left", torch::nn::Linear(5, 3));
    right = register_module("right", torch::nn::Linear(5, 3));
    Fill(*this);
  }

  at::Tensor Loss(int64_t step, int rank) {
    const at::Tensor hidden = at::tanh(InputsOf(step, rank).matmul(tied).matmul(tied));
    at::Tensor loss = hidden.pow(2).mean();
    if ((step + rank) % 2 == 0) loss = loss + (left->forward(hidden) - 1).pow(2).mean();
    if (step == 4 && rank == 1) loss = loss + (right->forward(hidden) - 1).pow(2).mean();
    return loss;
  }

  // Rank 1 has nothing to learn in this step, though it has a graph.
  static bool HasGradients(int64_t step, int rank) { return step != 3 || rank != 1; }

  at::Tensor tied;
  torch::nn::Linear left{nullptr}, right{nullptr};
};

TEST(GradsyncTest, UnusedParametersCountAsZeroWhereTheyMayBeUnused) {
  constexpr int kRanks = 3;
  Branches alone;
  const auto optimizer = MakeSgd(alone.parameters());
  for (int64_t step = 0; step < kSteps; ++step) {
    for (const at::Tensor& p : alone.parameters()) p.mutable_grad() = at::zeros_like(p);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (Branches::HasGradients(step, rank)) (alone.Loss(step, rank) / kRanks).backward();
    }
    optimizer->step();
  }
  for (const Options& options :
       {Of("ring", "shm"), Of("ring", "grpc"), Of("ring", "gloo"), Of("ps", "grpc")}) {
    for (const bool observed : {false, true}) {
      RunRanks(kRanks, options, [&](const Options& own) {
        auto model = std::make_shared<Branches>();
        Group group = Group::Join(own).value();
        DdpOptions ddp_options = SmallBuckets();
        ddp_options.find_unused_parameters = true;
        if (observed) ddp_options.forward_backward = [&] { model->Loss(0, 1).backward(); };
        auto ddp = DistributedDataParallel::Create(model, group, ddp_options).value();
        const auto own_optimizer = MakeSgd(model->parameters());
        for (int64_t step = 0; step < kSteps; ++step) {
          own_optimizer->zero_grad();
          if (Branches::HasGradients(step, own.rank)) {
            model->Loss(step, own.rank).backward();
          } else {
            EXPECT_TRUE(ddp.StepWithoutGradients().ok());
          }
          own_optimizer->step();
        }
        ExpectClose(*model, alone);
        EXPECT_TRUE(group.Leave().ok());
      });
    }
  }
}

// By rank, in two epochs.
constexpr int kUneven[2][3] = {{2, 5, 3}, {4, 1, 0}};

torch::nn::Sequential TrainUnevenAlone(const MakeOptimizer& make) {
  torch::nn::Sequential model = MakeModel();
  const auto optimizer = make(model->parameters());
  for (int epoch : {0, 1}) {
    const int most = *std::max_element(kUneven[epoch], kUneven[epoch] + 3);
    for (int64_t step = 0; step < most; ++step) {
      optimizer->zero_grad();
      for (int rank = 0; rank < 3; ++rank) {
        if (step < kUneven[epoch][rank]) {
          (Loss(model, InputsOf(10 * epoch + step, rank)) / 3).backward();
        }
      }
      optimizer->step();
    }
  }
  return model;
}

std::unique_ptr<torch::optim::Optimizer> MakePlainSgd(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(0.05));
}

TEST(GradsyncTest, RanksMayHaveDifferentNumbersOfBatches) {
  for (const bool follows : {true, false}) {
    // Without a step of their own, ranks that have finished keep the momentum that they had.
    const MakeOptimizer make = follows ? MakeOptimizer(MakeSgd) : MakeOptimizer(MakePlainSgd);
    torch::nn::Sequential alone = TrainUnevenAlone(make);
    for (const Options& options :
         {Of("ring", "shm"), Of("ring", "grpc"), Of("ring", "gloo"), Of("ps", "grpc")}) {
      std::string hashes[2][3];
      RunRanks(3, options, [&](const Options& own) {
        torch::nn::Sequential model = MakeModel();
        Group group = Group::Join(own).value();
        DdpOptions ddp_options = SmallBuckets();
        ddp_options.broadcast_buffers = options.link == "shm";
        auto ddp = DistributedDataParallel::Create(model.ptr(), group, ddp_options).value();
        const auto optimizer = make(model->parameters());
        for (int epoch : {0, 1}) {
          {
            auto join = ddp.join();
            for (int64_t step = 0; step < kUneven[epoch][own.rank]; ++step) {
              optimizer->zero_grad();
              Loss(model, InputsOf(10 * epoch + step, own.rank)).backward();
              optimizer->step();
            }
            if (own.rank == 2) model->zero_grad(/*set_to_none=*/true);
            if (follows) {
              EXPECT_TRUE(join.Finish([&] { optimizer->step(); }).ok());
              EXPECT_TRUE(join.Finish().ok());
            }
          }
          hashes[epoch][own.rank] = ddp.ParametersSha256();
        }
        ExpectClose(*model, *alone);
        EXPECT_TRUE(group.Leave().ok());
      });
      for (int epoch : {0, 1}) EXPECT_THAT(hashes[epoch], Each(hashes[epoch][0]));
    }
  }
}

TEST(GradsyncTest, RanksWithEquallyManyBatchesFinishTogether) {
  torch::nn::Sequential alone = TrainAlone(2, MakeSgd, /*clip=*/false);
  for (const int ranks : {2, 1}) {
    RunRanks(ranks, Of("ring", "shm"), [&](const Options& own) {
      torch::nn::Sequential model = MakeModel();
      Group group = Group::Join(own).value();
      auto ddp = DistributedDataParallel::Create(model.ptr(), group).value();
      const auto optimizer = MakeSgd(model->parameters());
      auto join = ddp.join();
      for (int64_t step = 0; step < kSteps; ++step) {
        optimizer->zero_grad();
        Loss(model, InputsOf(step, own.rank)).backward();
        optimizer->step();
      }
      EXPECT_TRUE(join.Finish().ok());
      if (ranks == 2) ExpectClose(*model, *alone);
    });
  }
}

TEST(GradsyncTest, BuffersBecomeThoseOfTheRankThatHadTheMostBatches) {
  RunRanks(3, Of("ring", "shm"), [&](const Options& own) {
    torch::nn::Sequential model(torch::nn::Linear(5, 3), torch::nn::BatchNorm1d(3));
    Group group = Group::Join(own).value();
    auto ddp = DistributedDataParallel::Create(model.ptr(), group).value();
    {
      auto join = ddp.join();
      const int batches = own.rank == 1 ? 4 : 1;
      for (int64_t step = 0; step < batches; ++step) {
        Loss(model, InputsOf(step, own.rank)).backward();
      }
    }
    EXPECT_EQ(model->buffers()[2].item<int64_t>(), 4);  // num_batches_tracked
  });
}

// Two models, each of which is trained by a loss that the other's output is in.
struct Gan {
  Gan() : generator(MakeModel()), discriminator(torch::nn::Linear(3, 4), torch::nn::Linear(4, 1)) {
    Fill(*discriminator);
    of_generator = MakeSgd(generator->parameters());
    of_discriminator = MakeSgd(discriminator->parameters());
  }

  at::Tensor Judge(const at::Tensor& outputs, double target) {
    return (discriminator->forward(outputs) - target).pow(2).mean();
  }

  at::Tensor DiscriminatorsLoss(int64_t step, int rank) {
    const at::Tensor inputs = InputsOf(step, rank);
    return Judge(generator->forward(inputs).detach(), 0) + Judge(inputs.slice(1, 0, 3), 1);
  }

  at::Tensor GeneratorsLoss(int64_t step, int rank) {
    return Judge(generator->forward(InputsOf(step, rank)), 1);
  }

  void Freeze(bool frozen) {
    for (at::Tensor parameter : discriminator->parameters()) parameter.requires_grad_(!frozen);
  }

  torch::nn::Sequential generator, discriminator;
  std::unique_ptr<torch::optim::Optimizer> of_generator, of_discriminator;
};

TEST(GradsyncTest, TwoModelsOfAProcessTrainOverGroupsOfTheirOwn) {
  constexpr int kRanks = 2;
  Gan alone;
  for (int64_t step = 0; step < kSteps; ++step) {
    alone.of_discriminator->zero_grad();
    for (int r = 0; r < kRanks; ++r) (alone.DiscriminatorsLoss(step, r) / kRanks).backward();
    alone.of_discriminator->step();
    alone.of_generator->zero_grad();
    for (int r = 0; r < kRanks; ++r) (alone.GeneratorsLoss(step, r) / kRanks).backward();
    alone.of_generator->step();
  }
  for (const Options& options : {Of("ring", "shm"), Of("ring", "grpc"), Of("ring", "gloo"),
                                 Of("ps", "grpc"), Of("ps", "auto")}) {
    for (const bool freezes : {true, false}) {
      RunRanks(kRanks, options, [&](const Options& own) {
        Gan gan;
        Group job = Group::Join(own).value();
        {
          Group first = job.New("generator").value();
          Group second = job.New("discriminator").value();
          EXPECT_EQ(second.rank(), own.rank);
          EXPECT_EQ(second.world_size(), kRanks);
          auto generator =
              DistributedDataParallel::Create(gan.generator.ptr(), first, SmallBuckets()).value();
          auto discriminator =
              DistributedDataParallel::Create(gan.discriminator.ptr(), second, SmallBuckets())
                  .value();
          for (int64_t step = 0; step < kSteps; ++step) {
            gan.of_discriminator->zero_grad();
            gan.DiscriminatorsLoss(step, own.rank).backward();
            gan.of_discriminator->step();
            gan.of_generator->zero_grad();
            if (freezes) {
              gan.Freeze(true);
              gan.GeneratorsLoss(step, own.rank).backward();
              gan.Freeze(false);
            } else {
              const auto held = discriminator.no_sync();
              gan.GeneratorsLoss(step, own.rank).backward();
            }
            gan.of_generator->step();
          }
          ExpectClose(*gan.generator, *alone.generator);
          ExpectClose(*gan.discriminator, *alone.discriminator);
          EXPECT_TRUE(second.Leave().ok());
        }
        EXPECT_TRUE(job.Leave().ok());
      });
    }
  }
}

TEST(GradsyncTest, OneBackwardMayReachTwoModels) {
  Gan alone;
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int r = 0; r < 2; ++r) (alone.GeneratorsLoss(step, r) / 2).backward();
    for (torch::optim::Optimizer* optimizer :
         {alone.of_generator.get(), alone.of_discriminator.get()}) {
      optimizer->step();
      optimizer->zero_grad();
    }
  }
  RunRanks(2, Of("ring", "shm"), [&](const Options& own) {
    Gan gan;
    Group group = Group::Join(own).value();
    Group other = group.New("discriminator").value();
    auto generator = DistributedDataParallel::Create(gan.generator.ptr(), group).value();
    auto discriminator = DistributedDataParallel::Create(gan.discriminator.ptr(), other).value();
    for (int64_t step = 0; step < kSteps; ++step) {
      gan.GeneratorsLoss(step, own.rank).backward();
      gan.of_generator->step();
      gan.of_discriminator->step();
    }
    ExpectClose(*gan.generator, *alone.generator);
    ExpectClose(*gan.discriminator, *alone.discriminator);
  });
}

TEST(GradsyncTest, ANewGroupNeedsANameThatAllRanksGive) {
  for (const char* name : {"", "a/b"}) {
    Group group = Group::Join(Of("local", "auto")).value();
    EXPECT_THAT(group.New(name).status().message(), HasSubstr("expected a name without slashes"));
  }
  Group group = Group::Join(Of("local", "auto")).value();
  Group twin = group.New("twin").value();
  EXPECT_THAT(group.New("twin").status().message(), HasSubstr("taken before"));
  RunRanks(2, Of("ring", "shm"), [](const Options& own) {
    Group joined = Group::Join(own).value();
    const Status status = joined.New(own.rank == 0 ? "first" : "second").status();
    EXPECT_THAT(status.message(), HasSubstr("found \"first\" on rank 0, \"second\" on rank 1"));
  });
}

TEST(GradsyncTest, TheFateOfANewGroupIsTheJobs) {
  RunRanks(2, Of("ring", "grpc"), [](const Options& own) {
    torch::nn::Sequential model = MakeModel();
    Group job = Group::Join(own).value();
    Group group = job.New("model").value();
    auto ddp = DistributedDataParallel::Create(model.ptr(), group).value();
    if (own.rank == 1) {
      Loss(model, InputsOf(0, own.rank)).backward();
      EXPECT_FALSE(job.Fail(Status(StatusCode::kDataLoss, "no more data")).ok());
      return;
    }
    try {
      // The failure may be here before the first call's result is.
      for (int step = 0; step < 2; ++step) Loss(model, InputsOf(step, own.rank)).backward();
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("no more data"));
    }
    EXPECT_FALSE(group.Leave().ok());
  });
}

TEST(GradsyncTest, AHookChangesWhatLeavesAndWhatHasCome) {
  torch::nn::Sequential alone = MakeModel();
  const auto optimizer = MakePlainSgd(alone->parameters());
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    for (int rank = 0; rank < 2; ++rank) (Loss(alone, InputsOf(step, rank)) * rank).backward();
    for (const at::Tensor& p : alone->parameters()) p.grad().clamp_(-0.1, 0.1);
    optimizer->step();
  }
  for (const Options& options : {Of("ring", "shm"), Of("ps", "grpc")}) {
    RunRanks(2, options, [&](const Options& own) {
      torch::nn::Sequential model = MakeModel();
      std::vector<std::string> names;
      Group group = Group::Join(own).value();
      DdpOptions ddp_options = SmallBuckets();
      ddp_options.comm_hook.before = [&](const GradientBucket& bucket) {
        for (const at::Tensor& gradient : bucket.gradients) gradient.mul_(2 * own.rank);
      };
      ddp_options.comm_hook.after = [&](const GradientBucket& bucket) {
        for (const at::Tensor& gradient : bucket.gradients) gradient.clamp_(-0.1, 0.1);
        if (bucket.index == 0) names.clear();
        names.insert(names.end(), bucket.names.begin(), bucket.names.end());
        EXPECT_EQ(bucket.is_last, names.size() == 4);
      };
      auto ddp = DistributedDataParallel::Create(model.ptr(), group, ddp_options).value();
      const auto own_optimizer = MakePlainSgd(model->parameters());
      for (int64_t step = 0; step < kSteps; ++step) {
        Loss(model, InputsOf(step, own.rank)).backward();
        own_optimizer->step();
      }
      ExpectClose(*model, *alone);
      EXPECT_THAT(names, UnorderedElementsAre("0.weight", "0.bias", "1.weight", "1.bias"));
    });
  }
}

TEST(GradsyncTest, WhatAHookThrowsEndsTheGroup) {
  RunRanks(2, Of("ring", "shm"), [](const Options& own) {
    torch::nn::Sequential model = MakeModel();
    Group group = Group::Join(own).value();
    DdpOptions options;
    options.comm_hook.before = [&](const GradientBucket& bucket) {
      if (own.rank == 1) bucket.gradients[0].add_(at::zeros({99}));  // LibTorch's exception
    };
    try {
      // Rank 1 may have failed before this call has returned on rank 0.
      auto ddp = DistributedDataParallel::Create(model.ptr(), group, options).value();
      Loss(model, InputsOf(0, own.rank)).backward();
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code(),
                own.rank == 1 ? StatusCode::kInternal : StatusCode::kAborted);
      EXPECT_THAT(error.what(), HasSubstr("comm_hook threw in bucket 0"));
    }
  });
}

double RateOf(int64_t step) { return 0.02 / static_cast<double>(1 + step); }

// Of all ranks' parameters, which must be equal.
std::string TrainWithOwnOptimizer(Options options, const std::string& update,
                                  const OptimizerOptions& optimizer,
                                  const torch::nn::Module& expected) {
  options.update = update;
  std::string hashes[3];
  RunRanks(3, options, [&](const Options& own) {
    torch::nn::Sequential model = MakeModel();
    Group group = Group::Join(own).value();
    DdpOptions ddp_options = SmallBuckets();
    ddp_options.optimizer = optimizer;
    auto ddp = DistributedDataParallel::Create(model.ptr(), group, ddp_options).value();
    for (int64_t step = 0; step < kSteps; ++step) {
      ddp.set_learning_rate(RateOf(step));
      Loss(model, InputsOf(step, own.rank)).backward();
    }
    ExpectClose(*model, expected);
    hashes[own.rank] = ddp.ParametersSha256();
    EXPECT_TRUE(group.Leave().ok());
  });
  EXPECT_THAT(hashes, Each(hashes[0]));
  return hashes[0];
}

TEST(GradsyncTest, TheLibrarysOptimizersUpdateAtTheWorkerOrTheOwnerWithEqualBits) {
  for (const bool sgd : {true, false}) {
    OptimizerOptions optimizer;
    optimizer.kind = sgd ? OptimizerOptions::Kind::kSgd : OptimizerOptions::Kind::kAdamW;
    optimizer.groups[0].momentum = 0.9;
    optimizer.groups[0].weight_decay = 0.01;
    optimizer.max_norm = sgd ? 0.5 : 0;
    torch::nn::Sequential alone = MakeModel();
    std::unique_ptr<torch::optim::Optimizer> torchs = MakeSgd(alone->parameters());
    if (!sgd) {
      torchs = std::make_unique<torch::optim::AdamW>(
          alone->parameters(), torch::optim::AdamWOptions(0.02).weight_decay(0.01));
    }
    for (int64_t step = 0; step < kSteps; ++step) {
      torchs->zero_grad();
      for (int rank = 0; rank < 3; ++rank) (Loss(alone, InputsOf(step, rank)) / 3).backward();
      if (sgd) torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.5);
      torchs->param_groups()[0].options().set_lr(RateOf(step));
      torchs->step();
    }
    const std::string expected =
        TrainWithOwnOptimizer(Of("ring", "grpc"), "worker", optimizer, *alone);
    for (const Options& options :
         {Of("ring", "grpc"), Of("ring", "shm"), Of("ps", "grpc"), Of("ps", "shm")}) {
      EXPECT_EQ(TrainWithOwnOptimizer(options, "owner", optimizer, *alone), expected);
    }
  }
}

TEST(GradsyncTest, GroupsOfParametersHaveConstantsOfTheirOwn) {
  torch::nn::Sequential model = MakeModel();
  const at::Tensor weight = model->parameters()[0].detach().clone();
  const at::Tensor bias = model->parameters()[1].detach().clone();
  Options options = Of("local", "auto");
  options.update = "owner";
  Group group = Group::Join(options).value();
  DdpOptions ddp_options;
  OptimizerOptions& optimizer = ddp_options.optimizer.emplace();
  optimizer.groups.resize(2);
  optimizer.groups[1].lr_scale = 0;
  optimizer.group_of = [](const std::string& name) { return name == "0.bias" ? 1 : 0; };
  auto ddp = DistributedDataParallel::Create(model.ptr(), group, ddp_options).value();
  Loss(model, InputsOf(0, 0)).backward();
  EXPECT_FALSE(model->parameters()[0].equal(weight));
  EXPECT_TRUE(model->parameters()[1].equal(bias));
}

TEST(GradsyncTest, WhatDoesNotGoWithUpdateAtTheOwnerIsRefused) {
  Options options = Of("local", "auto");
  options.update = "owner";
  const auto refusal = [&](const DdpOptions& ddp_options) {
    torch::nn::Sequential model = MakeModel();
    Group group = Group::Join(options).value();
    return DistributedDataParallel::Create(model.ptr(), group, ddp_options).status().message();
  };
  DdpOptions ddp_options;
  EXPECT_THAT(refusal(ddp_options), HasSubstr("DdpOptions::optimizer: expected one"));
  ddp_options.optimizer.emplace();
  EXPECT_EQ(refusal(ddp_options), "");
  ddp_options.comm_hook.after = [](const GradientBucket&) {};
  EXPECT_THAT(refusal(ddp_options), HasSubstr("DdpOptions::comm_hook.after: expected none"));
  Group group = Group::Join(options).value();
  EXPECT_THAT(Exchange::Bind(&group, {{"weight", 3}}).status().message(),
              HasSubstr("--update: expected worker"));
  options.update = "nobody";
  EXPECT_THAT(Group::Join(options).status().message(), HasSubstr("--update"));

  torch::nn::Sequential model = MakeModel();
  Group alone = Group::Join(Of("local", "auto")).value();
  ddp_options.comm_hook.after = nullptr;
  auto ddp = DistributedDataParallel::Create(model.ptr(), alone, ddp_options).value();
  EXPECT_THAT(ddp.join().Finish().message(), HasSubstr("join(): expected an optimizer of the"));
}

// Beside what is trained, in fp32, tensors of other types, of which one is large.
struct OtherTypes : torch::nn::Module {
  explicit OtherTypes(double value) {
    trained = register_module("trained", torch::nn::Linear(5, 3));
    for (const at::ScalarType type : {at::kHalf, at::kBFloat16, at::kDouble, at::kFloat}) {
      register_parameter(std::string("frozen_") + c10::toString(type),
                         at::full({3, 2}, value, type).t(), /*requires_grad=*/false);
    }
    register_parameter("large", at::full({3000, 1000}, value, at::kHalf), /*requires_grad=*/false);
    for (const at::ScalarType type : {at::kLong, at::kByte, at::kBool, at::kComplexFloat}) {
      register_buffer(std::string("buffer_") + c10::toString(type), at::full({}, value, type));
    }
    register_buffer("empty", at::zeros({0}, at::kInt));
  }

  torch::nn::Linear trained{nullptr};
};

TEST(GradsyncTest, FrozenParametersAndBuffersMayBeOfAnyTypeAndSize) {
  OtherTypes rank_zeros(1);
  for (const Options& options : {Of("ring", "shm"), Of("ps", "grpc")}) {
    RunRanks(2, options, [&](const Options& own) {
      auto model = std::make_shared<OtherTypes>(own.rank == 0 ? 1 : 0);
      Group group = Group::Join(own).value();
      auto ddp = DistributedDataParallel::Create(model, group).value();
      model->trained->forward(InputsOf(0, own.rank)).sum().backward();
      EXPECT_TRUE(ddp.BroadcastBuffers().ok());
      for (const auto& item : rank_zeros.named_parameters()) {
        if (item.value().requires_grad()) continue;
        EXPECT_TRUE(model->named_parameters()[item.key()].equal(item.value())) << item.key();
      }
      for (const auto& item : rank_zeros.named_buffers()) {
        EXPECT_TRUE(model->named_buffers()[item.key()].equal(item.value())) << item.key();
      }
    });
  }
}

TEST(GradsyncTest, AParameterThatIsTrainedInAnotherTypeIsRefusedByName) {
  Group group = Group::Join(Of("local", "auto")).value();
  torch::nn::Sequential model = MakeModel();
  model->to(at::kDouble);
  EXPECT_THAT(
      DistributedDataParallel::Create(model.ptr(), group).status().message(),
      HasSubstr("parameter 0.weight: expected a strided fp32 tensor on cpu, found Double on "
                "cpu; convert the module first or freeze the parameter"));
}

// The option was compared between ranks, and then forgotten.
TEST(GradsyncTest, CompressionRoundsWhatIsSent) {
  std::string hashes[2];
  for (const bool compressed : {false, true}) {
    Options options = Of("ring", "grpc");
    if (compressed) options.compression = "bf16";
    RunRanks(2, options, [&](const Options& own) {
      torch::nn::Sequential model = MakeModel();
      Group group = Group::Join(own).value();
      auto ddp = DistributedDataParallel::Create(model.ptr(), group).value();
      const auto optimizer = MakePlainSgd(model->parameters());
      Loss(model, InputsOf(0, own.rank)).backward();
      optimizer->step();
      if (own.rank == 0) hashes[compressed] = ddp.ParametersSha256();
    });
  }
  EXPECT_NE(hashes[0], hashes[1]);
}

TEST(GradsyncTest, ASamplerGivesTheSamplesOfPytorchs) {
  DistributedSamplerOptions options;
  EXPECT_EQ(DistributedSampler::Create(options).status().code(), StatusCode::kInvalidArgument);
  options.dataset_size = 10;
  // torch.randperm(10) with seeds 0 and 7.
  EXPECT_THAT(DistributedSampler::Create(options).value().Indices(0),
              ElementsAre(4, 1, 7, 5, 3, 9, 0, 8, 6, 2));
  options.seed = 3;
  options.world_size = 3;
  options.rank = 2;
  const DistributedSampler padded = DistributedSampler::Create(options).value();
  EXPECT_EQ(padded.samples_per_rank(), 4);
  EXPECT_THAT(padded.Indices(4), ElementsAre(3, 7, 8, 0));  // of 5 0 3 4 1 7 9 6 8 2 5 0
  options.drop_last = true;
  EXPECT_THAT(DistributedSampler::Create(options).value().Indices(4), ElementsAre(3, 7, 8));
  options.shuffle = false;
  EXPECT_THAT(DistributedSampler::Create(options).value().Indices(4), ElementsAre(2, 5, 8));
}

TEST(GradsyncTest, ValuesAndErrorsAreOneOrTheOther) {
  Result<int> value = 3;
  EXPECT_TRUE(value.ok());
  EXPECT_EQ(value.value(), 3);
  Result<int> error = Status(StatusCode::kNotFound, "expected a number, found none");
  EXPECT_FALSE(error.ok());
  EXPECT_THROW(error.value(), Error);
  try {
    error.status().OrThrow();
  } catch (const Error& thrown) {
    EXPECT_EQ(thrown.status().code(), StatusCode::kNotFound);
    EXPECT_STREQ(thrown.what(), "expected a number, found none");
  }
  Status().OrThrow();
}

TEST(GradsyncTest, CollectivesWorkBesideAModel) {
  for (const Options& options : {Of("ring", "shm"), Of("ring", "grpc"), Of("ring", "gloo"),
                                 Of("ps", "grpc"), Of("ps", "auto")}) {
    constexpr int n = 3;
    RunRanks(n, options, [&](const Options& own) {
      torch::nn::Sequential model = MakeModel();
      Group group = Group::Join(own).value();
      auto collectives = Collectives::Open(group).value();
      EXPECT_EQ(collectives.world_size(), n);
      auto ddp = DistributedDataParallel::Create(model.ptr(), group).value();
      for (int64_t step = 0; step < 3; ++step) {
        Loss(model, InputsOf(step, own.rank)).backward();
        std::vector<double> values(1000, collectives.rank() + 1);
        collectives.AllReduce(values.data(), 1000, DataType::kFloat64, ReduceOp::kSum).OrThrow();
        EXPECT_EQ(values, std::vector<double>(1000, n * (n + 1) / 2));
      }
      std::vector<int32_t> all(n);
      const int32_t rank = collectives.rank();
      Collectives again = Collectives::Open(group).value();
      again.AllGather(&rank, all.data(), sizeof(rank)).OrThrow();
      EXPECT_EQ(all.back(), n - 1);
      EXPECT_EQ(again.Broadcast(all.data(), 4, n).code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(again.AllReduce(all.data(), 1, DataType::kInt32, ReduceOp::kAvg).code(),
                StatusCode::kInvalidArgument);
      again.Barrier().OrThrow();
      EXPECT_TRUE(group.Leave().ok());
      EXPECT_EQ(again.Barrier().code(), StatusCode::kCancelled);
      EXPECT_EQ(Collectives::Open(group).status().code(), StatusCode::kCancelled);
    });
  }
}

TEST(GradsyncTest, AGroupFailsCollectivesOfAllRanks) {
  RunRanks(2, Of("ring", "shm"), [&](const Options& own) {
    Group group = Group::Join(own).value();
    auto collectives = Collectives::Open(group).value();
    if (own.rank == 1) {
      EXPECT_TRUE(collectives.Barrier().ok());  // so that rank 0 has opened its own
      EXPECT_FALSE(group.Fail(Status(StatusCode::kInternal, "no more data")).ok());
      return;
    }
    // The failure may be here before the first call's result is.
    Status status = collectives.Barrier();
    if (status.ok()) status = collectives.Barrier();
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_THAT(status.message(), HasSubstr("rank 1"));
    EXPECT_THAT(status.message(), HasSubstr("no more data"));
    EXPECT_FALSE(group.Leave().ok());
  });
}

TEST(GradsyncTest, RanksMeetWhereRankZeroSaysThatItListens) {
  std::promise<std::string> listens;
  Options options = Of("ring", "shm");
  options.world_size = 2;
  std::thread other([options, &listens]() mutable {
    options.rank = 1;
    options.master = listens.get_future().get();
    Group group = Group::Join(options).value();
    EXPECT_TRUE(group.Leave().ok());
  });
  options.rank = 0;
  options.master = "127.0.0.1:0";
  options.on_listening = [&](const std::string& address) {
    listens.set_value(address);
    return Status();
  };
  Group group = Group::Join(options).value();
  // Any thread may go on.
  std::thread([&group] { EXPECT_TRUE(group.Leave().ok()); }).join();
  other.join();
}

TEST(GradsyncTest, AJoinEndsWhenNobodyCanBeToldTheAddress) {
  Options options = Of("ring", "shm");
  options.rank = 0;
  options.world_size = 2;
  options.master = "127.0.0.1:0";
  options.on_listening = [](const std::string&) {
    return Status(StatusCode::kUnavailable, "nobody is there");
  };
  EXPECT_EQ(Group::Join(options).status().message(), "nobody is there");
}

TEST(GradsyncTest, WordsOfACommandLineAreOptions) {
  const char* const words[] = {"topology=ps", "servers=a:1,b:2", "timeout=2s"};
  const Options options = Options::Parse(3, words).value();
  EXPECT_EQ(options.topology, "ps");
  EXPECT_EQ(options.servers, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_EQ(options.timeout, std::chrono::seconds(2));
  EXPECT_EQ(Options::Parse(-1, nullptr).value().topology, Options().topology);

  const char* const wrong[] = {"ring"};
  const Result<Options> refused = Options::Parse(1, wrong);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status().message(),
            "expected NAME=VALUE, an option and its value, found \"ring\"");
}

}  // namespace
}  // namespace gradsync
