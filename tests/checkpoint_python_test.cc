// Weights go to Python and come from it: torch.load(weights_only=True) reads model.pt, torchvision
// loads it strictly, and what torch.save writes is what a job starts from. Needs Debian's
// python3-torchvision.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/temporary_folder.h"
#include "checkpoint/host_tensor.h"
#include "checkpoint/read_weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker_processes.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kPython[] = "/usr/bin/python3";

class CheckpointPythonTest : public ::testing::Test {
 protected:
  CheckpointPythonTest() : temporary_(TemporaryFolder::Create("checkpoint-python-").value()) {}

  void SetUp() override {
    if (!std::filesystem::exists("/usr/lib/python3/dist-packages/torchvision")) {
      GTEST_SKIP() << "there is no python3-torchvision; tools/setup --extras installs it";
    }
  }

  std::string Path(const std::string& name) const { return temporary_.path() + "/" + name; }

  // Runs lines of Python, which begin with torch imported, in the test's folder. What it prints.
  std::string Python(const std::vector<std::string>& lines) {
    const std::string script = absl::StrCat("import os, torch\nos.chdir(\"", temporary_.path(),
                                            "\")\n", absl::StrJoin(lines, "\n"));
    TestProgram python({kPython, "-c", script});
    EXPECT_EQ(python.Finish(absl::Seconds(100)).code, 0) << absl::StrJoin(python.err(), "\n");
    return absl::StrJoin(python.out(), "\n");
  }

  const TemporaryFolder temporary_;
};

// ResNet-18, one worker, nothing changed by its one step.
std::vector<std::string> Frozen(const std::vector<std::string>& more) {
  return With({"--model=resnet18", "--batch_size=2", "--steps=1", "--lr=0", "--weight_decay=0"},
              more);
}

TEST_F(CheckpointPythonTest, PythonReadsWhatAJobWritesAndTheOtherWayRound) {
  Python({
      "import torchvision",
      "torch.manual_seed(7)",
      "model = torchvision.models.resnet18(num_classes=10)",
      "torch.save(model.state_dict(), 'theirs.pt')",
      "torch.save({'epoch': 3, 'state_dict': {'module.' + k: v for k, v in "
      "model.state_dict().items()}}, 'wrapped.pt')",
      "torch.save(model.state_dict(), 'legacy.pt', _use_new_zipfile_serialization=False)",
      "torch.jit.script(model).save('script.pt')",
  });
  for (const char* name : {"theirs", "wrapped"}) {
    WorkerProcesses worker({Frozen({absl::StrCat("--init_from=", Path(name), ".pt"),
                                    absl::StrCat("--checkpoint=", Path(name))})});
    ASSERT_EQ(worker[0].Finish().code, 0) << absl::StrJoin(worker[0].err(), "\n");
    // Learning rate 0: parameters are bit for bit those of Python; BatchNorm has counted a batch.
    EXPECT_EQ(
        Python({
            "import torchvision",
            absl::StrCat("ours = torch.load('", name, "/latest/model.pt', weights_only=True)"),
            "theirs = torch.load('theirs.pt')",
            "model = torchvision.models.resnet18(num_classes=10)",
            "print(model.load_state_dict(ours, strict=True))",
            "print(list(ours) == list(theirs))",
            "names = [n for n, _ in model.named_parameters()]",
            "print(all(torch.equal(ours[n], theirs[n]) for n in names), len(names))",
            "print(ours['bn1.num_batches_tracked'].item(), ours['bn1.running_mean'].dtype)",
        }),
        "<All keys matched successfully>\nTrue\nTrue 62\n1 torch.float32");
  }
  const std::vector<std::pair<std::string, std::string>> refused = {{"legacy.pt", "legacy format"},
                                                                    {"script.pt", "TorchScript"}};
  for (const auto& [file, expected] : refused) {
    WorkerProcesses worker({Frozen({"--init_from=" + Path(file)})});
    EXPECT_EQ(worker[0].Finish().code, 2);
    EXPECT_THAT(worker[0].err(), ElementsAre(HasSubstr(expected)));
  }
  WorkerProcesses other({Frozen({"--init_from=" + Path("theirs.pt"), "--model=resnet50"})});
  EXPECT_EQ(other[0].Finish().code, 2);
  EXPECT_THAT(other[0].err(), ElementsAre(HasSubstr("missing (")));
}

TEST_F(CheckpointPythonTest, EveryTypeAndStrideOfPythonIsRead) {
  Python({
      "base = torch.arange(24, dtype=torch.float32)",
      "tensors = {",
      "  'half': base.half(), 'bfloat16': base.bfloat16(), 'double': base.double(),",
      "  'long': torch.tensor(-5), 'bool': torch.tensor([True, False]),",
      "  'transposed': base.view(4, 6).t(), 'slice': base[5:9], 'step': base[1::5],",
      "  'channels_last': base.view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),",
      "  'empty': torch.zeros(0, 3), 'parameter': torch.nn.Parameter(base[:2].clone()),",
      "}",
      "torch.save(tensors, 'types.pt')",
      "out = open('expected', 'wb')",
      "for t in tensors.values():",
      "  c = t.detach().contiguous()",
      "  c = c.view(torch.int16) if c.dtype == torch.bfloat16 else c",
      "  out.write(c.numpy().tobytes())",
      "out.close()",
  });
  const auto read = ReadWeights(Path("types.pt"));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 11u);
  EXPECT_EQ((*read)[5].sizes, (std::vector<int64_t>{6, 4}));
  std::string all;
  for (const HostTensor& tensor : *read) all += tensor.data;
  std::string expected(std::filesystem::file_size(Path("expected")), '\0');
  std::FILE* const file = std::fopen(Path("expected").c_str(), "rb");
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(std::fread(expected.data(), 1, expected.size(), file), expected.size());
  std::fclose(file);
  EXPECT_EQ(all, expected);
}

}  // namespace
}  // namespace gradsync
