#include "transport/shm.h"

#include <iterator>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "transport/copy.h"
#include "transport/shm_peer.h"
#include "transport/shm_segment.h"

namespace tfddl {
namespace {

class ShmTransport : public Transport {
 public:
  ShmTransport(int rank, std::vector<ShmSegment> segments, const ShmGeometry& geometry, ShmArenas arenas)
      : rank_(rank),
        segments_(std::move(segments)),
        geometry_(geometry),
        arenas_(std::move(arenas)),
        peers_(segments_.size()) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      const ShmChannel out(segments_[Index(rank_)].get(), geometry, ChannelIndex(rank_, peer));
      const ShmChannel in(segments_[Index(peer)].get(), geometry, ChannelIndex(peer, rank_));
      peers_[Index(peer)] = std::make_unique<ShmPeer>(out, in, geometry.ring_bytes);
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(segments_.size()); }
  int tags() const override { return std::numeric_limits<int>::max(); }
  size_t piece_bytes() const override { return geometry_.slot_bytes; }

  Handle Send(int peer, int tag, const void* data, size_t bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    ShmPeer* to = peers_.at(Index(peer)).get();
    if (bytes <= kShmShortBytes) {
      const ShmRecord record{ShmKind::kMessage, tag, bytes, 0, 0};
      if (to->waiting.empty() && to->writer.Write(record, data)) {
        to->writer.Publish();
        CountCompleted();
        return kNothing;
      }
      const Handle handle = Add({peer, tag, nullptr, data, bytes, nullptr});
      to->waiting.push_back({record, handle});
      return handle;
    }
    const auto ready = TakeFirst(&to->ready, tag);
    if (!ready && SendEager(to, tag, data, bytes)) {
      CountCompleted();
      return kNothing;
    }
    const Handle handle = Add({peer, tag, nullptr, data, bytes, nullptr});
    Write(to, {ShmKind::kAnnounce, tag, bytes, 0, 0});
    if (ready) {
      Fill(to, handle, *ready);
    } else {
      to->sends.emplace(tag, handle);
    }
    return handle;
  }

  Handle Receive(int peer, int tag, void* data, size_t bytes) override {
    return ReceiveView(peer, tag, data, bytes, nullptr);
  }

  Handle ReceiveView(int peer, int tag, void* scratch, size_t bytes, const void** data) override {
    std::lock_guard<std::mutex> lock(mutex_);
    ShmPeer* from = peers_.at(Index(peer)).get();
    const Handle handle = Add({peer, tag, static_cast<char*>(scratch), nullptr, bytes, data});
    if (data) *data = scratch;
    if (bytes > kShmShortBytes) Write(from, {ShmKind::kReady, tag, bytes, handle, 0});
    if (auto message = TakeFirst(&from->unexpected, tag)) {
      Accept(from, &transfers_.at(handle), *message, message->payload.data());
    } else {
      from->posted.emplace(tag, handle);
    }
    return handle;
  }

  void Release(int peer, const void* data) override {
    std::lock_guard<std::mutex> lock(mutex_);
    ShmPeer* from = peers_.at(Index(peer)).get();
    const char* address = static_cast<const char*>(data);
    if (address < from->in.data || address >= from->in.Slot(from->in.slots)) return;
    --from->views;
    FreeSlot(from, static_cast<size_t>(address - from->in.data) / from->in.slot_bytes);
  }

  std::shared_ptr<Arena> arena() const override { return arenas_.mine; }
  char* ArenaOf(int peer) const override {
    return arenas_.all.empty() ? nullptr : arenas_.all.at(Index(peer)).get();
  }
  char* Reach(int peer, uint64_t offset, size_t bytes) override {
    char* const arena = ArenaOf(peer);
    std::lock_guard<std::mutex> lock(mutex_);
    size_t* mapped = &peers_.at(Index(peer))->mapped;
    *mapped = MapUpTo(arena, *mapped, offset + bytes);
    return arena + offset;
  }

  bool Test(Handle handle) override {
    if (handle == kNothing) return true;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = transfers_.find(handle);
    if (!it->second.complete) {
      Progress();
      if (!it->second.complete) return false;
    }
    transfers_.erase(it);
    CountCompleted();
    return true;
  }

  void Cancel(Handle handle) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = transfers_.find(handle);
    if (it == transfers_.end()) return;
    const ShmTransfer& transfer = it->second;
    ShmPeer* from = peers_[Index(transfer.peer)].get();
    EraseFirst(&from->posted, transfer.tag, [&](Handle posted) { return posted == handle; });
    if (transfer.bytes > kShmShortBytes) Write(from, {ShmKind::kWithdraw, transfer.tag, 0, handle, 0});
    transfers_.erase(it);
  }

  bool unsent() override {
    std::lock_guard<std::mutex> lock(mutex_);
    bool unsent = false;
    for (const auto& peer : peers_) {
      if (!peer) continue;
      WriteWaiting(peer.get());
      unsent |= !peer->waiting.empty();
    }
    return unsent;
  }

 private:
  static size_t Index(int rank) { return static_cast<size_t>(rank); }
  // The index of the channel from `owner` to `peer` in the owner's segment.
  static size_t ChannelIndex(int owner, int peer) { return Index(peer < owner ? peer : peer - 1); }

  Handle Add(const ShmTransfer& transfer) {
    transfers_.emplace(++last_handle_, transfer);
    return last_handle_;
  }

  // A kReady waits for the next Publish(), because each Publish() makes the peer read our ring.
  void Write(ShmPeer* peer, const ShmRecord& record) {
    if (!peer->waiting.empty() || !peer->writer.Write(record, nullptr)) {
      peer->waiting.push_back({record, kNothing});
    } else if (record.kind != ShmKind::kReady) {
      peer->writer.Publish();
    }
  }

  void Progress() {
    for (auto& peer : peers_) {
      if (!peer) continue;
      WriteWaiting(peer.get());
      while (const ShmRecord* record = peer->reader.Front()) {
        const ShmRecord copy = *record;
        Take(peer.get(), copy, reinterpret_cast<const char*>(record + 1));
        peer->reader.Pop();
      }
      FillSlots(peer.get());
    }
  }

  void WriteWaiting(ShmPeer* peer) {
    while (!peer->waiting.empty()) {
      const ShmWaiting& next = peer->waiting.front();
      ShmTransfer* transfer = next.handle == kNothing ? nullptr : &transfers_.at(next.handle);
      if (!peer->writer.Write(next.record, transfer ? transfer->from : nullptr)) break;
      if (transfer) transfer->complete = true;
      peer->waiting.pop_front();
    }
    peer->writer.Publish();
  }

  void Take(ShmPeer* peer, const ShmRecord& record, const char* payload) {
    switch (record.kind) {
      case ShmKind::kMessage:
      case ShmKind::kEager:
      case ShmKind::kAnnounce:
        return TakeMessage(peer, record, payload);
      case ShmKind::kReady:
        return TakeReady(peer, record);
      case ShmKind::kWithdraw:
        if (!EraseFirst(&peer->ready, record.tag,
                        [&](const ShmReady& r) { return r.handle == record.handle; })) {
          // The kReady has matched an eager message. Another receive will take that message.
          peer->sends.emplace_hint(peer->sends.lower_bound(record.tag), record.tag, kNothing);
        }
        return;
      case ShmKind::kData:
        return TakeData(peer, record);
      case ShmKind::kSkip:
        return;
    }
  }

  void TakeMessage(ShmPeer* peer, const ShmRecord& record, const char* payload) {
    ShmMessage message{record.bytes, {}, std::nullopt};
    if (record.kind == ShmKind::kEager) message.slot = record.slot;
    if (auto handle = TakeFirst(&peer->posted, record.tag)) {
      return Accept(peer, &transfers_.at(*handle), message, payload);
    }
    if (record.kind == ShmKind::kMessage) message.payload.assign(payload, payload + record.bytes);
    peer->unexpected.emplace(record.tag, std::move(message));
  }

  // Matches a message with a receive. The bytes of an announced message arrive later, as kData.
  static void Accept(ShmPeer* peer, ShmTransfer* receive, const ShmMessage& message, const char* payload) {
    CheckLength(message.bytes, receive->bytes);
    if (message.slot) return Deliver(peer, receive, *message.slot, message.bytes);
    if (message.bytes > kShmShortBytes) return;
    if (message.bytes > 0) std::memcpy(receive->to, payload, message.bytes);
    receive->complete = true;
  }

  void TakeReady(ShmPeer* peer, const ShmRecord& record) {
    if (auto send = TakeFirst(&peer->sends, record.tag)) {
      if (*send != kNothing) Fill(peer, *send, {record.handle, record.bytes});
      return;
    }
    peer->ready.emplace(record.tag, ShmReady{record.handle, record.bytes});
  }

  // False if the message has to wait for its receiver.
  bool SendEager(ShmPeer* peer, int tag, const void* data, size_t bytes) {
    if (bytes > geometry_.slot_bytes || !peer->MaySendEagerly()) return false;
    const auto slot = peer->FindSlot();
    if (!slot) return false;
    FillSlot(peer, *slot, data, bytes, true);
    Write(peer, {ShmKind::kEager, tag, bytes, 0, *slot});
    peer->sends.emplace(tag, kNothing);
    return true;
  }

  void Fill(ShmPeer* peer, Handle send, const ShmReady& ready) {
    CheckLength(transfers_.at(send).bytes, ready.bytes);
    peer->filling.push_back({send, ready.handle});
    FillSlots(peer);
  }

  void FillSlots(ShmPeer* peer) {
    while (!peer->filling.empty()) {
      const auto slot = peer->FindSlot();
      if (!slot) return;
      const ShmFilling& next = peer->filling.front();
      ShmTransfer* send = &transfers_.at(next.send);
      const size_t length = std::min(geometry_.slot_bytes, send->bytes - send->moved);
      FillSlot(peer, *slot, static_cast<const char*>(send->from) + send->moved, length, false);
      Write(peer, {ShmKind::kData, send->tag, length, next.receive, *slot});
      send->moved += length;
      if (send->moved < send->bytes) continue;
      send->complete = true;
      peer->filling.pop_front();
    }
  }

  static void FillSlot(ShmPeer* peer, size_t slot, const void* data, size_t bytes, bool eager) {
    StreamCopy(peer->out.Slot(slot), data, bytes);
    peer->slots[slot] = {peer->slots[slot].filled + 1, true, eager};
  }

  void TakeData(ShmPeer* peer, const ShmRecord& record) {
    const auto it = transfers_.find(record.handle);
    if (it == transfers_.end()) return FreeSlot(peer, record.slot);  // cancelled meanwhile
    Deliver(peer, &it->second, record.slot, record.bytes);
  }

  static void Deliver(ShmPeer* peer, ShmTransfer* receive, size_t slot, size_t bytes) {
    const char* data = peer->in.Slot(slot);
    // Views may hold half of the slots. With all slots in views, the bytes that a reader waits for could not
    // arrive.
    if (receive->view && bytes == receive->bytes && peer->views < peer->in.slots / 2) {
      *receive->view = data;
      ++peer->views;
      receive->complete = true;
      return;
    }
    std::memcpy(receive->to + receive->moved, data, bytes);
    FreeSlot(peer, slot);
    receive->moved += bytes;
    receive->complete = receive->moved == receive->bytes;
  }

  static void FreeSlot(ShmPeer* peer, size_t slot) {
    std::atomic<uint64_t>* freed = &peer->in.freed[slot];
    freed->store(freed->load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  static void CheckLength(size_t sent, size_t expected) {
    if (sent == expected) return;
    throw std::runtime_error("tfddl: internal error: a message of " + std::to_string(sent) +
                             " bytes met a receive of " + std::to_string(expected));
  }

  const int rank_;
  const std::vector<ShmSegment> segments_;
  const ShmGeometry geometry_;
  const ShmArenas arenas_;
  std::mutex mutex_;  // everything below
  std::vector<std::unique_ptr<ShmPeer>> peers_;
  std::unordered_map<Handle, ShmTransfer> transfers_;
  Handle last_handle_ = kNothing;
};

}  // namespace

ShmGeometry ShmGeometry::For(int size) {
  constexpr size_t kKiB = 1024;
  // From large to small. A fourth slot keeps eager messages and views possible (shm_peer.h).
  constexpr ShmGeometry kLayouts[] = {
      {64 * kKiB, 64 * kKiB, 16},  // up to 31 members
      {64 * kKiB, 64 * kKiB, 8},   // up to 43
      {32 * kKiB, 32 * kKiB, 8},   // up to 60
      {16 * kKiB, 16 * kKiB, 8},   // up to 84
      {16 * kKiB, 8 * kKiB, 8},    // up to 112
      {16 * kKiB, 8 * kKiB, 4},
  };
  for (const ShmGeometry& layout : kLayouts) {
    if (ShmSegmentBytes(layout, size) * static_cast<size_t>(size) <= kShmHostBytes) return layout;
  }
  return *std::prev(std::end(kLayouts));
}

size_t ShmSegmentBytes(const ShmGeometry& geometry, int size) {
  return ShmChannel::Bytes(geometry) * static_cast<size_t>(size - 1);
}

std::unique_ptr<Transport> MakeShmTransport(int rank, std::vector<ShmSegment> segments,
                                            const ShmGeometry& geometry, ShmArenas arenas) {
  return std::make_unique<ShmTransport>(rank, std::move(segments), geometry, std::move(arenas));
}

}  // namespace tfddl
