// The file formats without Python: what is written is read again, and a file that was cut, changed
// or made to deceive is refused. tests/checkpoint_python_test.cc has the same with PyTorch.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/crc32.h"
#include "checkpoint/host_tensor.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch_file.h"
#include "checkpoint/zip_archive.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::vector<HostTensor> Tensors() {
  return {
      {"conv.weight", ElementType::kFloat32, {2, 3}, BytesOf<float>({1, 2, 3, 4, 5, -6})},
      {"conv.count", ElementType::kInt64, {}, BytesOf<int64_t>({-7})},
      {"empty", ElementType::kFloat64, {0, 4}, ""},
      {"a \"quoted\\ name\n", ElementType::kBool, {1}, std::string(1, '\1')},
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

absl::Status Refused(const std::string& file) { return DecodeTorchFile(file).status(); }

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
  const auto read = DecodeTorchFile(*file);
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectSame(*read, Tensors());
}

TEST(TorchFileTest, NoTensorsAreADictToo) {
  const auto read = DecodeTorchFile(EncodeTorchFile({}).value());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->empty());
}

TEST(TorchFileTest, StridesAndOffsetsAreFollowed) {
  // Element (i, j) is 1 + offset + i + 2 j.
  const auto read =
      DecodeTorchFile(FileWith(OneTensor(6, 1, Number(2) + Number(2), Number(1) + Number(2))));
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
              HasSubstr("more than the 6 elements"));
}

TEST(TorchFileTest, AStrideOfOneElementMayBeAnything) {
  const auto read = DecodeTorchFile(FileWith(OneTensor(6, 5, Number(1), Number(2147483647))));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->at(0).data, BytesOf<float>({6}));
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
  ZipWriter script;
  ASSERT_TRUE(script.Add("m/constants.pkl", "x").ok());
  EXPECT_THAT(std::string(Refused(script.Finish().value()).message()), HasSubstr("TorchScript"));
}

TEST(TorchFileTest, NoPrefixOfAFileIsRead) {
  const std::string file = EncodeTorchFile(Tensors()).value();
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(DecodeTorchFile(absl::string_view(file).substr(0, size)).ok()) << size;
  }
}

TEST(TorchFileTest, AChangedByteIsFoundOrMeansNothing) {
  const std::string file = EncodeTorchFile(Tensors()).value();
  int refused = 0;
  for (size_t i = 0; i < file.size(); ++i) {
    for (const char flip : {'\x01', '\x80', '\xff'}) {
      std::string changed = file;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      const auto read = DecodeTorchFile(changed);
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
      const auto read = DecodeTorchFile(FileWith(changed));
      if (!read.ok()) continue;
      for (const HostTensor& tensor : *read) EXPECT_LE(tensor.data.size(), 24u);
    }
  }
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
  EXPECT_THAT(refused(R"([1],"data_offsets":[4,8])"), HasSubstr("begins at byte 4"));
  EXPECT_THAT(refused(R"([1],"data_offsets":[0,4])"), HasSubstr("expected 4 bytes"));
  EXPECT_THAT(refused(R"([4294967296,4294967296,4],"data_offsets":[0,8])"), HasSubstr("more than"));
  EXPECT_THAT(refused(R"([-1],"data_offsets":[0,8])"), HasSubstr("shape"));
  EXPECT_THAT(refused(R"([1.5],"data_offsets":[0,8])"), HasSubstr("shape"));
  EXPECT_THAT(refused(R"([2])"), HasSubstr("data_offsets"));
  EXPECT_THAT(std::string(DecodeSafetensors(WithHeader("{", "")).status().message()),
              HasSubstr("JSON"));
  EXPECT_FALSE(DecodeSafetensors(std::string(8, '\xff') + "{}").ok());
}

}  // namespace
}  // namespace gradsync
