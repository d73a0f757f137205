// Weights go to Python and come from it: torch.load(weights_only=True) reads model.pt, torchvision
// loads it strictly, and what torch.save writes is what a job starts from. Needs Debian's
// python3-torchvision.

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Dict.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "ATen/ops/arange.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/job_processes.h"
#include "tools/test_program.h"
#include "torch/csrc/jit/serialization/pickle.h"
#include "torch/nn/module.h"
#include "worker/checkpoint/host_tensor.h"
#include "worker/checkpoint/read_weights.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
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

// Reads a file's tensor of that name and shape. What was wrong, if anything.
std::string ReadOne(const std::string& path, const std::string& type, const TensorShape& wanted,
                    HostTensor* tensor) {
  const absl::StatusOr<WeightsFound> found = ReadWeights(path, {{wanted}, "", "other|last"});
  if (!found.ok()) return std::string(found.status().message());
  if (found->tensors.size() != 1) return "no tensor";
  *tensor = found->tensors[0];
  if (InfoOf(tensor->type).storage != type) return InfoOf(tensor->type).storage;
  return "";
}

// A view with its negative bit set, such as the imaginary part of a conjugate, was read with the
// opposite sign. So every kind of tensor that Python has is saved, and what is read here compared
// with what torch.load reads.
TEST_F(CheckpointPythonTest, EveryTensorIsReadAsTorchLoadReadsItOrRefusedByName) {
  const std::string kinds = Python({
      "import collections, warnings",
      "warnings.filterwarnings('ignore')",
      "base = torch.arange(1, 25, dtype=torch.float32) - 7.5",
      "complex = torch.complex(base[:6], base[6:12])",
      "class Mine(torch.Tensor): pass",
      "attribute = base[:4].clone(); attribute.group = 'head'",
      "parameter = torch.nn.Parameter(base[:4].clone()); parameter.group = 'head'",
      "kinds = {",
      "  'contiguous': base, 'scalar': torch.tensor(1.5), 'empty': torch.zeros(0, 3),",
      "  'empty strided': torch.zeros(3, 0).t(), 'one': torch.ones(1, 1, 1),",
      "  'half': base.half(), 'bfloat16': base.bfloat16(), 'double': base.double(),",
      "  'long': base.long(), 'int': base.int(), 'short': base.short(), 'char': base.char(),",
      "  'byte': base.abs().byte(), 'bool': base > 0, 'nan': torch.tensor([float('nan'), -0.0]),",
      "  'transposed': base.view(4, 6).t(), 'slice': base[5:9], 'step': base[1::5],",
      "  'row': base.view(4, 6)[2], 'column': base.view(4, 6)[:, 1], 'diagonal': "
      "base[:16].view(4, 4).diagonal(), 'permuted': base.view(2, 3, 4).permute(2, 0, 1),",
      "  'channels_last': base.view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),",
      "  'expanded': base[:3].view(3, 1).expand(3, 1000), 'expanded scalar': "
      "torch.tensor(2.5).expand(4, 5), 'windows': base.unfold(0, 6, 2), 'as_strided': "
      "base.as_strided((3, 4), (1, 2), 3), 'size one stride': base[3:4].as_strided((1, 2), (77, "
      "5)),",
      "  'requires_grad': base[:4].clone().requires_grad_(),",
      "  'parameter': torch.nn.Parameter(base[:2].clone()), 'parameter view': "
      "torch.nn.Parameter(base.view(4, 6).t()), 'attribute': attribute,",
      "  'parameter attribute': parameter, 'buffer': torch.nn.BatchNorm1d(3).running_var,",
      "  'real': complex.real, 'imag': complex.imag, 'negative': complex.conj().imag,",
      "  'negative slice': complex.conj().imag[1:4], 'negative double': "
      "complex.to(torch.complex128).conj().imag, 'conjugate real': complex.conj().real,",
      "  'negative resolved': complex.conj().imag.resolve_neg(), 'view as real': "
      "torch.view_as_real(complex), 'complex': complex, 'conjugate': complex.conj(),",
      "  'mine': base[:4].as_subclass(Mine), 'sparse': torch.eye(3).to_sparse(),",
      "  'sparse_csr': torch.eye(3).to_sparse_csr(), 'quantized': "
      "torch.quantize_per_tensor(base, 0.5, 3, torch.quint8), 'per channel': "
      "torch.quantize_per_channel(base.view(4, 6), torch.ones(4), torch.zeros(4), 0, torch.qint8),",
      "  'meta': torch.empty(3, device='meta'), 'numpy': torch.from_numpy(base.numpy().copy()),",
      "  'storage': base[:4].storage(), 'size': torch.Size([3]), 'list': [base[:4]], 'none': None,",
      "}",
      "for name in ('uint16', 'uint32', 'float8_e4m3fn', 'float8_e5m2'):",
      "  if hasattr(torch, name): kinds[name] = base[:4].abs().to(getattr(torch, name))",
      "for i, (name, tensor) in enumerate(kinds.items()):",
      "  for protocol in (2, 3, 4, 5):",
      "    torch.save(collections.OrderedDict([('other', base), ('kind', tensor), ('last', "
      "base[20:])]), f'{i}.{protocol}.pt', pickle_protocol=protocol)",
      "  try: t = torch.load(f'{i}.2.pt')['kind'].detach().resolve_neg().contiguous()",
      "  except Exception as e: t = None",
      "  known = {torch.float64: 'Double', torch.float32: 'Float', torch.float16: 'Half', "
      "torch.bfloat16: 'BFloat16', torch.int64: 'Long', torch.int32: 'Int', torch.int16: 'Short', "
      "torch.int8: 'Char', torch.uint8: 'Byte', torch.bool: 'Bool'}",
      "  plain = (isinstance(t, torch.Tensor) and t.layout == torch.strided and t.dtype in known "
      "and "
      "t.device.type == 'cpu')",
      "  if not plain: print(name, '|none|'); continue",
      "  c = t.view(torch.int16) if t.dtype == torch.bfloat16 else t",
      "  open(f'{i}.expected', 'wb').write(c.as_subclass(torch.Tensor).numpy().tobytes())",
      "  print(name, known[t.dtype] + 'Storage', ','.join(map(str, t.shape)), sep='|')",
  });
  // torch.load makes it of a class of the program, which is not done here.
  const std::set<std::string> not_read = {"mine"};
  int number = 0, read = 0;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(kinds, '\n'))) {
    const std::vector<std::string> parts = absl::StrSplit(line, '|');
    ASSERT_EQ(parts.size(), 3u) << line;
    const std::string name = parts[0], type = parts[1];
    TensorShape wanted = {"kind", {}};
    for (const auto& size : absl::StrSplit(parts[2], ',', absl::SkipEmpty())) {
      ASSERT_TRUE(absl::SimpleAtoi(size, &wanted.sizes.emplace_back())) << line;
    }
    for (int protocol = 2; protocol <= 5; ++protocol) {
      const std::string file = absl::StrCat(Path(absl::StrCat(number)), ".", protocol, ".pt");
      HostTensor tensor;
      const std::string error = ReadOne(file, type, wanted, &tensor);
      if (type == "none" || not_read.count(name) > 0) {
        EXPECT_THAT(error, HasSubstr("kind")) << name;
        continue;
      }
      ++read;
      EXPECT_EQ(error, "") << name;
      std::ifstream expected(Path(absl::StrCat(number, ".expected")), std::ios::binary);
      std::stringstream bytes;
      bytes << expected.rdbuf();
      EXPECT_EQ(tensor.data, bytes.str()) << name << ", protocol " << protocol;
    }
    ++number;
  }
  EXPECT_GE(read, 4 * 40);
}

// An mlp with weights in two layers, one worker, nothing changed by its one step.
std::vector<std::string> FrozenMlp(const std::vector<std::string>& more) {
  return With({"--model=mlp", "--batch_size=2", "--steps=1", "--lr=0", "--weight_decay=0"}, more);
}

// What people have: each of these was refused, or read with other values, through the worker.
TEST_F(CheckpointPythonTest, FilesOfTrainingScriptsAreStartingPoints) {
  Python({
      "import argparse, collections, pickle, random, zipfile",
      "import numpy",
      "torch.manual_seed(3)",
      "sd = collections.OrderedDict([('fc1.weight', torch.randn(32, 3072)), ('fc1.bias', "
      "torch.randn(32)), ('fc2.weight', torch.randn(10, 32)), ('fc2.bias', torch.randn(10))])",
      "torch.save(sd, 'expected')",
      "opt = torch.optim.SGD([torch.nn.Parameter(v.clone()) for v in sd.values()], 0.1, "
      "momentum=0.9)",
      "sum((p ** 2).sum() for g in opt.param_groups for p in g['params']).backward(); opt.step()",
      "schedule = torch.optim.lr_scheduler.StepLR(opt, 30)",
      "class Config:",
      "  def __init__(self): self.lr = 0.1",
      "ema = {'module.' + k: v + 1 for k, v in sd.items()}",
      "ema['n_averaged'] = torch.tensor(5)",
      "def save(name, x, **more): torch.save(x, name + '.pt', **more)",
      "pre = lambda p, d=sd: collections.OrderedDict((p + k, v) for k, v in d.items())",
      "save('torchvision', {'model': sd, 'optimizer': opt.state_dict(), 'lr_scheduler': "
      "schedule.state_dict(), 'epoch': 3, 'args': argparse.Namespace(lr=.1, names={'a', 'b'}, "
      "path=[]), 'model_ema': ema, 'scaler': {'scale': 65536.0}})",
      "save('timm', {'epoch': 3, 'arch': 'mlp', 'state_dict': sd, 'optimizer': opt.state_dict(), "
      "'version': 2, 'args': argparse.Namespace(model='mlp'), 'amp_scaler': {}, 'state_dict_ema': "
      "pre('', {k: v + 1 for k, v in sd.items()}), 'metric': numpy.float64(0.5)})",
      "save('lightning', {'epoch': 1, 'state_dict': {**pre('model.'), 'criterion.weight': "
      "torch.ones(3)}, 'callbacks': {Config: {'best': torch.tensor(1.)}}, 'hyper_parameters': "
      "Config(), 'loops': {'fit': {1: collections.Counter('aab')}}})",
      "save('states', {'net': sd, 'rng': [random.getstate(), numpy.random.get_state(), "
      "torch.get_rng_state()], 'seed': 2 ** 64 - 1, 'best': numpy.float32(1), 'when': "
      "numpy.datetime64('2020-01-01'), 'device': torch.device('cpu'), 'type': torch.float16, "
      "'set': {1, 2}, 'range': range(3), 'bytes': b'x', 'array': numpy.zeros(3), 'complex': 1j, "
      "'ellipsis': ..., 'default': collections.defaultdict(list, a=[1]), 'range2': "
      "range(1, 9, 2), 'function': print, 'size': torch.Size([1]), 'sparse': "
      "torch.eye(2).to_sparse()}, pickle_protocol=4)",
      "save('flat', {**sd, 'epoch': 3, 'args': argparse.Namespace()})",
      "save('orig_mod', pre('_orig_mod.'))",
      "save('wrapped', {'model_state_dict': pre('module._orig_mod.')})",
      "save('backbone', pre('encoder.backbone.'))",
      "save('inner', {k.replace('fc1', 'fc1._orig_mod'): v for k, v in sd.items()})",
      "save('nested', {'state': {'model': sd, 'optimizers': [opt.state_dict()]}})",
      "# As PyTorch 2 saves the imaginary part of a conjugate; 1.13 leaves the bit out.",
      "class Negative:",
      "  def __init__(self, t): self.t = t",
      "  def __reduce__(self): return torch._utils._rebuild_tensor_v2, (self.t.storage(), 0, "
      "self.t.size(), self.t.stride(), False, collections.OrderedDict(), {'neg': True})",
      "save('negative', {**sd, 'fc2.weight': Negative(-sd['fc2.weight'])})",
      "save('views', {**sd, 'fc1.weight': sd['fc1.weight'].t().contiguous().t(), 'fc1.bias': "
      "torch.stack([sd['fc1.bias'], sd['fc1.bias']], 1)[:, 1]})",
      "data = open('expected', 'rb').read()",
      "archive = zipfile.ZipFile('expected')",
      "for name in ('nocrc', 'deflated'):",
      "  with zipfile.ZipFile(name + '.pt', 'w', zipfile.ZIP_DEFLATED if name == 'deflated' else "
      "zipfile.ZIP_STORED) as out:",
      "    for item in archive.namelist(): out.writestr(item, archive.read(item))",
      "data = bytearray(open('nocrc.pt', 'rb').read())",
      "at = data.find(b'PK\\x01\\x02')",
      "while at >= 0:",
      "  data[at + 16:at + 20] = bytes(4)",
      "  at = data.find(b'PK\\x01\\x02', at + 1)",
      "open('nocrc.pt', 'wb').write(data)",
      "save('whole', torch.nn.Linear(2, 2))",
      "save('sparse', {**sd, 'fc2.weight': sd['fc2.weight'].to_sparse()})",
      "save('complex', {**sd, 'fc2.weight': torch.complex(sd['fc2.weight'], sd['fc2.weight'])})",
      "save('siamese', {**pre('online.'), **pre('target.')})",
      "arrays = {k: v.numpy() for k, v in sd.items()}",
      "save('arrays', arrays)",
      "save('array', {**sd, 'fc1.bias': arrays['fc1.bias']})",
      "save('some_arrays', {'net': sd, 'arrays': arrays, 'meta': {'epoch': 3}})",
      "save('nested_arrays', {'epoch': 3, 'model': arrays})",
      "pickle.dump(arrays, open('pickle.pt', 'wb')); pickle.dump(sd, open('other_pickle.pt', "
      "'wb'))",
      "numpy.savez('arrays.npz', **arrays); os.rename('arrays.npz', 'npz.pt')",
      "numpy.save('array.npy', arrays['fc1.bias']); os.rename('array.npy', 'npy.pt')",
      "save('students', {'student': sd, 'teacher': pre('', ema)})",
      "class Custom(dict): pass",
      "save('custom', {'model': Custom(sd)})",
      "save('infinite', {**sd, 'fc1.bias': sd['fc1.bias'] * float('inf')})",
      "save('too_large', {**sd, 'fc1.bias': sd['fc1.bias'].double() * 1e300})",
      "class Evil:",
      "  def __reduce__(self): return (os.system, ('touch executed',))",
      "save('evil', {'model': sd, 'hook': Evil()})",
      "save('evil_weight', {**sd, 'fc1.bias': Evil()})",
  });
  const std::vector<std::pair<std::string, std::string>> read = {
      {"torchvision", ": its entry \"model\" (--init_key=model_ema takes \"model_ema\")"},
      {"timm", ": its entry \"state_dict\" (--init_key=state_dict_ema takes \"state_dict_ema\")"},
      {"lightning",
       ": its entry \"state_dict\"; names without \"model.\"; not read: criterion.weight"},
      {"states", ": its entry \"net\""},
      {"flat", ": not read: epoch, args"},
      {"orig_mod", ": names without \"_orig_mod.\""},
      {"wrapped", ": its entry \"model_state_dict\"; names without \"module._orig_mod.\""},
      {"backbone", ": names without \"encoder.backbone.\""},
      {"inner", ": names without those of wrappers inside"},
      {"nested", ": its entry \"state.model\""},
      {"negative", ""},
      {"views", ""},
      {"nocrc", ""},
      {"evil", ": its entry \"model\""},
      {"custom", ": its entry \"model\""},
  };
  for (const auto& [name, account] : read) {
    const std::string path = Path(name + ".pt");
    WorkerProcesses worker({FrozenMlp({"--init_from=" + path, "--checkpoint=" + Path(name)})});
    ASSERT_EQ(worker[0].Finish().code, 0) << name << ": " << absl::StrJoin(worker[0].err(), "\n");
    EXPECT_THAT(worker[0].out(), Contains(EndsWith("weights from " + path + account))) << name;
  }
  std::vector<std::string> script = {"sd = torch.load('expected')"};
  for (const auto& [name, account] : read) {
    script.push_back(absl::StrCat("ours = torch.load('", name, "/latest/model.pt')"));
    script.push_back(absl::StrCat("same = all(torch.equal(ours[n], sd[n]) for n in sd)"));
    script.push_back(absl::StrCat("if not same: print('", name, "')"));
  }
  script.push_back("print('executed' if os.path.exists('executed') else 'not executed')");
  EXPECT_EQ(Python(script), "not executed");

  const std::vector<std::pair<std::vector<std::string>, std::string>> refused = {
      {{"deflated"}, "data.pkl compressed"},
      {{"whole"}, "expected a state dict, found an object made by torch.nn.modules.linear Linear"},
      {{"sparse"},
       "tensor fc2.weight: expected a dense tensor, found an object made by torch._utils "
       "_rebuild_sparse_tensor"},
      {{"complex"}, "tensor fc2.weight: expected floats (double, float, half, bfloat16)"},
      {{"siamese"}, "behind \"online.\" and behind \"target.\"; --init_skip='^target\\.'"},
      {{"students"}, "in \"student\" and in \"teacher\"; --init_key=student"},
      {{"evil_weight"}, "tensor fc1.bias: expected a dense tensor, found an object made by posix"},
      {{"infinite"},
       "infinite.pt: expected finite weights (or --allow_nonfinite), found an infinite value or a "
       "NaN in fc1.bias"},
      {{"too_large"}, "found an infinite value or a NaN in fc1.bias"},
      {{"timm", "--init_key=ema"}, "--init_key: expected an entry of the file that has tensors"},
      {{"arrays"}, "found numpy arrays, such as fc1.weight; torch.from_numpy() makes tensors"},
      {{"nested_arrays"}, "found numpy arrays, such as fc1.weight in its entry \"model\""},
      {{"array"}, "tensor fc1.bias: expected a dense tensor, found a numpy array"},
      {{"some_arrays", "--init_key=arrays"},
       "that has tensors (net), found \"arrays\", which has numpy arrays"},
      {{"some_arrays", "--init_key=meta"},
       "that has tensors (net), found \"meta\", which has none"},
      {{"pickle"}, "found a pickle of numpy arrays"},
      {{"other_pickle"}, "found a pickle that torch.save did not write"},
      {{"npz"}, "found a file of numpy"},
      {{"npy"}, "found a file of numpy"},
      {{"timm", "--init_skip=fc3"}, "--init_skip: expected a regular expression that matches"},
      {{"timm", "--init_skip=fc("}, "--init_skip: expected a regular expression (missing )"},
      {{"timm", "--init_skip=fc"}, "--init_skip: expected to leave tensors that are read"},
  };
  for (const auto& [how, expected] : refused) {
    std::vector<std::string> flags = {"--init_from=" + Path(how[0] + ".pt")};
    flags.insert(flags.end(), how.begin() + 1, how.end());
    WorkerProcesses worker({FrozenMlp(flags)});
    EXPECT_EQ(worker[0].Finish().code, 2) << expected;
    EXPECT_THAT(worker[0].err(), ElementsAre(HasSubstr(expected)));
  }
  EXPECT_FALSE(std::filesystem::exists(Path("executed")));
  for (const char* flag : {"--init_skip=fc", "--init_key=model"}) {
    WorkerProcesses worker({FrozenMlp({flag})});
    EXPECT_EQ(worker[0].Finish().code, 2);
    EXPECT_THAT(worker[0].err(), ElementsAre(HasSubstr("expected none without --init_from")));
  }
}

// What torch::pickle_save of LibTorch wrote was refused: it says the type of each dict.
TEST_F(CheckpointPythonTest, WhatLibTorchPicklesIsAStartingPoint) {
  const at::Tensor weight = at::arange(32 * 3072, at::kFloat).view({3072, 32}).t();
  c10::Dict<std::string, at::Tensor> weights;
  weights.insert("fc1.weight", weight);
  weights.insert("fc1.bias", weight[3].slice(0, 0, 32));
  weights.insert("fc2.weight", at::arange(32, at::kDouble).expand({10, 32}));
  weights.insert("fc2.bias", weight[4].slice(0, 7, 17));
  c10::impl::GenericDict checkpoint(c10::StringType::get(), c10::AnyType::get());
  checkpoint.insert("epoch", int64_t{3});
  checkpoint.insert("sizes", std::vector<int64_t>{1, 2});
  checkpoint.insert("moments", std::vector<at::Tensor>{weight});
  checkpoint.insert("model", weights);
  const auto write = [&](const std::string& name, const c10::IValue& value) {
    const std::vector<char> bytes = torch::jit::pickle_save(value);
    std::ofstream(Path(name), std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  write("weights.pt", weights);
  write("checkpoint.pt", checkpoint);
  for (const char* name : {"weights", "checkpoint"}) {
    WorkerProcesses worker({FrozenMlp({absl::StrCat("--init_from=", Path(name), ".pt"),
                                       absl::StrCat("--checkpoint=", Path(name))})});
    ASSERT_EQ(worker[0].Finish().code, 0) << absl::StrJoin(worker[0].err(), "\n");
    EXPECT_EQ(Python({
                  absl::StrCat("ours = torch.load('", name, "/latest/model.pt')"),
                  "theirs = torch.load('weights.pt')",
                  "print(len(theirs), all(torch.equal(ours[n], theirs[n].float()) for n in ours))",
              }),
              "4 True");
  }
}

// Weights for 1,000 classes were refused for 10 with no way out, old ones for want of
// num_batches_tracked.
TEST_F(CheckpointPythonTest, AnotherHeadAndOldBatchNormsStartFromPublishedWeights) {
  Python({
      "import torchvision",
      "torch.manual_seed(5)",
      "model = torchvision.models.resnet18(num_classes=1000)",
      "sd = {k: v for k, v in model.state_dict().items() if not k.endswith('num_batches_tracked')}",
      "torch.save(sd, 'published.pt')",
      "torch.save({k.replace('fc.', 'head.'): v for k, v in sd.items()}, 'renamed.pt')",
  });
  const std::string from = "--init_from=" + Path("published.pt");
  WorkerProcesses other({Frozen({from})});
  EXPECT_EQ(other[0].Finish().code, 2);
  EXPECT_THAT(other[0].err(),
              ElementsAre(AllOf(HasSubstr("2 of other sizes (fc.weight: expected [10, 512], found "
                                          "[1000, 512]"),
                                EndsWith("--init_skip='^fc\\.' starts without these"))));
  WorkerProcesses stem({Frozen({from, "--stem=cifar", "--classes=1000"})});
  EXPECT_EQ(stem[0].Finish().code, 2);
  EXPECT_THAT(stem[0].err(),
              ElementsAre(HasSubstr("found [64, 3, 7, 7]); its conv1.weight is that of "
                                    "--stem=imagenet; --init_skip='^conv1\\.'")));
  WorkerProcesses skipped({Frozen({from, "--init_skip=^fc\\.", "--checkpoint=" + Path("ours")})});
  ASSERT_EQ(skipped[0].Finish().code, 0) << absl::StrJoin(skipped[0].err(), "\n");
  EXPECT_THAT(
      skipped[0].out(),
      Contains(EndsWith("published.pt: 20 num_batches_tracked, which it does not have, are 0; by "
                        "--init_skip these keep their initial values: fc.weight, fc.bias")));
  WorkerProcesses renamed({Frozen({"--init_from=" + Path("renamed.pt"), "--init_skip=fc|head"})});
  ASSERT_EQ(renamed[0].Finish().code, 0) << absl::StrJoin(renamed[0].err(), "\n");
  // What was skipped is as in a job that starts from nothing.
  WorkerProcesses fresh({Frozen({"--checkpoint=" + Path("fresh")})});
  ASSERT_EQ(fresh[0].Finish().code, 0);
  EXPECT_EQ(Python({
                "ours = torch.load('ours/latest/model.pt')",
                "fresh = torch.load('fresh/latest/model.pt')",
                "theirs = torch.load('published.pt')",
                "moved = ('running_mean', 'running_var')",
                "print([n for n in theirs if not n.endswith(moved) and not "
                "torch.equal(ours[n], theirs[n] if 'fc' not in n else fresh[n])])",
                "print(ours['bn1.num_batches_tracked'].item())",
            }),
            "[]\n1");
}

}  // namespace
}  // namespace gradsync
