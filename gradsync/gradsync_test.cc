#include "gradsync/gradsync.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gradsync/exchange.h"
#include "gtest/gtest.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/utils/clip_grad.h"
#include "torch/optim/adam.h"
#include "torch/optim/sgd.h"

namespace gradsync {
namespace {

using testing::HasSubstr;

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

torch::nn::Sequential MakeModel() {
  torch::nn::Sequential model(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3));
  c10::NoGradGuard no_grad;
  double value = 0;
  for (at::Tensor& parameter : model->parameters()) {
    for (int64_t i = 0; i < parameter.numel(); ++i) {
      value += 0.37;
      parameter.view(-1)[i] = 0.3 * std::sin(value);
    }
  }
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

void ExpectClose(torch::nn::Sequential& model, torch::nn::Sequential& expected) {
  for (size_t i = 0; i < expected->parameters().size(); ++i) {
    EXPECT_TRUE(at::allclose(model->parameters()[i], expected->parameters()[i], 1e-5, 1e-6));
  }
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
        ExpectClose(model, alone);
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
    ExpectClose(model, alone);
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
    auto ddp = DistributedDataParallel::Create(model.ptr(), group).value();
    try {
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

}  // namespace
}  // namespace gradsync
