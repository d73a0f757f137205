// The file formats without Python: what is written is read again, and a file that was cut, changed
// or made to deceive is refused. tests/checkpoint_python_test.cc has the same with PyTorch.

#include "worker/checkpoint/file_formats.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/host_tensor.h"
#include "worker/checkpoint/read_weights.h"
#include "worker/checkpoint/unpickler.h"
#include "worker/checkpoint/zip_archive.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::vector<HostTensor> Tensors() {
  return {
      {"conv.weight", StoredType::kFloat32, {2, 3}, BytesOf<float>({1, 2, 3, 4, 5, -6})},
      {"conv.count", StoredType::kInt64, {}, BytesOf<int64_t>({-7})},
      {"empty", StoredType::kFloat64, {0, 4}, ""},
      {"a \"quoted\\ name\n", StoredType::kBool, {1}, std::string(1, '\1')},
  };
}

void ExpectSame(const std::vector<HostTensor>& found, const std::vector<HostTensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].name, expected[i].name);
    EXPECT_EQ(found[i].type, expected[i].type);
    EXPECT_EQ(found[i].sizes, expected[i].sizes);
    EXPECT_EQ(found[i].data, expected[i].data);
  }
}

// A zip archive with this pickle and one storage "0" of six floats 1 to 6.
std::string FileWith(const std::string& pickle) {
  ZipWriter zip;
  EXPECT_TRUE(zip.Add("a/data.pkl", pickle).ok());
  EXPECT_TRUE(zip.Add("a/data/0", BytesOf<float>({1, 2, 3, 4, 5, 6})).ok());
  return zip.Finish().value();
}

std::string Text(const std::string& text) {
  const uint32_t size = static_cast<uint32_t>(text.size());
  return "X" + std::string(reinterpret_cast<const char*>(&size), 4) + text;
}

std::string Number(int32_t value) {
  return "J" + std::string(reinterpret_cast<const char*>(&value), 4);
}

// One tensor "t" over `elements` of the storage, with these tuples as the pickle has them.
std::string OneTensor(int32_t elements, int32_t offset, const std::string& sizes,
                      const std::string& strides, const std::string& storage = "FloatStorage") {
  return absl::StrCat("\x80\x02}", Text("t"), "ctorch._utils\n_rebuild_tensor_v2\n((",
                      Text("storage"), "ctorch\n", storage, "\n", Text("0"), Text("cpu"),
                      Number(elements), "tQ", Number(offset), "(", sizes, "t(", strides, "t\x89",
                      "ccollections\nOrderedDict\n)RtRs.");
}

// All that the outermost dict has.
absl::StatusOr<std::vector<HostTensor>> ReadAll(absl::string_view file) {
  const absl::StatusOr<std::vector<WeightDict>> dicts = OpenTorchFile(file);
  if (!dicts.ok()) return dicts.status();
  std::vector<HostTensor> tensors;
  for (const WeightEntry& entry : dicts->at(0).entries) {
    absl::StatusOr<HostTensor> tensor = entry.read();
    if (!tensor.ok()) return tensor.status();
    tensors.push_back(*std::move(tensor));
  }
  return tensors;
}

absl::Status Refused(const std::string& file) { return ReadAll(file).status(); }

TEST(Crc32Test, IsTheOneOfZip) {
  EXPECT_EQ(Crc32("123456789"), 0xCBF43926u);
  EXPECT_EQ(Crc32(""), 0u);
  EXPECT_EQ(Crc32("The quick brown fox jumps over the lazy dog"), 0x414FA339u);
}

TEST(ZipArchiveTest, ContentsBeginAtMultiplesOf64) {
  ZipWriter zip;
  ASSERT_TRUE(zip.Add("x", "one").ok());
  ASSERT_TRUE(zip.Add("a/longer/name", std::string(100, 'z')).ok());
  ASSERT_TRUE(zip.Add("empty", "").ok());
  const std::string archive = zip.Finish().value();
  const auto entries = ReadZip(archive);
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 3u);
  EXPECT_EQ((*entries)[0].content, "one");
  EXPECT_EQ((*entries)[1].content, std::string(100, 'z'));
  for (const ZipEntry& entry : *entries) {
    EXPECT_EQ((entry.content.data() - archive.data()) % 64, 0) << entry.name;
  }
}

TEST(ZipArchiveTest, DamageIsNamedWithItsByte) {
  ZipWriter zip;
  ASSERT_TRUE(zip.Add("x", "content").ok());
  const std::string archive = zip.Finish().value();
  std::string flipped = archive;
  flipped[64] = 'C';
  EXPECT_THAT(std::string(ReadZip(flipped).status().message()),
              HasSubstr("x at byte 64 has another checksum"));
  EXPECT_THAT(std::string(ReadZip(archive.substr(0, 50)).status().message()),
              HasSubstr("cut off at byte 50"));
  std::string moved = archive;
  moved[0] = 'Q';
  EXPECT_THAT(std::string(ReadZip(moved).status().message()),
              HasSubstr("not where the directory has it, at byte 0"));
}

// Python's writer leaves sizes to the zip64 directory when they are large; here they only look so.
TEST(ZipArchiveTest, Zip64IsRead) {
  ZipWriter zip;
  ASSERT_TRUE(zip.Add("x", "content").ok());
  const std::string plain = zip.Finish().value();
  const size_t end = plain.size() - 22;
  const auto at32 = [&](size_t i) {
    uint32_t value;
    std::memcpy(&value, &plain[i], 4);
    return value;
  };
  const uint64_t size = at32(end + 12), begin = at32(end + 16), entries = 1;
  std::string end64(56, '\0');
  std::memcpy(&end64[0], "PK\x06\x06", 4);
  std::memcpy(&end64[32], &entries, 8);
  std::memcpy(&end64[40], &size, 8);
  std::memcpy(&end64[48], &begin, 8);
  std::string locator(20, '\0');
  const uint64_t where = end;
  std::memcpy(&locator[0], "PK\x06\x07", 4);
  std::memcpy(&locator[8], &where, 8);
  std::string last = plain.substr(end);
  std::fill(last.begin() + 8, last.begin() + 20, '\xff');
  const std::string large = plain.substr(0, end) + end64 + locator + last;  // entries point into it
  const auto read = ReadZip(large);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->at(0).content, "content");
  EXPECT_FALSE(ReadZip(plain.substr(0, end) + end64 + last).ok());
}

// A model of more than 4 GiB could not be written, which a job found at its first checkpoint. Here
// "large" is above 100 bytes; Python's zipfile, which knows zip64 from the sizes alone, reads it too.
TEST(ZipArchiveTest, WhatIsLargeIsWrittenAsZip64) {
  for (const uint64_t largest : {0, 3, 100, 400, 100000}) {
    ZipWriter zip(largest);
    ASSERT_TRUE(zip.Add("small", "one").ok());
    ASSERT_TRUE(zip.Add("large", std::string(300, 'z')).ok());
    ASSERT_TRUE(zip.Add("behind it", "two").ok());
    const std::string archive = zip.Finish().value();
    const auto entries = ReadZip(archive);
    ASSERT_TRUE(entries.ok()) << entries.status();
    ASSERT_EQ(entries->size(), 3u);
    EXPECT_EQ((*entries)[0].content, "one");
    EXPECT_EQ((*entries)[1].content, std::string(300, 'z'));
    EXPECT_EQ((*entries)[2].content, "two");
    for (const ZipEntry& entry : *entries) {
      EXPECT_EQ((entry.content.data() - archive.data()) % 64, 0) << entry.name;
    }
    const std::string path = absl::StrCat(::testing::TempDir(), "/zip64_", largest, ".zip");
    std::ofstream(path, std::ios::binary) << archive;
    const std::string command = absl::StrCat(
        "/usr/bin/python3 -c 'import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); "
        "assert z.testzip() is None and z.read(\"behind it\") == b\"two\" and "
        "z.read(\"large\") == b\"z\" * 300' ",
        path);
    EXPECT_EQ(std::system(command.c_str()), 0) << largest;
  }
}

TEST(ZipArchiveTest, MoreEntriesThanTheFirstFormatCountsAreZip64) {
  ZipWriter zip;
  for (int i = 0; i < 70000; ++i) ASSERT_TRUE(zip.Add(absl::StrCat(i), "").ok());
  const std::string archive = zip.Finish().value();
  const auto entries = ReadZip(archive);
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_EQ(entries->size(), 70000u);
}

TEST(TorchFileTest, ACompressedEntryIsNamed) {
  ZipWriter zip;
  ASSERT_TRUE(zip.Add("a/squeezed", "content").ok());
  std::string archive = zip.Finish().value();
  archive[archive.find("PK\x01\x02") + 10] = 8;
  EXPECT_THAT(std::string(Refused(archive).message()), HasSubstr("squeezed compressed"));
}

TEST(TorchFileTest, WhatIsWrittenIsRead) {
  const auto file = EncodeTorchFile(Tensors());
  ASSERT_TRUE(file.ok()) << file.status();
  const auto read = ReadAll(*file);
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectSame(*read, Tensors());
}

TEST(TorchFileTest, NoTensorsAreADictToo) {
  const auto read = ReadAll(EncodeTorchFile({}).value());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->empty());
}

TEST(TorchFileTest, StridesAndOffsetsAreFollowed) {
  // Element (i, j) is 1 + offset + i + 2 j.
  const auto read =
      ReadAll(FileWith(OneTensor(6, 1, Number(2) + Number(2), Number(1) + Number(2))));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->at(0).sizes, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(read->at(0).data, BytesOf<float>({2, 4, 3, 5}));
}

TEST(TorchFileTest, ATensorThatReachesBeyondItsStorageIsRefused) {
  const auto refused = [](int32_t elements, int32_t offset, const std::string& sizes,
                          const std::string& strides) {
    return std::string(Refused(FileWith(OneTensor(elements, offset, sizes, strides))).message());
  };
  EXPECT_THAT(refused(6, 1, Number(6), Number(1)), HasSubstr("beyond its storage"));
  EXPECT_THAT(refused(6, 0, Number(2), Number(6)), HasSubstr("beyond its storage"));
  EXPECT_THAT(refused(7, 0, Number(7), Number(1)), HasSubstr("should have 7"));
  EXPECT_THAT(refused(6, 2147483647, Number(1), Number(1)), HasSubstr("beyond its storage"));
  EXPECT_THAT(refused(6, -1, Number(1), Number(1)), HasSubstr("offset"));
  EXPECT_THAT(refused(6, 0, Number(2), Number(-1)), HasSubstr("at least 0"));
  EXPECT_THAT(refused(6, 0, Number(2) + Number(2), Number(1)), HasSubstr("as many strides"));
  // 2^31 x 2^31 x 4 overflows 64 bits; a zero stride would reach nothing.
  const std::string huge = Number(2147483647);
  EXPECT_THAT(refused(6, 0, huge + huge + Number(8), Number(0) + Number(0) + Number(0)),
              HasSubstr("times the file's bytes"));
}

TEST(TorchFileTest, AStrideOfOneElementMayBeAnything) {
  const auto read = ReadAll(FileWith(OneTensor(6, 5, Number(1), Number(2147483647))));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->at(0).data, BytesOf<float>({6}));
}

// The negative bit, which a view of a conjugate has, was ignored, so that values had the other sign.
TEST(TorchFileTest, MetadataIsHeededOrRefused) {
  const auto with = [](const std::string& metadata) {
    std::string pickle = OneTensor(6, 0, Number(2), Number(1));
    const size_t at = pickle.rfind("tRs.");
    pickle.replace(at, 1, metadata + "t");
    return ReadAll(FileWith(pickle));
  };
  for (const char* none : {"N", "}"}) {
    ASSERT_TRUE(with(none).ok()) << with(none).status();
    EXPECT_EQ(with(none)->at(0).data, BytesOf<float>({1, 2}));
  }
  EXPECT_EQ(with("}" + Text("neg") + "\x89s")->at(0).data, BytesOf<float>({1, 2}));
  EXPECT_EQ(with("}" + Text("neg") + "\x88s")->at(0).data, BytesOf<float>({-1, -2}));
  for (const std::string& other : {"}" + Text("conj") + "\x88s", "}" + Text("x") + "K\x01s",
                                   std::string("]"), std::string("}K\x01\x88s")}) {
    EXPECT_THAT(std::string(with(other).status().message()), HasSubstr("tensor t: expected no"));
  }
}

TEST(TorchFileTest, NothingIsCalled) {
  const std::string pickle =
      absl::StrCat("\x80\x02}", Text("t"), "cposix\nsystem\n(", Text("touch /tmp/x"), "tRs.");
  EXPECT_THAT(std::string(Refused(FileWith(pickle)).message()), HasSubstr("posix system"));
}

TEST(TorchFileTest, WhatIsNoTensorIsNamed) {
  const std::string pickle = absl::StrCat("\x80\x02}", Text("epoch"), "K\x05s.");
  EXPECT_THAT(std::string(Refused(FileWith(pickle)).message()), HasSubstr("epoch"));
  EXPECT_THAT(
      std::string(Refused(FileWith(OneTensor(3, 0, Number(3), Number(1), "ComplexFloatStorage")))
                      .message()),
      HasSubstr("ComplexFloatStorage"));
}

TEST(TorchFileTest, OtherFormatsAreNamed) {
  EXPECT_THAT(std::string(Refused("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9 ...").message()),
              HasSubstr("legacy format"));
  EXPECT_THAT(std::string(Refused("hello").message()), HasSubstr("zip archive"));
  EXPECT_THAT(std::string(Refused(std::string(257, 'x') + "ustar and more").message()),
              HasSubstr("a tar archive, which tar -xf unpacks"));
  EXPECT_THAT(std::string(Refused(std::string(257, 'x') + "ustar storages").message()),
              HasSubstr("legacy format"));
  EXPECT_THAT(std::string(Refused("{\"metadata\": {}, \"weight_map\": {}}").message()),
              HasSubstr("an index of several files"));
  EXPECT_THAT(std::string(Refused("\x1f\x8b and more").message()),
              HasSubstr("compressed by gzip, which gunzip unpacks"));
  ZipWriter script;
  ASSERT_TRUE(script.Add("m/constants.pkl", "x").ok());
  EXPECT_THAT(std::string(Refused(script.Finish().value()).message()), HasSubstr("TorchScript"));
}

TEST(TorchFileTest, NoPrefixOfAFileIsRead) {
  const std::string file = EncodeTorchFile(Tensors()).value();
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(ReadAll(absl::string_view(file).substr(0, size)).ok()) << size;
  }
}

TEST(TorchFileTest, AChangedByteIsFoundOrMeansNothing) {
  const std::string file = EncodeTorchFile(Tensors()).value();
  int refused = 0;
  for (size_t i = 0; i < file.size(); ++i) {
    for (const char flip : {'\x01', '\x80', '\xff'}) {
      std::string changed = file;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      const auto read = ReadAll(changed);
      refused += !read.ok();
      if (read.ok()) ExpectSame(*read, Tensors());
    }
  }
  EXPECT_GT(refused, 1000);
}

// Without the archive's checksums, which find most of it before: the pickle may say anything.
TEST(TorchFileTest, AChangedPickleDoesNoHarm) {
  const std::string pickle = OneTensor(6, 1, Number(2) + Number(2), Number(1) + Number(2));
  for (size_t i = 0; i < pickle.size(); ++i) {
    for (int value = 0; value < 256; value += 3) {
      std::string changed = pickle;
      changed[i] = static_cast<char>(value);
      const auto read = ReadAll(FileWith(changed));
      if (!read.ok()) continue;
      // A stride of 0 makes many elements of one, within bounds.
      for (const HostTensor& tensor : *read) EXPECT_LE(tensor.data.size(), 20u << 20);
    }
  }
}

// A compressed archive was said to be big-endian, since its byteorder could not be read.
TEST(TorchFileTest, ACompressedArchiveIsNotCalledBigEndian) {
  ZipWriter zip;
  ASSERT_TRUE(zip.Add("a/data.pkl", "}.").ok());
  ASSERT_TRUE(zip.Add("a/byteorder", "little").ok());
  std::string archive = zip.Finish().value();
  for (size_t at = archive.find("PK\x01\x02"); at != std::string::npos;
       at = archive.find("PK\x01\x02", at + 1)) {
    archive[at + 10] = 8;
  }
  EXPECT_THAT(std::string(Refused(archive).message()), HasSubstr("data.pkl compressed"));
  ZipWriter big;
  ASSERT_TRUE(big.Add("a/data.pkl", "}.").ok());
  ASSERT_TRUE(big.Add("a/byteorder", "big").ok());
  EXPECT_THAT(std::string(Refused(big.Finish().value()).message()),
              HasSubstr("little endian, found them in byte order \"big\""));
}

// Files of set_crc32_options(False), which have 0 as every checksum, were said to be damaged.
TEST(TorchFileTest, AFileWithoutChecksumsIsRead) {
  std::string file = EncodeTorchFile(Tensors()).value();
  for (size_t at = file.find("PK\x01\x02"); at != std::string::npos;
       at = file.find("PK\x01\x02", at + 1)) {
    std::memset(&file[at + 16], 0, 4);
  }
  const auto read = ReadAll(file);
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectSame(*read, Tensors());
}

std::string Call(const std::string& module_and_name, const std::string& arguments) {
  return absl::StrCat("c", module_and_name, "\n(", arguments, "tR");
}

// Objects beside the weights, as training scripts store them, made a file unreadable.
TEST(TorchFileTest, ObjectsOfAnyClassAreNoObstacle) {
  const std::vector<std::string> objects = {
      Call("argparse\nNamespace", "") + "}" + Text("lr") + "K\x01sb",
      "cargparse\nNamespace\n)\x81}b",   // NEWOBJ and BUILD
      "cargparse\nNamespace\n)}\x92}b",  // NEWOBJ_EX
      Call("numpy.core.multiarray\nscalar", "cnumpy\ndtype\n" + Text("f8")),
      Call("builtins\ngetattr", Text("a")) + ")R",  // a call of what a call gave
      "\x8f(K\x01K\x02\x90",                        // a set
      "(K\x01K\x02\x91",                            // a frozenset
      std::string("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00", 11),  // 2^64 - 1, a seed
      "(iargparse\nNamespace\n",                                        // protocol 0
      "F1.5\n",
      "I12\n",
      "L12L\n",
      "I01\n",
      "S'a'\n",
      "Va\n",
      "(lp5\nK\x01"
      "a",
      "(dp6\ng6\n0",
      Call("collections\ndefaultdict", "c__builtin__\nlist\n") + "K\x01K\x02s",
      Call("mine\nList", "") +
          "(K\x01K\x02"
          "e",  // a list's subclass
      "(ccollections\nCounter\n}o",
  };
  for (const std::string& object : objects) {
    const std::string rest = OneTensor(6, 0, Number(6), Number(1)).substr(3);
    const std::string pickle = absl::StrCat("\x80\x02}", Text("args"), object, "s", rest);
    const std::string file = FileWith(pickle);
    const auto dicts = OpenTorchFile(file);
    ASSERT_TRUE(dicts.ok()) << dicts.status() << " for " << object;
    ASSERT_EQ(dicts->at(0).entries.size(), 2u) << object;
    EXPECT_FALSE(dicts->at(0).entries[0].weight) << object;
    EXPECT_FALSE(dicts->at(0).entries[0].read().ok()) << object;
    const auto tensor = dicts->at(0).entries[1].read();
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(tensor->data, BytesOf<float>({1, 2, 3, 4, 5, 6}));
  }
}

// torch.load and load_state_dict take them.
TEST(TorchFileTest, AClassMadeFromDictIsADict) {
  const std::string rest = OneTensor(6, 0, Number(6), Number(1)).substr(3);
  for (const std::string& made :
       {Call("mine\nDict", ""), std::string("cmine\nDict\n)\x81"), Call("addict\nDict", "")}) {
    const std::string file =
        FileWith(absl::StrCat("\x80\x02}", Text("model"), made, "(", Text("lr"), "K\x01us", rest));
    const auto dicts = OpenTorchFile(file);
    ASSERT_TRUE(dicts.ok()) << dicts.status();
    ASSERT_EQ(dicts->size(), 2u);
    EXPECT_EQ(dicts->at(1).key, "model");
    EXPECT_EQ(dicts->at(1).entries.at(0).name, "lr");
  }
}

// One key of megabytes that each entry refers to was compared, and split, for each.
TEST(TorchFileTest, LongKeysAreNoNames) {
  const std::string rest = OneTensor(6, 0, Number(6), Number(1)).substr(3);
  std::string entries = Text(std::string(1 << 20, '.')) + "q\x01K\x01";
  for (int i = 0; i < 100000; ++i) entries += "h\x01K\x01";
  const std::string file = FileWith(absl::StrCat("\x80\x02}(", entries, "u", rest));
  const auto dicts = OpenTorchFile(file);
  ASSERT_TRUE(dicts.ok()) << dicts.status();
  EXPECT_EQ(dicts->at(0).entries.size(), 1u);
}

// What a job can be made to allocate by a file, in bytes.
int64_t MostMemory() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

std::string Repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// A file of 300 KB could ask for 53 GB: each mention of a remembered tuple or string was a copy.
TEST(TorchFileTest, MemoryIsBoundedByTheFilesSize) {
  const int kMany = 100000;
  const std::string tuple = "(" + Repeated("K\x01", kMany) + "tq\x01";
  const std::string text = Text(std::string(150000, 'x')) + "q\x01";
  const std::string storage = absl::StrCat("(", Text("storage"), "ctorch\nFloatStorage\n",
                                           Text("0"), Text("cpu"), Number(6), "tQq\x02");
  // Tensors whose sizes and strides are this one tuple.
  std::string tensors = storage + tuple + "0}(";
  for (int i = 0; i < 3000; ++i) {
    absl::StrAppend(&tensors, Text(absl::StrCat(i)), "ctorch._utils\n_rebuild_tensor_v2\n(h\x02K",
                    std::string(1, '\0'), "h\x01h\x01\x89NtR");
  }
  // Each of 8 MB, by a stride of 0.
  std::string expanded = storage + "}(";
  for (int i = 0; i < 3000; ++i) {
    absl::StrAppend(&expanded, Text(absl::StrCat(i)), "ctorch._utils\n_rebuild_tensor_v2\n(h\x02K",
                    std::string(1, '\0'), "(", Number(2000000), "t(K", std::string(1, '\0'),
                    "t\x89NtR");
  }
  const std::vector<std::pair<const char*, std::string>> pickles = {
      {"storages of one tuple", tuple + Repeated("h\x01Q0", kMany) + "}."},
      {"tensors of one tuple",
       tuple + "0" + Repeated("ctorch._utils\n_rebuild_tensor_v2\nh\x01R0", 4000) + "}."},
      {"names of one string", text +
                                  Repeated("h\x01h\x01\x93"
                                           "0",
                                           kMany / 2) +
                                  "}."},
      {"storages named by one string", text + Repeated("h\x01\x85Q0", kMany) + "}."},
      {"objects of one name", text +
                                  "h\x01\x93"
                                  "0" +
                                  "}."},
      {"sizes of one tuple", tensors + "u."},
      {"expanded tensors", expanded + "u."},
      {"lists", Repeated("]", 3 * kMany) + "}."},
      {"tuples in tuples", ")" + Repeated("\x85", 3 * kMany) + "0}."},
      {"memo", "N" + Repeated("\x94", 3 * kMany) + "0}."},
      {"marks", Repeated("(", 3 * kMany) + "}."},
      {"a list of itself", "]q\x01" +
                               Repeated("h\x01"
                                        "a",
                                        kMany) +
                               "0}."},
      {"dicts of dicts", "}q\x01" + Text("a") + "h\x01s."},
  };
  for (const auto& [name, pickle] : pickles) {
    const std::string file = FileWith("\x80\x02" + pickle);
    const int64_t before = MostMemory();
    // Only sums may be large, so what is read is kept no longer than it takes.
    const auto dicts = OpenTorchFile(file);
    std::vector<HostTensor> read;
    for (size_t i = 0; dicts.ok() && i < dicts->at(0).entries.size(); ++i) {
      auto tensor = dicts->at(0).entries[i].read();
      if (tensor.ok()) read.push_back(*std::move(tensor));
    }
    EXPECT_LE(MostMemory() - before, (int64_t{64} << 20) + 300 * static_cast<int64_t>(file.size()))
        << name << ", " << file.size() << " bytes";
  }
  // As many values as no checkpoint has.
  const std::string large = FileWith(std::string(Pickle::most_values() + 1, ']'));
  EXPECT_THAT(std::string(OpenTorchFile(large).status().message()), HasSubstr("values"));
}

// Each of two entries could be the whole archive, and a thousand of them a thousand times as much.
TEST(ZipArchiveTest, EntriesUponOneAnotherAreRefused) {
  ZipWriter zip;
  ASSERT_TRUE(zip.Add("a", std::string(1000, 'x')).ok());
  ASSERT_TRUE(zip.Add("b", std::string(1000, 'x')).ok());
  ASSERT_TRUE(zip.Add("c", std::string(1000, 'x')).ok());
  std::string archive = zip.Finish().value();
  std::string same = archive;
  for (size_t at = same.find("PK\x01\x02"); at != std::string::npos;
       at = same.find("PK\x01\x02", at + 1)) {
    std::memset(&same[at + 42], 0, 4);
  }
  EXPECT_TRUE(ReadZip(same).ok());  // three times 1000 are no more than there are
  const size_t directory = same.find("PK\x01\x02");
  const std::string shorter = same.substr(0, 1100) + same.substr(directory);
  std::string moved = shorter;
  const uint32_t begin = 1100;
  std::memcpy(&moved[moved.size() - 6], &begin, 4);
  EXPECT_THAT(std::string(ReadZip(moved).status().message()),
              HasSubstr("its entries have more bytes than its"));
}

HostTensor Zeros(const std::string& name, int64_t size) {
  return {name, StoredType::kFloat32, {size}, std::string(4 * size, '\0')};
}

// A dict as a file would have it. An empty list stands for a value that is no tensor.
WeightDict DictOf(const std::string& key, const std::vector<TensorShape>& tensors) {
  static auto* const names = new std::unordered_set<std::string>;
  WeightDict dict;
  dict.key = key;
  for (const TensorShape& tensor : tensors) {
    WeightEntry entry;
    entry.name = *names->insert(tensor.name).first;
    entry.weight = !tensor.sizes.empty();
    entry.read = [tensor]() -> absl::StatusOr<HostTensor> {
      if (tensor.sizes.empty()) return absl::InvalidArgumentError("no tensor: " + tensor.name);
      return Zeros(tensor.name, tensor.sizes[0]);
    };
    dict.entries.push_back(std::move(entry));
  }
  return dict;
}

const std::vector<TensorShape>& Wanted() {
  static const auto* const wanted = new std::vector<TensorShape>{
      {"features.0.weight", {3}}, {"features.1.weight", {4}}, {"fc.weight", {5}}, {"fc.bias", {6}}};
  return *wanted;
}

// Wanted() behind `prefix`.
std::vector<TensorShape> Behind(const std::string& prefix,
                                const std::vector<TensorShape>& more = {}) {
  std::vector<TensorShape> all;
  for (const TensorShape& tensor : Wanted()) all.push_back({prefix + tensor.name, tensor.sizes});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

absl::StatusOr<WeightsFound> Fit(const std::vector<WeightDict>& dicts, const std::string& key = "",
                                 const std::string& skip = "") {
  return FitWeights(dicts, {Wanted(), key, skip});
}

void ExpectFits(const absl::StatusOr<WeightsFound>& found, const std::string& account) {
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->account, account);
  ASSERT_EQ(found->tensors.size() + found->left.size(), Wanted().size());
}

TEST(FitWeightsTest, AnyPrefixThatTheModelsNamesShareIsTakenOff) {
  ExpectFits(Fit({DictOf("", Behind(""))}), "");
  for (const std::string prefix :
       {"module.", "_orig_mod.", "model.", "backbone.", "module._orig_mod.", "a.b.c.d.e.f."}) {
    ExpectFits(Fit({DictOf("", Behind(prefix))}), "names without \"" + prefix + "\"");
  }
  ExpectFits(Fit({DictOf("state_dict", Behind("model.", {{"criterion.weight", {2}}, {"n", {}}}))}),
             "its entry \"state_dict\"; names without \"model.\"; not read: criterion.weight, n");
  // Within names, as DataParallel or torch.compile of a part has them.
  ExpectFits(Fit({DictOf("", {{"features.module.0.weight", {3}},
                              {"features.module.1._orig_mod.weight", {4}},
                              {"fc.weight", {5}},
                              {"fc.bias", {6}}})}),
             "names without those of wrappers inside");
}

TEST(FitWeightsTest, TwoPrefixesThatCouldBeMeantAreNamed) {
  std::vector<TensorShape> both = Behind("encoder_q.");
  for (const TensorShape& tensor : Behind("encoder_k.")) both.push_back(tensor);
  EXPECT_THAT(std::string(Fit({DictOf("", both)}).status().message()),
              AllOf(HasSubstr("behind \"encoder_k.\" and behind \"encoder_q.\""),
                    HasSubstr("--init_skip='^encoder_q\\.'")));
  std::vector<TensorShape> average = Behind("model.");
  for (const TensorShape& tensor : Behind("ema_model.")) average.push_back(tensor);
  const auto found = Fit({DictOf("", average)});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(found->account, HasSubstr("names without \"model.\" (--init_skip='^model\\.' takes "
                                        "those behind \"ema_model.\"); not read: ema_model."));
  ExpectFits(Fit({DictOf("", both)}, "", "^encoder_q\\."), "names without \"encoder_k.\"");
}

TEST(FitWeightsTest, ACustomaryKeyIsChosenAndSaid) {
  const WeightDict root = DictOf("", {{"epoch", {}}, {"args", {}}});
  const WeightDict model = DictOf("model", Behind(""));
  const WeightDict average = DictOf("model_ema", Behind("module.", {{"n_averaged", {1}}}));
  ExpectFits(Fit({root, average, model}),
             "its entry \"model\" (--init_key=model_ema takes \"model_ema\")");
  ExpectFits(Fit({root, average, model}, "model_ema"),
             "its entry \"model_ema\"; names without \"module.\"; not read: n_averaged");
  ExpectFits(Fit({root, average}),
             "its entry \"model_ema\"; names without \"module.\"; not read: n_averaged");
  EXPECT_THAT(std::string(Fit({root, model, average}, "ema").status().message()),
              HasSubstr("--init_key: expected an entry of the file that has tensors (model, "
                        "model_ema), found \"ema\""));
  // Neither name says which of them is meant.
  EXPECT_THAT(
      std::string(Fit({root, DictOf("student", Behind("")), DictOf("teacher", Behind(""))})
                      .status()
                      .message()),
      AllOf(HasSubstr("in \"student\" and in \"teacher\""), HasSubstr("--init_key=student")));
  EXPECT_THAT(std::string(Fit({root}).status().message()),
              HasSubstr("found none among its entries epoch, args"));
}

// An average was taken for more names that decide nothing, or for letters inside a word.
TEST(FitWeightsTest, AnAverageIsMeantOnlyWhereNothingElseIs) {
  std::vector<TensorShape> wanted = Wanted();
  wanted.push_back({"bn.num_batches_tracked", {}});
  const WeightDict model = DictOf("model", Behind(""));
  const WeightDict average = DictOf("model_ema", Behind("", {{"bn.num_batches_tracked", {1}}}));
  const auto found = FitWeights({average, model}, {wanted, "", ""});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->account,
            "its entry \"model\" (--init_key=model_ema takes \"model_ema\"); 1 "
            "num_batches_tracked, which it does not have, are 0");
  // One that lacks a tensor is named.
  std::vector<TensorShape> less = Behind("");
  less.pop_back();
  ExpectFits(Fit({DictOf("model", less), DictOf("model_ema", Behind(""))}),
             "its entry \"model_ema\" (--init_key=model has 3 of its 4 names)");
  for (const char* name : {"semantic_model", "schema", "swallow", "themavg"}) {
    EXPECT_THAT(std::string(Fit({DictOf(name, Behind("")), DictOf("texture_model", Behind(""))})
                                .status()
                                .message()),
                HasSubstr("expected the model's names in one entry"))
        << name;
  }
  for (const char* name : {"EMA", "modelEma", "EMAModel", "swa_model", "averaged.model"}) {
    ExpectFits(
        Fit({DictOf(name, Behind("")), DictOf("texture_model", Behind(""))}),
        absl::StrCat("its entry \"texture_model\" (--init_key=", name, " takes \"", name, "\")"));
  }
}

// Had more of the model's names than a model that lacks some, and was taken for the weights.
TEST(FitWeightsTest, WhatAnOptimizerKeepsIsNeverMeant) {
  std::vector<TensorShape> less = Behind("");
  less.pop_back();
  const WeightDict moments = DictOf("optimizer.exp_avg", Behind(""));
  EXPECT_THAT(std::string(Fit({moments, DictOf("model", less)}).status().message()),
              HasSubstr("its entry \"model\": expected the model's 4 tensors, found 1 missing"));
  EXPECT_EQ(std::string(Fit({DictOf("", {{"step", {}}}), moments}).status().message()),
            "expected weights, found what an optimizer keeps in \"optimizer.exp_avg\"; "
            "--init_key=optimizer.exp_avg takes it all the same");
  ExpectFits(Fit({moments, DictOf("model", less)}, "optimizer.exp_avg"),
             "its entry \"optimizer.exp_avg\"");
}

// Asked the last of no parts what to say.
TEST(FitWeightsTest, WeightsOfTheFileItselfMayHaveAnotherDictBeside) {
  ExpectFits(Fit({DictOf("", Behind("")), DictOf("model_ema", Behind(""))}),
             "names of the file itself (--init_key=model_ema takes \"model_ema\")");
}

TEST(FitWeightsTest, OfTwoSpellingsOfANameNoneIsDroppedWithoutAWord) {
  std::vector<TensorShape> two = Behind("", {{"fc.module.bias", {6}}});
  ExpectFits(Fit({DictOf("", two)}), "not read: fc.module.bias");
  two[3].name = "fc._orig_mod.bias";
  EXPECT_EQ(std::string(Fit({DictOf("", two)}).status().message()),
            "expected fc.bias once, found \"fc._orig_mod.bias\" and \"fc.module.bias\"; "
            "--init_skip='^fc\\.module\\.bias$' takes the former");
}

TEST(FitWeightsTest, AMessageIsALine) {
  std::vector<TensorShape> wanted = Wanted();
  wanted[3].sizes.assign(5000, 1);
  const auto refused = FitWeights({DictOf("", Behind(""))}, {wanted, "", ""});
  EXPECT_LT(refused.status().message().size(), 300u);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("1, ... (5000)], found [6]"));
}

TEST(FitWeightsTest, AnotherHeadIsSkippedByTheFlagThatTheErrorNames) {
  std::vector<TensorShape> other = Behind("");
  other[2].sizes = {50};
  other[3].sizes = {60};
  EXPECT_EQ(
      std::string(Fit({DictOf("", other)}).status().message()),
      "expected the model's 4 tensors, found 2 of other sizes (fc.weight: expected [5], found "
      "[50], fc.bias: expected [6], found [60]); --init_skip='^fc\\.' starts without these");
  ExpectFits(Fit({DictOf("", other)}, "", "^fc\\."),
             "by --init_skip these keep their initial values: fc.weight, fc.bias");
  // A head of another name: missing and unexpected.
  other = {Wanted()[0], Wanted()[1], {"head.weight", {5}}, {"aux", {5}}};
  EXPECT_THAT(std::string(Fit({DictOf("", other)}).status().message()),
              HasSubstr("2 missing (fc.weight, fc.bias); 2 unexpected (head.weight, aux); "
                        "--init_skip='^(aux$|fc\\.|head\\.)' starts without these"));
  ExpectFits(Fit({DictOf("", other)}, "", "^(aux$|fc\\.|head\\.)"),
             "by --init_skip these keep their initial values: fc.weight, fc.bias");
  // A module of which one tensor is to be read is not named whole.
  other = Behind("");
  other[3].sizes = {60};
  EXPECT_THAT(std::string(Fit({DictOf("", other)}).status().message()),
              HasSubstr("--init_skip='^fc\\.bias$'"));
  EXPECT_THAT(std::string(Fit({DictOf("", other)}, "", "nothing").status().message()),
              HasSubstr("--init_skip: expected a regular expression that matches"));
  EXPECT_THAT(std::string(Fit({DictOf("", other)}, "", ".").status().message()),
              HasSubstr("--init_skip: expected to leave tensors"));
}

TEST(FitWeightsTest, AWeightThatIsNoTensorIsRefusedWhereItIsWanted) {
  std::vector<TensorShape> sparse = Behind("");
  sparse[0].sizes = {};
  EXPECT_EQ(std::string(Fit({DictOf("", sparse)}).status().message()),
            "no tensor: features.0.weight");
}

TEST(FitWeightsTest, MissingCountsOfBatchesAreZero) {
  std::vector<TensorShape> wanted = Wanted();
  wanted.push_back({"bn.num_batches_tracked", {}});
  const auto found = FitWeights({DictOf("", Behind(""))}, {wanted, "", ""});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->account, "1 num_batches_tracked, which it does not have, are 0");
  EXPECT_EQ(found->tensors.back().data, std::string(8, '\0'));
  // Or were vectors of one.
  const auto old =
      FitWeights({DictOf("", Behind("", {{"bn.num_batches_tracked", {1}}}))}, {wanted, "", ""});
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_TRUE(old->tensors.back().sizes.empty());
}

TEST(SafetensorsTest, WhatIsWrittenIsRead) {
  Safetensors content;
  content.tensors = Tensors();
  content.metadata = {{"step", "120"}, {"a \"key\"", "line\nline\\"}};
  const std::string file = EncodeSafetensors(content).value();
  const auto read = DecodeSafetensors(file);
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectSame(read->tensors, content.tensors);
  EXPECT_EQ(read->metadata, content.metadata);
  // The header ends at a multiple of 8.
  EXPECT_EQ(static_cast<unsigned char>(file[0]) % 8, 0);
}

TEST(SafetensorsTest, TwoOfAnNameAreRefused) {
  Safetensors content;
  content.tensors = {Tensors()[0], Tensors()[0]};
  EXPECT_FALSE(EncodeSafetensors(content).ok());
}

TEST(SafetensorsTest, NoPrefixOfAFileIsRead) {
  Safetensors content;
  content.tensors = Tensors();
  const std::string file = EncodeSafetensors(content).value();
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(DecodeSafetensors(absl::string_view(file).substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(DecodeSafetensors(file + "x").ok());
}

std::string WithHeader(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + data;
}

TEST(SafetensorsTest, AHeaderThatDeceivesIsRefused) {
  const auto refused = [](const std::string& entry) {
    const std::string file =
        WithHeader(R"({"t":{"dtype":"F32","shape":)" + entry + "}}", "12345678");
    return std::string(DecodeSafetensors(file).status().message());
  };
  EXPECT_EQ(refused(R"([2],"data_offsets":[0,8])"), "");
  EXPECT_THAT(refused(R"([3],"data_offsets":[0,12])"), HasSubstr("t"));
  EXPECT_THAT(refused(R"([2],"data_offsets":[0,4])"), HasSubstr("data_offsets"));
  EXPECT_THAT(refused(R"([1],"data_offsets":[4,8])"),
              HasSubstr("t begins at byte 4 of the tensors: expected 0, as the first one"));
  // Of a file that was whole it was said to be cut off, and no tensor was named.
  EXPECT_THAT(refused(R"([2],"data_offsets":[8,16])"),
              HasSubstr("t: data_offsets 8 to 16 are not the 8 bytes of F32 [2] among 8"));
  EXPECT_THAT(refused(R"([2],"data_offsets":[0,8,8])"),
              HasSubstr("t: expected as data_offsets two integers"));
  const std::string overlap = WithHeader(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                         R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
                                         "12345678");
  EXPECT_THAT(
      std::string(DecodeSafetensors(overlap).status().message()),
      HasSubstr("b begins at byte 2 of the tensors: expected 4, where a ends; they overlap"));
  EXPECT_THAT(refused(R"([1],"data_offsets":[0,4])"), HasSubstr("expected 4 bytes"));
  EXPECT_THAT(refused(R"([4294967296,4294967296,4],"data_offsets":[0,8])"), HasSubstr("more than"));
  EXPECT_THAT(refused(R"([-1],"data_offsets":[0,8])"), HasSubstr("shape"));
  EXPECT_THAT(refused(R"([1.5],"data_offsets":[0,8])"), HasSubstr("shape"));
  EXPECT_THAT(refused(R"([2])"), HasSubstr("data_offsets"));
  EXPECT_THAT(std::string(DecodeSafetensors(WithHeader("{", "")).status().message()),
              HasSubstr("JSON"));
  EXPECT_FALSE(DecodeSafetensors(std::string(8, '\xff') + "{}").ok());
}

// A tensor of a dtype that no weight has ended the job, though nobody wanted it.
TEST(SafetensorsTest, ATensorOfAnotherDtypeIsRefusedWhereItIsWanted) {
  const std::string file = WithHeader(R"({"rng":{"dtype":"U32","shape":[1],"data_offsets":[0,4]},)"
                                      R"("t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                                      "12345678");
  EXPECT_THAT(std::string(DecodeSafetensors(file).status().message()), HasSubstr("found \"U32\""));
  std::map<std::string, absl::Status> unread;
  const auto read = DecodeSafetensors(file, &unread);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->tensors.size(), 1u);
  EXPECT_EQ(read->tensors[0].data, "5678");
  ASSERT_EQ(unread.size(), 1u);
  EXPECT_THAT(std::string(unread.at("rng").message()), HasSubstr("found \"U32\""));
  std::string many = "1";
  for (int i = 0; i < 64; ++i) many += ",1";
  EXPECT_THAT(
      std::string(DecodeSafetensors(WithHeader(absl::StrCat(R"({"t":{"dtype":"F32","shape":[)",
                                                            many, R"(],"data_offsets":[0,4]}})"),
                                               "1234"))
                      .status()
                      .message()),
      HasSubstr("expected at most 64 dimensions, found 65"));
}

TEST(SafetensorsTest, MemoryIsBoundedByTheHeadersSize) {
  for (const char* item : {"0,", "[],", "{},", "{\"\":{}},"}) {
    const std::string file =
        WithHeader(absl::StrCat("{\"a\":[", Repeated(item, 100000), "0]}"), "");
    const int64_t before = MostMemory();
    EXPECT_FALSE(DecodeSafetensors(file).ok());
    EXPECT_LE(MostMemory() - before, (int64_t{64} << 20) + 300 * static_cast<int64_t>(file.size()));
  }
  const std::string large = WithHeader("{" + std::string(33 << 20, ' ') + "}", "");
  EXPECT_THAT(std::string(DecodeSafetensors(large).status().message()),
              HasSubstr("expected a header of at most"));
}

}  // namespace
}  // namespace gradsync
