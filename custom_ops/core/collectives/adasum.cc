#include "core/collectives/adasum.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <list>
#include <utility>
#include <vector>

#include "core/arithmetic/adasum_pair.h"
#include "core/collectives/pipeline.h"

namespace tfddl {
namespace {

// Recursive vector halving among the first P ranks, with partners rank^1, rank^2, rank^4... In each step, a
// rank keeps one half of its block and gets the same half of its partner's vector. The ranks of both subtrees
// add up their parts of the dot products and combine the two vectors. After the last step each rank has one
// of P slices, and recursive doubling puts the slices together.
//
// Each vector is cut into P slices by itself, and dot products are added slice by slice along a tree: a
// vector's result depends neither on the other tensors of its group nor on the transport.
class Adasum : public Collective {
 public:
  Adasum(Lane lane, ScratchPool* pool, const Request& request)
      : lane_(lane),
        pool_(pool),
        rank_(lane.transport->rank()),
        dtype_(request.dtype),
        element_(SizeOf(request.dtype)),
        buffers_(request.buffers),
        sums_(buffers_.size()),
        theirs_(buffers_.size()) {
    const int size = lane.transport->size();
    while (2 * slices_ <= size) slices_ *= 2;
    Pack();
    block_ = {0, slices_};
    if (rank_ >= slices_) {
      AddExtraSteps(rank_ - slices_);
    } else {
      AddSteps(rank_ + slices_ < size ? rank_ + slices_ : kNobody);
    }
  }
  ~Adasum() override {
    pool_->Give(std::move(packed_));
    pool_->Give(std::move(received_));
  }

  bool Poll() override {
    for (; next_ < steps_.size(); ++next_, started_ = false) {
      if (!std::exchange(started_, true)) steps_[next_].start();
      bool complete = true;
      for (Pipeline& transfer : transfers_) {
        transfer.Poll();
        complete &= transfer.complete();
      }
      if (!complete) return false;
      transfers_.clear();
      if (steps_[next_].finish) steps_[next_].finish();
    }
    if (buffers_.size() > 1) Copy(false);
    return true;
  }

 private:
  static constexpr int kNobody = -1;
  struct Step {
    std::function<void()> start;   // starts the transfers
    std::function<void()> finish;  // runs after the transfers; may be empty
  };
  struct Block {
    int first;  // slice
    int slices;
    Block Half(bool upper) const { return {upper ? first + slices / 2 : first, slices / 2}; }
  };

  // The number of elements of a tensor before slice `slice`.
  int64_t CountBefore(const Buffer& buffer, int slice) const { return buffer.count * slice / slices_; }

  // Packs a group slice by slice, and in each slice tensor by tensor. A single tensor has this order already.
  void Pack() {
    begins_.assign(1, 0);
    for (int slice = 0; slice < slices_; ++slice) {
      size_t bytes = 0;
      for (const Buffer& buffer : buffers_) {
        bytes += static_cast<size_t>(CountBefore(buffer, slice + 1) - CountBefore(buffer, slice)) * element_;
      }
      begins_.push_back(begins_.back() + bytes);
    }
    if (buffers_.size() > 1) {
      packed_ = pool_->Take(begins_.back());
      data_ = packed_.data();
      Copy(true);
      return;
    }
    data_ = static_cast<char*>(buffers_[0].out);
    if (begins_.back() > 0 && buffers_[0].in != data_) std::memcpy(data_, buffers_[0].in, begins_.back());
  }

  void Copy(bool in) {
    ForEachPart({0, slices_}, [&](size_t member, int slice, size_t offset, int64_t count) {
      const Buffer& buffer = buffers_[member];
      const size_t begin = static_cast<size_t>(CountBefore(buffer, slice)) * element_;
      const size_t bytes = static_cast<size_t>(count) * element_;
      if (in) {
        std::memcpy(data_ + offset, static_cast<const char*>(buffer.in) + begin, bytes);
      } else {
        std::memcpy(static_cast<char*>(buffer.out) + begin, data_ + offset, bytes);
      }
    });
  }

  // Calls function(member, slice, offset in data_, elements) for each part that has elements.
  template <typename F>
  void ForEachPart(Block block, F function) const {
    for (int slice = block.first; slice < block.first + block.slices; ++slice) {
      size_t offset = begins_[static_cast<size_t>(slice)];
      for (size_t member = 0; member < buffers_.size(); ++member) {
        const int64_t count = CountBefore(buffers_[member], slice + 1) - CountBefore(buffers_[member], slice);
        if (count > 0) function(member, slice, offset, count);
        offset += static_cast<size_t>(count) * element_;
      }
    }
  }

  char* At(Block block) const { return data_ + begins_[static_cast<size_t>(block.first)]; }
  size_t Bytes(Block block) const {
    return begins_[static_cast<size_t>(block.first + block.slices)] -
           begins_[static_cast<size_t>(block.first)];
  }

  void Send(int peer, void* data, size_t bytes) {
    transfers_.emplace_back(lane_.transport, Pipeline::Direction::kSend, peer, lane_.tag,
                            static_cast<char*>(data), bytes);
  }
  void Receive(int peer, void* data, size_t bytes) {
    transfers_.emplace_back(lane_.transport, Pipeline::Direction::kReceive, peer, lane_.tag,
                            static_cast<char*>(data), bytes);
  }

  // A rank outside of the first P: its proxy, rank - P, combines its vector.
  void AddExtraSteps(int proxy) {
    steps_.push_back({[this, proxy] { Send(proxy, data_, Bytes(block_)); }, nullptr});
    steps_.push_back({[this, proxy] { Receive(proxy, data_, Bytes(block_)); }, nullptr});
  }

  // `extra`: the rank outside of the first P whose proxy this rank is, or kNobody.
  void AddSteps(int extra) {
    if (extra != kNobody) {
      received_ = pool_->Take(begins_.back());
      steps_.push_back({[this, extra] { Receive(extra, received_.data(), Bytes(block_)); },
                        [this] {
                          FindDots(true);
                          CombineBlock(true);
                        }});
    } else if (slices_ > 1) {
      received_ = pool_->Take(Bytes(block_.Half((rank_ & 1) != 0)));
    }
    int bit = 1;
    for (; bit < slices_; bit *= 2) AddHalving(bit);
    while ((bit /= 2) > 0) AddDoubling(bit);
    if (extra != kNobody) {
      steps_.push_back({[this, extra] { Send(extra, data_, begins_.back()); }, nullptr});
    }
  }

  void AddHalving(int bit) {
    const int peer = rank_ ^ bit;
    const bool upper = (rank_ & bit) != 0;
    steps_.push_back({[this, peer, upper] {
                        const Block others = block_.Half(!upper);
                        block_ = block_.Half(upper);
                        Send(peer, At(others), Bytes(others));
                        Receive(peer, received_.data(), Bytes(block_));
                      },
                      [this, upper] { FindDots(!upper); }});
    // Adds the nearest slices first, so that all ranks add along the same tree. IEEE additions commute.
    for (int other = bit; other > 0; other /= 2) {
      const size_t bytes = sums_.size() * sizeof(AdasumDots);
      steps_.push_back({[this, other, bytes] {
                          Send(rank_ ^ other, sums_.data(), bytes);
                          Receive(rank_ ^ other, theirs_.data(), bytes);
                        },
                        [this, other, upper] {
                          for (size_t i = 0; i < sums_.size(); ++i) Add(theirs_[i], &sums_[i]);
                          if (other == 1) CombineBlock(!upper);
                        }});
    }
  }

  void AddDoubling(int bit) {
    const int peer = rank_ ^ bit;
    const bool upper = (rank_ & bit) != 0;
    steps_.push_back({[this, peer, upper] {
                        const Block theirs = {
                            upper ? block_.first - block_.slices : block_.first + block_.slices,
                            block_.slices};
                        Send(peer, At(block_), Bytes(block_));
                        Receive(peer, At(theirs), Bytes(theirs));
                        block_ = {std::min(block_.first, theirs.first), 2 * block_.slices};
                      },
                      nullptr});
  }

  static void Add(const AdasumDots& from, AdasumDots* to) {
    to->aa += from.aa;
    to->ab += from.ab;
    to->bb += from.bb;
  }

  // Sets sums_[member] to the dot products of this rank's blocks of both vectors. `first`: this rank's vector
  // is `a`.
  void FindDots(bool first) {
    const auto slices = static_cast<size_t>(block_.slices);
    std::vector<AdasumDots> dots(slices * sums_.size());  // slice by slice
    ForEachPart(block_, [&](size_t member, int slice, size_t offset, int64_t count) {
      const auto [a, b] = Sides(first, offset);
      dots[static_cast<size_t>(slice - block_.first) * sums_.size() + member] =
          AdasumDotsOf(dtype_, a, b, count);
    });
    for (size_t step = 1; step < slices; step *= 2) {
      for (size_t slice = 0; slice < slices; slice += 2 * step) {
        for (size_t i = 0; i < sums_.size(); ++i) {
          Add(dots[(slice + step) * sums_.size() + i], &dots[slice * sums_.size() + i]);
        }
      }
    }
    std::copy_n(dots.begin(), sums_.size(), sums_.begin());
  }

  void CombineBlock(bool first) {
    ForEachPart(block_, [&](size_t member, int, size_t offset, int64_t count) {
      const auto [a, b] = Sides(first, offset);
      AdasumPair(dtype_, sums_[member], a, b, data_ + offset, count);
    });
  }

  std::pair<const char*, const char*> Sides(bool first, size_t offset) const {
    const char* mine = data_ + offset;
    const char* theirs = received_.data() + (mine - At(block_));
    return first ? std::make_pair(mine, theirs) : std::make_pair(theirs, mine);
  }

  Lane lane_;
  ScratchPool* pool_;
  int rank_;
  DataType dtype_;
  size_t element_;
  std::vector<Buffer> buffers_;
  int slices_ = 1;              // P, the largest power of two not above the number of ranks
  std::vector<size_t> begins_;  // offsets of the slices in data_
  std::vector<char> packed_;    // of a group
  char* data_ = nullptr;        // packed_, or the output of a single tensor
  std::vector<char> received_;  // the block of the partner's vector
  Block block_{};               // the slices that this rank holds
  std::vector<AdasumDots> sums_;
  std::vector<AdasumDots> theirs_;
  std::vector<Step> steps_;
  size_t next_ = 0;
  bool started_ = false;
  std::list<Pipeline> transfers_;  // of the current step
};

}  // namespace

std::unique_ptr<Collective> MakeAdasum(Lane lane, ScratchPool* pool, const Request& request) {
  return std::make_unique<Adasum>(lane, pool, request);
}

}  // namespace tfddl
