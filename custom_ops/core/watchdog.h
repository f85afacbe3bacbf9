// A thread per process that keeps ranks informed about each other outside of the votes: who waits for
// whom, who leaves, what failed. It has a transport of its own and never touches data.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/engine.h"
#include "transport/transport.h"

namespace tfddl {

struct WatchdogOptions {
  double warning_s = 60;  // a request that waits longer is reported, with the ranks that miss it
  double limit_s = 1800;  // one that waits longer ends the job
  // Counts the jobs of this process, alike on all ranks. MPI may give a new communicator the number of
  // one that was freed, and deliver there what a peer sent late to the old one.
  int64_t generation = 0;
};

class Watchdog {
 public:
  Watchdog(std::unique_ptr<Transport> transport, Engine* engine, WatchdogOptions options);
  ~Watchdog();  // Stop(), then takes back the receives

  // Ends the thread, so that MPI may be finalized. What peers send afterwards is not read.
  void Stop();

  // Tells all peers that this rank wants to leave, so that idle engines answer its vote.
  void AnnounceShutdown();

 private:
  enum class Type : int64_t { kFailure, kShutdown, kQuestion, kAnswer };
  struct Letter {
    std::string bytes;
    Transport::Handle handle;
  };
  struct Inquiry {
    std::string key;
    int64_t begun_us;
    bool fatal;
    std::vector<std::string> answers;  // by rank
  };

  void Loop();
  void Tick();
  bool Delivered();
  void Listen(int peer);
  void Send(int peer, Type type, const std::string& text);
  void SendToAll(Type type, const std::string& text);
  void Receive(int peer, const std::string& bytes);
  std::string Answer(const std::string& key) const;
  void LookForStalls();
  void ConcludeInquiry();

  std::unique_ptr<Transport> transport_;
  Engine* engine_;
  WatchdogOptions options_;
  std::vector<Letter> inboxes_;  // by rank
  std::deque<Letter> outgoing_;
  std::unique_ptr<Inquiry> inquiry_;
  std::string warned_key_;
  int64_t warned_submission_ = 0;
  bool failure_told_ = false;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool announce_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tfddl
