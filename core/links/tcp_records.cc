#include "core/links/tcp_records.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

template <typename T>
void AppendLittleEndian(T value, std::string* bytes) {
  for (size_t i = 0; i < sizeof(T); ++i) bytes->push_back(static_cast<char>(value >> (8 * i)));
}

template <typename T>
T ReadLittleEndian(const char* bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

}  // namespace

void AppendPrefix(const TcpRecord& record, std::string* bytes) {
  bytes->append("GS");
  bytes->push_back(static_cast<char>(TcpRecord::kVersion));
  bytes->push_back(static_cast<char>(record.type));
  AppendLittleEndian(record.header_bytes, bytes);
  AppendLittleEndian(record.payload_bytes, bytes);
}

void AppendRecord(TcpRecord::Type type, absl::string_view header, std::string* bytes) {
  AppendPrefix({type, static_cast<uint32_t>(header.size()), 0}, bytes);
  absl::StrAppend(bytes, header);
}

absl::StatusOr<TcpRecord> ReadPrefix(const char* bytes) {
  const auto version = static_cast<uint8_t>(bytes[2]);
  const auto type = static_cast<uint8_t>(bytes[3]);
  if (bytes[0] != 'G' || bytes[1] != 'S' || version != TcpRecord::kVersion ||
      type < TcpRecord::kOpening || type > TcpRecord::kTls) {
    return absl::DataLossError(
        absl::StrCat("expected a record of version ", TcpRecord::kVersion,
                     " (docs/internals/protocol.md), found bytes \"",
                     absl::CHexEscape(absl::string_view(bytes, TcpRecord::kPrefixBytes)), "\""));
  }
  TcpRecord record;
  record.type = static_cast<TcpRecord::Type>(type);
  record.header_bytes = ReadLittleEndian<uint32_t>(bytes + 4);
  record.payload_bytes = ReadLittleEndian<uint64_t>(bytes + 8);
  return record;
}

std::string TcpOpening::Encode() const {
  std::string header;
  AppendLittleEndian(oldest_version, &header);
  AppendLittleEndian(newest_version, &header);
  header.push_back(has_secret ? 1 : 0);
  AppendLittleEndian(static_cast<uint32_t>(proof.run.size()), &header);
  absl::StrAppend(&header, proof.run, proof.key);
  return header;
}

absl::StatusOr<TcpOpening> TcpOpening::Decode(absl::string_view header) {
  constexpr size_t kFixedBytes = 13;
  TcpOpening opening;
  if (header.size() >= kFixedBytes) {
    opening.oldest_version = ReadLittleEndian<uint32_t>(header.data());
    opening.newest_version = ReadLittleEndian<uint32_t>(header.data() + 4);
    opening.has_secret = header[8] != 0;
    const uint32_t run_bytes = ReadLittleEndian<uint32_t>(header.data() + 9);
    header.remove_prefix(kFixedBytes);
    if (run_bytes <= header.size()) {
      opening.proof.run = std::string(header.substr(0, run_bytes));
      opening.proof.key = std::string(header.substr(run_bytes));
      return opening;
    }
  }
  return absl::DataLossError("an opening that is too short");
}

ReceiveMemory::~ReceiveMemory() {
  for (auto& pieces : free_) {
    for (char* piece : pieces) ::operator delete(piece);
  }
}

int ReceiveMemory::ClassOf(size_t bytes) {
  int size_class = 0;
  while ((kSmallestPiece << size_class) < bytes) ++size_class;
  return size_class;
}

ReceiveMemory::Piece ReceiveMemory::Take(size_t bytes) {
  const int size_class = ClassOf(bytes);
  Piece piece;
  piece.size_ = kSmallestPiece << size_class;
  {
    MutexLock lock(&mutex_);
    if (!free_[size_class].empty()) {
      piece.data_ = free_[size_class].back();
      free_[size_class].pop_back();
      kept_ -= piece.size_;
    }
  }
  if (piece.data_ == nullptr) piece.data_ = static_cast<char*>(::operator new(piece.size_));
  piece.memory_ = shared_from_this();
  return piece;
}

void ReceiveMemory::Put(char* data, size_t size) {
  {
    MutexLock lock(&mutex_);
    if (kept_ + size <= kMostKept) {
      free_[ClassOf(size)].push_back(data);
      kept_ += size;
      return;
    }
  }
  ::operator delete(data);
}

iovec RecordReader::PayloadPlace() {
  const uint64_t left = record_.payload_bytes - filled_;
  if (pieces_.empty() || piece_filled_ == pieces_.back().size()) {
    // Memory grows with what has come, not with what was announced.
    pieces_.push_back(memory_->Take(std::min<uint64_t>(left, ReceiveMemory::kLargestPiece)));
    piece_filled_ = 0;
  }
  const ReceiveMemory::Piece& piece = pieces_.back();
  return {piece.data() + piece_filled_,
          static_cast<size_t>(std::min<uint64_t>(piece.size() - piece_filled_, left))};
}

void RecordReader::AddToPayload(size_t bytes) {
  filled_ += bytes;
  piece_filled_ += bytes;
}

int RecordReader::Places(iovec places[2]) {
  int count = 0;
  if (in_payload_) {
    places[count++] = PayloadPlace();
    // What follows the payload comes with it, where all of the payload has a place.
    if (filled_ + places[0].iov_len < record_.payload_bytes) return count;
  }
  if (staging_ == nullptr || begin_ + needed_ > staging_->size() || end_ == staging_->size()) {
    // Others may still read what is before `begin_`.
    auto next = MakePooled<ReceiveMemory::Piece>(
        memory_->objects(),
        memory_->Take(std::max(needed_ + kSmall, ReceiveMemory::kSmallestPiece)));
    if (staged() > 0) std::memcpy(next->data(), at(), staged());
    end_ = staged();
    begin_ = 0;
    staging_ = std::move(next);
  }
  size_t room = staging_->size() - end_;
  if (last_was_large_) {
    room = std::min(room, std::max(kAhead, needed_ - std::min(needed_, staged())));
  }
  places[count++] = {staging_->data() + end_, room};
  return count;
}

absl::Status RecordReader::Received(size_t bytes, Take take) {
  if (in_payload_) {
    const size_t into_payload = std::min(bytes, PayloadPlace().iov_len);
    AddToPayload(into_payload);
    bytes -= into_payload;
  }
  end_ += bytes;
  bool wanted = true;
  if (in_payload_) {
    if (!PayloadIsWhole()) return absl::OkStatus();
    in_payload_ = false;
    wanted = take(record_.type, header_, TakeLargePayload());
  }
  if (!wanted) return absl::OkStatus();
  return Parse(take, &wanted);
}

absl::Status RecordReader::Parse(Take take, bool* wanted) {
  while (*wanted && !in_payload_) {
    needed_ = TcpRecord::kPrefixBytes;
    if (staged() < needed_) return absl::OkStatus();
    GS_ASSIGN_OR_RETURN(record_, ReadPrefix(at()));
    if (record_.header_bytes > limits_.header_bytes ||
        record_.payload_bytes > limits_.payload_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a record with a header of ", record_.header_bytes,
                       " bytes and a payload of ", record_.payload_bytes, "; expected at most ",
                       limits_.header_bytes, " and ", limits_.payload_bytes));
    }
    needed_ += record_.header_bytes;
    const bool small = record_.payload_bytes <= kSmall;
    last_was_large_ = !small;
    if (small) needed_ += record_.payload_bytes;
    if (staged() < needed_) return absl::OkStatus();
    const char* const header = at() + TcpRecord::kPrefixBytes;
    if (!small) {
      header_.assign(header, record_.header_bytes);
      begin_ += needed_;
      needed_ = TcpRecord::kPrefixBytes;
      BeginPayload();
      MoveIntoPayload();
      if (!PayloadIsWhole()) return absl::OkStatus();
      in_payload_ = false;
      *wanted = take(record_.type, header_, TakeLargePayload());
      continue;
    }
    const auto payload = absl::MakeConstSpan(header + record_.header_bytes, record_.payload_bytes);
    begin_ += needed_;
    *wanted = take(record_.type, absl::string_view(header, record_.header_bytes),
                   payload.empty() ? Payload() : SmallPayload(payload));
  }
  return absl::OkStatus();
}

void RecordReader::BeginPayload() {
  in_payload_ = true;
  filled_ = 0;
  piece_filled_ = 0;
  pieces_.clear();
}

void RecordReader::MoveIntoPayload() {
  while (staged() > 0 && !PayloadIsWhole()) {
    const iovec place = PayloadPlace();
    const size_t bytes = std::min(staged(), place.iov_len);
    std::memcpy(place.iov_base, at(), bytes);
    begin_ += bytes;
    AddToPayload(bytes);
  }
}

Payload RecordReader::TakeLargePayload() {
  auto held = MakePooled<Held>(memory_->objects());
  held->own.swap(pieces_);
  uint64_t left = record_.payload_bytes;
  for (const ReceiveMemory::Piece& piece : held->own) {
    held->part = absl::MakeConstSpan(piece.data(),
                                     static_cast<size_t>(std::min<uint64_t>(left, piece.size())));
    left -= held->part.size();
    if (held->own.size() > 1) held->more_parts.push_back(held->part);
  }
  const auto parts = held->own.size() > 1 ? absl::MakeConstSpan(held->more_parts)
                                          : absl::MakeConstSpan(&held->part, 1);
  return {parts, std::move(held)};
}

Payload RecordReader::SmallPayload(absl::Span<const char> bytes) const {
  auto held = MakePooled<Held>(memory_->objects());
  held->shared = staging_;
  held->part = bytes;
  const auto parts = absl::MakeConstSpan(&held->part, 1);
  return {parts, std::move(held)};
}

}  // namespace gradsync
