// Engines on several hosts. Each engine is a thread; shared memory connects the ranks of a host, the
// in-memory transport connects the hosts.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "core/agreement/voter.h"
#include "tests/collectives/shared_job.h"
#include "tests/sanitized.h"
#include "transport/host.h"

namespace tfddl {

// Counts the bytes that a member sends to other hosts, and the messages of collectives among them.
class CountingTransport : public Transport {
 public:
  CountingTransport(std::unique_ptr<Transport> inner, std::atomic<size_t>* sent,
                    std::atomic<size_t>* messages)
      : inner_(std::move(inner)), sent_(sent), messages_(messages) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int tags() const override { return inner_->tags(); }
  Handle Send(int peer, int tag, const void* data, size_t bytes) override {
    *sent_ += bytes;
    if (tag >= Voter::kTags) ++*messages_;
    return inner_->Send(peer, tag, data, bytes);
  }
  Handle Receive(int peer, int tag, void* data, size_t bytes) override {
    return inner_->Receive(peer, tag, data, bytes);
  }
  bool Test(Handle handle) override {
    if (!inner_->Test(handle)) return false;
    if (handle != kNothing) CountCompleted();
    return true;
  }
  void Cancel(Handle handle) override { inner_->Cancel(handle); }

 private:
  std::unique_ptr<Transport> inner_;
  std::atomic<size_t>* sent_;
  std::atomic<size_t>* messages_;
};

// One engine for each rank. Ranks with equal host numbers share a host.
class Cluster {
 public:
  Cluster(const std::vector<int>& hosts, bool hierarchical)
      : hosts_(hosts),
        network_(static_cast<int>(hosts.size()), 3),
        sent_(hosts.size()),
        messages_(hosts.size()) {
    const auto size = hosts.size();
    for (size_t host = 0; host < size; ++host) {
      const auto ranks = std::count(hosts.begin(), hosts.end(), static_cast<int>(host));
      worlds_.emplace_back(static_cast<int>(ranks), SmallGeometry(), kArena);
    }
    for (size_t rank = 0; rank < size; ++rank) {
      std::vector<int> local(size, -1);
      int locals = 0;
      for (size_t peer = 0; peer < size; ++peer) {
        if (hosts[peer] == hosts[rank]) local[peer] = locals++;
      }
      std::unique_ptr<Transport> transport = std::make_unique<CountingTransport>(
          network_.Join(static_cast<int>(rank)), &sent_[rank], &messages_[rank]);
      if (locals > 1) {
        auto near = worlds_[static_cast<size_t>(hosts[rank])].Join(local[rank]);
        transport = MakeHostTransport(std::move(near), std::move(transport), local);
      }
      if (hierarchical) transport->set_hosts(hosts);
      engines.push_back(std::make_shared<Engine>(std::move(transport)));
    }
  }

  // Every rank submits the result of `request(rank)`. Returns the status of each rank.
  template <typename Make>
  void Run(Make request) {
    Outcomes outcomes(engines.size());
    for (size_t rank = 0; rank < engines.size(); ++rank) {
      Request made = request(rank);
      made.done = outcomes.At(rank);
      engines[rank]->Submit(std::move(made));
    }
    for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  }

  void End() {
    std::vector<std::thread> threads;
    for (auto& engine : engines) threads.emplace_back([&] { CHECK(engine->Shutdown(60)); });
    for (auto& thread : threads) thread.join();
  }

  // The bytes that the ranks of a host have sent to other hosts.
  size_t SentBy(int host) const {
    size_t bytes = 0;
    for (size_t rank = 0; rank < hosts_.size(); ++rank)
      bytes += hosts_[rank] == host ? sent_[rank].load() : 0;
    return bytes;
  }
  // The bytes that all ranks have sent to other hosts.
  size_t Sent() const { return std::accumulate(sent_.begin(), sent_.end(), size_t{0}); }

  // The messages of collectives that all ranks have sent to other hosts.
  size_t Messages() const { return std::accumulate(messages_.begin(), messages_.end(), size_t{0}); }

  // The most messages of collectives that a rank has sent to other hosts.
  size_t MostMessages() const { return *std::max_element(messages_.begin(), messages_.end()); }

  std::vector<std::shared_ptr<Engine>> engines;

 private:
  std::vector<int> hosts_;
  std::vector<ShmWorld> worlds_;
  MemoryWorld network_;
  std::vector<std::atomic<size_t>> sent_;      // by each rank
  std::vector<std::atomic<size_t>> messages_;  // by each rank
};

// Hosts by rank.
inline std::vector<std::vector<int>> Layouts() {
  std::vector<std::vector<int>> layouts = {{0, 0, 1}, {0, 0, 1, 1}, {1, 0, 0, 0, 2, 0, 1}};
  if (!kSanitized) layouts.insert(layouts.end(), {{0, 1, 0, 1}, {0, 0, 0, 1, 1, 1, 2, 2, 2}});
  return layouts;
}

}  // namespace tfddl
