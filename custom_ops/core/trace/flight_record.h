// The flight record of this process: its last operations and the stacks of its Python threads, written to a
// file at a stall, by a call, or on a signal.
//
// A thread of its own writes it, which needs no lock of Python: so it can be had of a process that keeps the
// GIL, and a file system that does not answer holds up nobody else.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tfddl {

// Two ways to the stacks of Python's threads, both by its faulthandler. A thread of Python writes them to
// `file` after a number at the eventfd `ask`, and answers at the eventfd `done`; it holds the GIL meanwhile.
// Where it does not get the GIL, the signal makes the thread that receives it write them to `signal_file`:
// only then, since a thread that goes on running Python meanwhile could make that reading crash.
struct PythonStacks {
  int ask = -1;  // -1: the record has no stacks
  int done = -1;
  int file = -1;
  int signal = 0;
  int signal_file = -1;
};

struct FlightRecordOptions {
  std::string directory;
  bool at_every_failure = false;  // else at stalls only
  PythonStacks stacks;
};

class FlightRecord {
 public:
  // That of this process; never destroyed.
  static FlightRecord& OfProcess();

  // Starts the writer's thread. Before this all other calls do nothing. A later call changes the options.
  void Start(FlightRecordOptions options);

  // Makes this signal write a record. Returns false if the program handles the signal already. `name`:
  // "SIGUSR1".
  bool WriteOn(int signal, const std::string& name);

  // This rank of a job; `job` is a text that no other job has. `contents` returns fields for the JSON object.
  void SetJob(std::string job, int rank, int size);
  void SetContents(std::function<std::string()> contents);

  // Waits for the writer, 5 s at most. `directory`: empty for that of the options. Returns the path of the
  // file; empty with *error, and with no *error before Start().
  std::string Write(const std::string& reason, const std::string& directory, std::string* error);

  // For a job that stalls; the first record of the end of a job stays. Returns a sentence for the error, how
  // to read the records: it begins with a space. It is empty if this rank has no record; a problem is
  // printed. A call during another one waits for it.
  std::string WriteStall(const std::string& reason);
  // For a job that fails otherwise. Returns whether the user wants records of that too.
  bool WriteFailure(const std::string& reason);

 private:
  struct Order;

  void Loop();
  void Run(Order* order);
  std::string Json(const std::string& reason);
  std::string Stacks();

  std::mutex stall_mutex_;  // held by WriteStall(), and taken before mutex_
  std::mutex mutex_;
  FlightRecordOptions options_;
  std::string job_;
  int rank_ = 0;
  int size_ = 1;
  std::function<std::string()> contents_;
  std::vector<std::shared_ptr<Order>> orders_;
  bool end_written_ = false;  // WriteStall() or WriteFailure() has been called for this job
  int wake_ = -1;             // an eventfd
  std::string signal_name_;
};

}  // namespace tfddl
