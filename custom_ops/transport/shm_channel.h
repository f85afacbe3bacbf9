// One direction between two processes in shared memory: a ring of records and a pool of data slots. Zeroed
// memory is an empty channel.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tfddl {

// The layout of a segment; the same on all members.
struct ShmGeometry {
  size_t ring_bytes = size_t{64} << 10;  // at least 16 KiB
  size_t slot_bytes = size_t{64} << 10;
  size_t slots = 16;

  // For `size` members of one host: the largest layout with which the segments of all members together take
  // at most kShmHostBytes. There is one channel for each ordered pair of members, so many members get small
  // channels.
  static ShmGeometry For(int size);
};

// The most that the segments of a process set take on one host. With more than 142 members they take more:
// 52 KiB for each channel.
constexpr size_t kShmHostBytes = size_t{1} << 30;

enum class ShmKind : uint32_t {
  kSkip,      // fills the end of the ring
  kMessage,   // a short message; its bytes follow in the ring
  kEager,     // a message that was sent before a kReady; its bytes lie in `slot`
  kAnnounce,  // a long message, whose bytes follow as kData after a kReady
  kReady,     // the receive `handle` has memory for a long message
  kWithdraw,  // the receive `handle` was cancelled
  kData       // the next `bytes` bytes for `handle` lie in `slot`
};

struct ShmRecord {
  ShmKind kind;
  int32_t tag;
  uint64_t bytes;
  uint64_t handle;  // of the receiver
  uint64_t slot;
};

constexpr size_t kShmLine = 64;

// Each counter has a cache line of its own, because different cores write them.
struct ShmRing {
  alignas(kShmLine) std::atomic<uint64_t> written;
  alignas(kShmLine) std::atomic<uint64_t> read;
  alignas(kShmLine) char bytes[1];  // ring_bytes of them
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The addresses of the parts of a channel.
struct ShmChannel {
  ShmChannel(char* segment, const ShmGeometry& g, size_t index) : slot_bytes(g.slot_bytes), slots(g.slots) {
    char* base = segment + index * Bytes(g);
    ring = reinterpret_cast<ShmRing*>(base);
    freed = reinterpret_cast<std::atomic<uint64_t>*>(base + RingBytes(g));
    data = base + HeadBytes(g);
  }
  static size_t Bytes(const ShmGeometry& g) { return HeadBytes(g) + g.slots * g.slot_bytes; }

  char* Slot(size_t index) const { return data + index * slot_bytes; }

  ShmRing* ring;
  std::atomic<uint64_t>* freed;  // for each slot: how often the receiver has freed it
  char* data;
  size_t slot_bytes;
  size_t slots;

 private:
  // A multiple of a line, because the receiver writes the counters behind the ring.
  static size_t RingBytes(const ShmGeometry& g) {
    return (offsetof(ShmRing, bytes) + g.ring_bytes + kShmLine - 1) / kShmLine * kShmLine;
  }
  static size_t HeadBytes(const ShmGeometry& g) {
    constexpr size_t kPage = 4096;
    return (RingBytes(g) + g.slots * sizeof(uint64_t) + kPage - 1) / kPage * kPage;
  }
};

// Records are contiguous and aligned, so both sides can use them without a copy.
inline uint64_t ShmRecordBytes(const ShmRecord& record) {
  const uint64_t payload = record.kind == ShmKind::kMessage ? record.bytes : 0;
  return (sizeof(ShmRecord) + payload + sizeof(ShmRecord) - 1) / sizeof(ShmRecord) * sizeof(ShmRecord);
}

class ShmWriter {
 public:
  ShmWriter(ShmRing* ring, size_t bytes) : ring_(ring), bytes_(bytes) {}

  // False if the ring is full. Only a kMessage has a payload. The reader sees the record after Publish().
  bool Write(const ShmRecord& record, const void* payload) {
    const uint64_t need = ShmRecordBytes(record);
    const uint64_t rest = bytes_ - written_ % bytes_;
    const uint64_t skip = rest < need ? rest : 0;
    if (written_ + skip + need - read_ > bytes_) {
      read_ = ring_->read.load(std::memory_order_acquire);
      if (written_ + skip + need - read_ > bytes_) return false;
    }
    if (skip > 0) {
      const ShmRecord filler{ShmKind::kSkip, 0, skip, 0, 0};
      std::memcpy(ring_->bytes + written_ % bytes_, &filler, sizeof filler);
      written_ += skip;
    }
    char* address = ring_->bytes + written_ % bytes_;
    std::memcpy(address, &record, sizeof record);
    if (payload) std::memcpy(address + sizeof record, payload, record.bytes);
    written_ += need;
    return true;
  }

  void Publish() {
    if (published_ == written_) return;
    ring_->written.store(written_, std::memory_order_release);
    published_ = written_;
  }

 private:
  ShmRing* ring_;
  uint64_t bytes_;
  uint64_t written_ = 0;
  uint64_t published_ = 0;
  uint64_t read_ = 0;  // as last seen
};

class ShmReader {
 public:
  ShmReader(ShmRing* ring, size_t bytes) : ring_(ring), bytes_(bytes) {}

  // The oldest record, followed by its payload; null if the ring is empty. Valid until Pop().
  const ShmRecord* Front() {
    for (;;) {
      if (read_ == written_) {
        written_ = ring_->written.load(std::memory_order_acquire);
        if (read_ == written_) return nullptr;
      }
      const auto* record = reinterpret_cast<const ShmRecord*>(ring_->bytes + read_ % bytes_);
      if (record->kind != ShmKind::kSkip) return record;
      read_ += record->bytes;
    }
  }

  void Pop() {
    read_ += ShmRecordBytes(*Front());
    ring_->read.store(read_, std::memory_order_release);
  }

 private:
  ShmRing* ring_;
  uint64_t bytes_;
  uint64_t read_ = 0;
  uint64_t written_ = 0;  // as last seen
};

}  // namespace tfddl
