#include <sys/uio.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "core/base/chunk_codec.h"
#include "core/base/host_port.h"
#include "core/base/straggler.h"
#include "core/group/launch_environment.h"
#include "core/group/liveness.h"
#include "core/group/mesh.h"
#include "core/links/frame_codec.h"
#include "core/links/frames.h"
#include "core/links/tcp_records.h"
#include "core/plan/codec.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/plan/plan_proto.h"
#include "core/program/byte_sizes.h"
#include "core/program/yaml_flags.h"
#include "google/protobuf/stubs/logging.h"
#include "tests/fuzz/targets.h"
#include "worker/checkpoint/checkpoint_folder.h"
#include "worker/checkpoint/file_formats.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/host_tensor.h"
#include "worker/checkpoint/read_weights.h"
#include "worker/checkpoint/zip_archive.h"
#include "worker/data/decode_image.h"
#include "worker/trace/trace_reader.h"

namespace gradsync {
namespace {

// For what a parser promises, whatever it is given.
void Promise(bool kept) {
  if (!kept) std::abort();
}

absl::string_view View(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

Plan SmallPlan() {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets({{"a", {40}, {1}, 0}, {"b", {3, 7}, {7, 1}, 0}}, {{0}, {1}}, optimizer,
                            2, /*chunk_bytes=*/64);
}

// A plan that is taken must be the one that its own message describes.
void RunPlan(const uint8_t* bytes, size_t size) {
  proto::Plan message;
  if (!message.ParseFromArray(bytes, static_cast<int>(size))) return;
  const absl::StatusOr<Plan> plan = PlanFromProto(message);
  if (!plan.ok()) return;
  const absl::StatusOr<Plan> again = PlanFromProto(PlanToProto(*plan));
  Promise(again.ok() && again->fingerprint() == plan->fingerprint());
}

std::vector<std::string> PlanSeeds() { return {PlanToProto(SmallPlan()).SerializeAsString()}; }

std::vector<HostTensor> Tensors() {
  HostTensor tensor;
  tensor.name = "layer.weight";
  tensor.sizes = {2, 3};
  tensor.data.assign(24, '\1');
  return {tensor};
}

// Whatever is read is no larger than the file allows, also for a model that wants all of it.
void RunTorchFile(const uint8_t* bytes, size_t size) {
  const absl::StatusOr<std::vector<WeightDict>> dicts = OpenTorchFile(View(bytes, size));
  if (!dicts.ok()) return;
  size_t sum = 0;
  WeightsWanted wanted;
  for (const WeightDict& dict : *dicts) {
    for (const WeightEntry& entry : dict.entries) {
      const absl::StatusOr<HostTensor> tensor = entry.read();
      if (!tensor.ok()) continue;
      sum += tensor->data.size();
      wanted.tensors.push_back({std::string(entry.name), tensor->sizes});
    }
  }
  Promise(sum <= 4 * size + (16 << 20));
  FitWeights(*dicts, wanted).status().IgnoreError();
}

// The least of a pickle that has an object, a tensor with metadata and a dict in a dict.
std::string PickledCheckpoint() {
  const auto text = [](absl::string_view text) {
    return absl::StrCat("\x8c", std::string(1, static_cast<char>(text.size())), text);
  };
  const std::string tensor = absl::StrCat(
      "ctorch._utils\n_rebuild_tensor_v2\n((", text("storage"), "ctorch\nFloatStorage\n", text("0"),
      text("cpu"), "K\x06tQK\x01(K\x02K\x02t(K\x01K\x02t\x89N}", text("neg"), "\x88stR");
  return absl::StrCat("\x80\x02}(", text("args"), "cargparse\nNamespace\n)\x81}", text("lr"),
                      "K\x01sb", text("model"), "}(", text("module.a"), tensor, "uu.");
}

std::vector<std::string> TorchFileSeeds() {
  ZipWriter zip;
  Promise(zip.Add("a/data.pkl", PickledCheckpoint()).ok());
  Promise(zip.Add("a/data/0", std::string(24, '\1')).ok());
  return {EncodeTorchFile(Tensors()).value_or(""), zip.Finish().value_or("")};
}

void RunSafetensors(const uint8_t* bytes, size_t size) {
  DecodeSafetensors(View(bytes, size)).status().IgnoreError();
}

std::vector<std::string> SafetensorsSeeds() {
  Safetensors content;
  content.tensors = Tensors();
  return {EncodeSafetensors(content).value_or("")};
}

// Where every path is a file with the same content.
class OneFile : public FileSystem {
 public:
  explicit OneFile(absl::string_view content) : content_(content) {}

  absl::StatusOr<std::string> Read(const std::string&) override { return content_; }
  absl::Status Write(const std::string&, absl::string_view) override { return None(); }
  absl::Status MakeFolder(const std::string&) override { return None(); }
  absl::Status Sync(const std::string&) override { return None(); }
  absl::Status Rename(const std::string&, const std::string&) override { return None(); }
  absl::Status Link(const std::string&, const std::string&) override { return None(); }
  absl::StatusOr<std::string> ReadLink(const std::string&) override { return None(); }
  absl::Status Remove(const std::string&) override { return None(); }
  absl::StatusOr<std::vector<std::string>> List(const std::string&) override { return None(); }
  absl::StatusOr<Room> RoomIn(const std::string&) override { return None(); }

 private:
  static absl::Status None() { return absl::PermissionDeniedError("only to be read"); }

  const std::string content_;
};

// No file of a manifest is outside its folder.
void RunManifest(const uint8_t* bytes, size_t size) {
  OneFile files(View(bytes, size));
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(files, "step");
  if (!checkpoint.ok()) return;
  Promise(checkpoint->step() >= 0);
  for (const auto& file : checkpoint->files()) {
    Promise(!absl::StrContains(file.first, '/') && file.first != "..");
  }
  checkpoint->Check(files).IgnoreError();
}

std::vector<std::string> ManifestSeeds() {
  const std::string sha256(64, '0');
  return {"# gradsync checkpoint, step 7\n# end, 0 files\n",
          absl::StrCat("# gradsync checkpoint, step 12\n# 3 bytes\n", sha256,
                       "  model.pt\n# end, 1 files\n")};
}

void RunImageHeader(const uint8_t* bytes, size_t size) {
  const absl::StatusOr<ImageSize> image = ReadImageSize(View(bytes, size));
  Promise(!image.ok() || (image->width > 0 && image->height > 0));
}

std::vector<std::string> ImageSeeds() {
  return {std::string("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\2\0\0\0\2\x08\2\0\0\0\xfd\xd4\x9as", 33),
          std::string("\xff\xd8\xff\xc0\0\x0b\x08\0\2\0\2\1\1\x11\0\xff\xd9", 17)};
}

void RunYaml(const uint8_t* bytes, size_t size) {
  ParseYamlFlags(std::string(View(bytes, size)), "fuzz.yaml").status().IgnoreError();
}

std::vector<std::string> YamlSeeds() {
  return {"steps: 10\nworker:\n  lr: 0.1\nservers: [a:1, b:2]\n", "a: &x [1]\nb: *x\n",
          "--- {a: b}\n...\n"};
}

// Everything on a command line that is no plain number. The first byte says what it is.
void RunTexts(const uint8_t* bytes, size_t size) {
  FuzzInput input(bytes, size);
  const int what = input.Below(12);
  const std::string text = input.Rest();
  switch (what) {
    case 0: {
      const absl::StatusOr<int64_t> parsed = ParseBytes(text);
      return Promise(!parsed.ok() || *parsed >= 0);
    }
    case 1: {
      const absl::StatusOr<double> rate = ParseBandwidth(text);
      return Promise(!rate.ok() || *rate > 0);
    }
    case 2:
      return Straggler::Parse(text).status().IgnoreError();
    case 3: {
      const absl::StatusOr<HostPort> parsed = ParseHostPort(text);
      return Promise(!parsed.ok() || (parsed->port >= 0 && parsed->port <= 65535));
    }
    case 4: {
      const absl::StatusOr<std::vector<std::string>> hosts = ExpandSlurmNodeList(text);
      return Promise(!hosts.ok() || hosts->size() <= 1000000);
    }
    case 5: {
      const absl::StatusOr<Codec> codec = ParseCodec(text);
      if (!codec.ok()) return;
      return Promise(ParseCodec(CodecName(*codec)).ok());
    }
    case 6: {
      const absl::StatusOr<Consistency> parsed = ParseConsistency(text);
      if (!parsed.ok()) return;
      const absl::StatusOr<Consistency> again = ParseConsistency(ConsistencyName(*parsed));
      return Promise(again.ok() && *again == *parsed);
    }
    case 7:
      return ParsePlacement(text).status().IgnoreError();
    case 8:
      return ParsePrecision(text).status().IgnoreError();
    case 9: {
      JobSpecText spec;
      FuzzInput words(reinterpret_cast<const uint8_t*>(text.data()), text.size());
      spec.topology = words.Text();
      spec.link = words.Text();
      spec.update = words.Text();
      spec.consistency = words.Text();
      spec.compression = words.Text();
      const absl::StatusOr<JobSpec> parsed = ParseJobSpec(spec);
      if (parsed.ok()) CheckJobSpec(*parsed).IgnoreError();
      return;
    }
    case 10: {
      const absl::optional<Beat> beat = Beat::Parse(text);
      if (!beat.has_value()) return;
      return Promise(Beat::Parse(beat->ToText()).has_value());
    }
    default:
      return Mesh::Parse(text, 8).status().IgnoreError();
  }
}

std::vector<std::string> TextSeeds() {
  const std::vector<std::string> texts = {"64MiB",
                                          "10Gbit",
                                          "1:50ms",
                                          "10.0.0.7:4000",
                                          "gpu[003-005,012],x[1-2]y[07]",
                                          "topk:0.01",
                                          "ssp:2",
                                          "spread",
                                          "bf16",
                                          std::string("\4ring\4grpc\6worker\3bsp\4none"),
                                          "7 3 1 1 0 0",
                                          "dp=4,pp=2"};
  std::vector<std::string> seeds;
  for (size_t what = 0; what < texts.size(); ++what) {
    seeds.push_back(std::string(1, static_cast<char>(what)) + texts[what]);
  }
  return seeds;
}

// A chunk that arrives in parts: form and cuts are drawn, the payload is the rest.
void RunChunkCodec(const uint8_t* bytes, size_t size) {
  FuzzInput input(bytes, size);
  ChunkForm form;
  form.kind = static_cast<ChunkForm::Kind>(input.Below(4));
  form.elements = input.Below(64);
  form.entries = form.elements == 0 ? 0 : 1 + input.Below(static_cast<int>(form.elements));
  const auto mode = static_cast<ChunkDecoder::Mode>(input.Below(3));
  const std::unique_ptr<float[]> out(new float[form.elements]());
  ChunkDecoder decoder(form, mode, out.get(), 0.5f, 2.0f);
  absl::Status status;
  while (status.ok() && !input.empty()) status = decoder.Consume(input.Text());
  if (status.ok()) decoder.Finish().IgnoreError();
  if (form.elements == 0) return;
  // What is encoded here is decoded.
  const std::unique_ptr<char[]> encoded(new char[form.bytes()]);
  EncodeChunk(form, out.get(), encoded.get());
  ChunkDecoder again(form, ChunkDecoder::Mode::kCopy, out.get());
  Promise(again.Consume({encoded.get(), static_cast<size_t>(form.bytes())}).ok());
  Promise(again.Finish().ok());
}

std::vector<std::string> ChunkCodecSeeds() {
  return {std::string("\0\3\0\1\5abcde\7fghijkl", 17),
          std::string("\3\10\2\1\20\0\0\0\0\0\0\0\0", 13), std::string("\1\4\0\0\10abcdefgh", 13)};
}

// A message as gRPC brings it, in slices.
void RunFrame(const uint8_t* bytes, size_t size) {
  FuzzInput input(bytes, size);
  std::vector<grpc::Slice> slices;
  const int cuts = input.Below(4);
  for (int cut = 0; cut < cuts; ++cut) slices.emplace_back(input.Text());
  size_t wanted = 1 + input.Below(3);
  slices.emplace_back(input.Rest());
  grpc::ByteBuffer message(slices.data(), slices.size());
  static const auto* const decoder = new FrameDecoder;
  const auto deliver = [&wanted](const proto::FrameHeader& header, const Payload& payload) {
    Promise(wanted > 0);
    Promise(payload.Flat().size() == payload.size());
    Promise(!FailureIn(header).ok());
    return --wanted > 0;
  };
  decoder->Decode(&message, deliver).IgnoreError();
}

std::vector<std::string> FrameSeeds() {
  proto::Frame frame;
  frame.mutable_header()->set_kind(proto::FrameHeader::PUSH);
  frame.mutable_header()->set_step(3);
  frame.set_payload("0123456789abcdef");
  proto::Frame several = frame;
  *several.add_next() = frame;
  several.add_next()->mutable_header()->set_kind(proto::FrameHeader::GOODBYE);
  return {std::string(2, '\0') + frame.SerializeAsString(),
          std::string("\0\2", 2) + several.SerializeAsString()};
}

void RunTrace(const uint8_t* bytes, size_t size) {
  ReadTrace(View(bytes, size)).status().IgnoreError();
}

std::vector<std::string> TraceSeeds() {
  return {std::string("\n\4\x08\1\x50\1", 6), std::string("\n\0", 2)};
}

// The first two bytes say how many bytes come at a time. What comes in other pieces makes the same
// records, whether they end in an error or not.
void RunTcpRecords(const uint8_t* bytes, size_t size) {
  if (size < 2) return;
  const size_t piece = 1 + bytes[0] + size_t{256} * bytes[1];
  const absl::string_view stream = View(bytes + 2, size - 2);
  const auto read = [stream](size_t most) {
    RecordReader reader(std::make_shared<ReceiveMemory>(), {4096, 1 << 20});
    std::string all;
    absl::string_view rest = stream;
    absl::Status status;
    while (!rest.empty() && status.ok()) {
      iovec places[2];
      const int count = reader.Places(places);
      size_t given = 0;
      for (int i = 0; i < count; ++i) {
        const size_t part = std::min({places[i].iov_len, rest.size(), most - given});
        std::memcpy(places[i].iov_base, rest.data(), part);
        rest.remove_prefix(part);
        given += part;
      }
      Promise(given > 0);
      status = reader.Received(
          given, [&all](TcpRecord::Type type, absl::string_view header, Payload payload) {
            absl::StrAppend(&all, type, ":", header.size(), ":", header, ":", payload.size(), ":",
                            payload.Flat());
            return true;
          });
    }
    return absl::StrCat(all, status.ToString());
  };
  Promise(read(piece) == read(stream.size()));
}

std::vector<std::string> TcpRecordSeeds() {
  std::string records;
  AppendRecord(TcpRecord::kOpening, "header", &records);
  AppendPrefix({TcpRecord::kFrame, 3, 20000}, &records);
  records += "abc" + std::string(20000, 'x');
  AppendPrefix({TcpRecord::kFrame, 0, 5}, &records);
  records += "small";
  AppendRecord(TcpRecord::kFinish, "", &records);
  return {std::string(2, '\0') + records, std::string("\x10\x27", 2) + records,
          std::string(2, '\0') + "GET / HTTP/1.1\r\n\r\n"};
}

}  // namespace

std::vector<FuzzTarget> ParserTargets() {
  google::protobuf::SetLogHandler(nullptr);  // what is no message is no news here
  return {
      {"plan", RunPlan, PlanSeeds},
      {"torch_file", RunTorchFile, TorchFileSeeds},
      {"safetensors", RunSafetensors, SafetensorsSeeds},
      {"manifest", RunManifest, ManifestSeeds},
      {"image_header", RunImageHeader, ImageSeeds},
      {"yaml", RunYaml, YamlSeeds},
      {"texts", RunTexts, TextSeeds},
      {"chunk_codec", RunChunkCodec, ChunkCodecSeeds},
      {"frame", RunFrame, FrameSeeds},
      {"tcp_records", RunTcpRecords, TcpRecordSeeds},
      {"trace", RunTrace, TraceSeeds},
  };
}

}  // namespace gradsync
