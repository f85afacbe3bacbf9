// The timeline of requests on a GPU, with NCCL's double.
#include "tests/engine/timeline_file.h"
#include "tests/gpu/gpu_job.h"

namespace tfddl {
namespace {

// The timeline shows the time on the stream as a separate phase, for every kind of collective.
void TestPhases(int size) {
  const auto ranks = static_cast<size_t>(size);
  std::vector<TimelineFile> files(ranks);
  Job::timelines.clear();
  for (int rank = 0; rank < size; ++rank) {
    Job::timelines.push_back(Started(files[static_cast<size_t>(rank)].descriptor, rank, size));
  }
  GpuJob job(size);
  std::vector<std::unique_ptr<GpuTensor<float>>> values;
  Outcomes outcomes(3 * ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    job.Use(rank);
    for (size_t i = 0; i < 3; ++i) {
      values.push_back(std::make_unique<GpuTensor<float>>(Bring<float>(rank, 1000)));
      Request request = GpuRequest("x" + std::to_string(i), Kind::kAllreduce, DataType::kFloat32,
                                   outcomes.At(3 * rank + i));
      request.buffers = {{values.back()->get(), values.back()->get(), 1000}};
      job.Submit(rank, std::move(request));
    }
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  values.clear();
  job.End();
  for (const auto& timeline : Job::timelines) CHECK(timeline->Stop().empty());
  Job::timelines.clear();
  for (const TimelineFile& file : files) {
    const auto seen = file.Requests();
    CHECK(seen.size() == 3);
    for (const Seen& one : seen) {
      CHECK(one.ended && one.error.empty() && After(one.arguments, "device") == "GPU");
      CHECK((one.phases == std::vector<std::string>{"wait for peers", "queue", "allreduce"}));
    }
  }
}

}  // namespace
}  // namespace tfddl

int main() {
  for (int size : {1, 2, 3}) tfddl::TestPhases(size);
  std::puts("nccl_timeline: ok");
  return 0;
}
