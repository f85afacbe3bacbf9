#include "transport/shm.h"

#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "transport/copy.h"
#include "transport/shm_peer.h"

namespace tfddl {
namespace {

class ShmTransport : public Transport {
 public:
  ShmTransport(int rank, std::vector<ShmSegment> segments, const ShmGeometry& geometry)
      : rank_(rank), segments_(std::move(segments)), geometry_(geometry), peers_(segments_.size()) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      const ShmChannel out(segments_[Index(rank_)].get(), geometry, Place(rank_, peer));
      const ShmChannel in(segments_[Index(peer)].get(), geometry, Place(peer, rank_));
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
      if (to->waiting.empty() && to->writer.Write(record, data)) return kNothing;
      const Handle handle = Add({peer, tag, nullptr, data, bytes, nullptr});
      to->waiting.push_back({record, handle});
      return handle;
    }
    const Handle handle = Add({peer, tag, nullptr, data, bytes, nullptr});
    Write(to, {ShmKind::kAnnounce, tag, bytes, 0, 0});
    if (auto ready = TakeFirst(&to->ready, tag)) {
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
      Accept(&transfers_.at(handle), message->bytes, message->payload.data());
    } else {
      from->posted.emplace(tag, handle);
    }
    return handle;
  }

  void Release(int peer, const void* data) override {
    std::lock_guard<std::mutex> lock(mutex_);
    ShmPeer* from = peers_.at(Index(peer)).get();
    const char* place = static_cast<const char*>(data);
    if (place < from->in.data || place >= from->in.Slot(from->in.slots)) return;
    --from->views;
    FreeSlot(from, static_cast<size_t>(place - from->in.data) / from->in.slot_bytes);
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
  // A segment has no channel from its owner to itself.
  static size_t Place(int owner, int peer) { return Index(peer < owner ? peer : peer - 1); }

  Handle Add(const ShmTransfer& transfer) {
    transfers_.emplace(++last_handle_, transfer);
    return last_handle_;
  }

  void Write(ShmPeer* peer, const ShmRecord& record) {
    if (peer->waiting.empty() && peer->writer.Write(record, nullptr)) return;
    peer->waiting.push_back({record, kNothing});
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
      if (!peer->writer.Write(next.record, transfer ? transfer->from : nullptr)) return;
      if (transfer) transfer->complete = true;
      peer->waiting.pop_front();
    }
  }

  void Take(ShmPeer* peer, const ShmRecord& record, const char* payload) {
    switch (record.kind) {
      case ShmKind::kMessage:
      case ShmKind::kAnnounce:
        return TakeMessage(peer, record, payload);
      case ShmKind::kReady:
        if (auto send = TakeFirst(&peer->sends, record.tag))
          return Fill(peer, *send, {record.handle, record.bytes});
        peer->ready.emplace(record.tag, ShmReady{record.handle, record.bytes});
        return;
      case ShmKind::kWithdraw:
        return EraseFirst(&peer->ready, record.tag,
                          [&](const ShmReady& r) { return r.handle == record.handle; });
      case ShmKind::kData:
        return TakeData(peer, record);
      case ShmKind::kSkip:
        return;
    }
  }

  void TakeMessage(ShmPeer* peer, const ShmRecord& record, const char* payload) {
    if (auto handle = TakeFirst(&peer->posted, record.tag)) {
      return Accept(&transfers_.at(*handle), record.bytes, payload);
    }
    const size_t length = record.kind == ShmKind::kMessage ? record.bytes : 0;
    peer->unexpected.emplace(record.tag, ShmMessage{record.bytes, {payload, payload + length}});
  }

  // A message has met a receive. The bytes of a long one come later, for its handle.
  static void Accept(ShmTransfer* receive, size_t bytes, const char* payload) {
    CheckLength(bytes, receive->bytes);
    if (bytes > kShmShortBytes) return;
    if (bytes > 0) std::memcpy(receive->to, payload, bytes);
    receive->complete = true;
  }

  void Fill(ShmPeer* peer, Handle send, const ShmReady& ready) {
    CheckLength(transfers_.at(send).bytes, ready.bytes);
    peer->filling.push_back({send, ready.handle});
    FillSlots(peer);
  }

  void FillSlots(ShmPeer* peer) {
    while (!peer->filling.empty()) {
      const auto slot = FindSlot(peer);
      if (!slot) return;
      const ShmFilling& next = peer->filling.front();
      ShmTransfer* send = &transfers_.at(next.send);
      const size_t length = std::min(geometry_.slot_bytes, send->bytes - send->moved);
      StreamCopy(peer->out.Slot(*slot), static_cast<const char*>(send->from) + send->moved, length);
      peer->out.states[*slot].busy.store(1, std::memory_order_relaxed);  // the ring publishes it
      Write(peer, {ShmKind::kData, send->tag, length, next.receive, *slot});
      send->moved += length;
      if (send->moved < send->bytes) continue;
      send->complete = true;
      peer->filling.pop_front();
    }
  }

  static std::optional<size_t> FindSlot(ShmPeer* peer) {
    for (size_t i = 0; i < peer->out.slots; ++i) {
      const size_t slot = (peer->next_slot + i) % peer->out.slots;
      if (peer->out.states[slot].busy.load(std::memory_order_acquire)) continue;
      peer->next_slot = slot + 1;
      return slot;
    }
    return std::nullopt;
  }

  void TakeData(ShmPeer* peer, const ShmRecord& record) {
    const auto it = transfers_.find(record.handle);
    if (it == transfers_.end()) return FreeSlot(peer, record.slot);  // cancelled meanwhile
    ShmTransfer* receive = &it->second;
    const char* data = peer->in.Slot(record.slot);
    // Half of the slots never wait for a reader: with all of them in views, what he waits for could not come.
    if (receive->view && record.bytes == receive->bytes && peer->views < peer->in.slots / 2) {
      *receive->view = data;
      ++peer->views;
      receive->complete = true;
      return;
    }
    std::memcpy(receive->to + receive->moved, data, record.bytes);
    FreeSlot(peer, record.slot);
    receive->moved += record.bytes;
    receive->complete = receive->moved == receive->bytes;
  }

  static void FreeSlot(ShmPeer* peer, size_t slot) {
    peer->in.states[slot].busy.store(0, std::memory_order_release);
  }

  static void CheckLength(size_t sent, size_t expected) {
    if (sent == expected) return;
    throw std::runtime_error("tfddl: a message of " + std::to_string(sent) + " bytes met a receive of " +
                             std::to_string(expected));
  }

  const int rank_;
  const std::vector<ShmSegment> segments_;
  const ShmGeometry geometry_;
  std::mutex mutex_;  // everything below
  std::vector<std::unique_ptr<ShmPeer>> peers_;
  std::unordered_map<Handle, ShmTransfer> transfers_;
  Handle last_handle_ = kNothing;
};

}  // namespace

size_t ShmSegmentBytes(const ShmGeometry& geometry, int size) {
  return ShmChannel::Bytes(geometry) * static_cast<size_t>(size - 1);
}

std::unique_ptr<Transport> MakeShmTransport(int rank, std::vector<ShmSegment> segments,
                                            const ShmGeometry& geometry) {
  return std::make_unique<ShmTransport>(rank, std::move(segments), geometry);
}

}  // namespace tfddl
