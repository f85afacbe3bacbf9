// Measures what the flight recorder costs an operation: the three calls that the engine makes for each.
//
//     cmake --build build/core --target recorder_benchmark && build/core/recorder_benchmark
#include "base/recorder.h"

#include <algorithm>
#include <cstdio>
#include <vector>

namespace tfddl {
namespace {

constexpr int kRounds = 9;
constexpr int kOperations = 100000;

double NanosecondsPerOperation(Recorder* recorder, const Request& request) {
  const int64_t begun_us = NowMicros();
  for (int i = 0; i < kOperations; ++i) {
    const uint64_t number = recorder->Submitted(request);
    recorder->Started(number, number);
    recorder->Ended(number, true);
  }
  return static_cast<double>(NowMicros() - begun_us) * 1e3 / kOperations;
}

void Measure(size_t tensors) {
  Request request;
  request.name = "DistributedGradientTape_Allreduce/sequential/dense";
  request.signature = "collective=allreduce|op=Average|prescale_factor=1.0|postscale_factor=1.0";
  for (size_t i = 0; i < tensors; ++i) request.signature += "|tensor=float32 [1024, 1024]";
  request.buffers.resize(tensors);
  Recorder recorder;
  std::vector<double> rounds;
  for (int i = 0; i < kRounds; ++i) rounds.push_back(NanosecondsPerOperation(&recorder, request));
  std::sort(rounds.begin(), rounds.end());
  const Operation last = recorder.Operations().back();
  const bool right = last.number == kRounds * kOperations && last.ended_us && last.name == request.name;
  std::printf("%4zu tensors: %4.0f ns an operation (median of %d rounds, %.0f to %.0f)%s\n", tensors,
              rounds[kRounds / 2], kRounds, rounds.front(), rounds.back(), right ? "" : ", WRONG RECORD");
}

}  // namespace
}  // namespace tfddl

int main() {
  for (const size_t tensors : {1, 10, 1000}) tfddl::Measure(tensors);
}
