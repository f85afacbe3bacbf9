// The libraries for GPUs may be found, missing, broken or too old. Each error is one sentence.
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/double/control.h"
#include "tests/gpu/gpu_job.h"

namespace tfddl {
namespace {

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string WhyNot(const std::string& cuda, const std::string& nccl) {
  std::string error;
  const auto api = GpuApi::Open({cuda, nccl}, &error);
  CHECK((api == nullptr) == !error.empty());
  return error;
}

void TestGood() {
  std::string error;
  const auto api = GpuApi::Open(Doubles(), &error);
  CHECK(api && error.empty());
  CHECK(api->nccl_version == 22707 && api->nccl_path == Doubles().nccl);
}

void TestMissing() {
  const std::string no_cuda = WhyNot("/nowhere/libcuda.so.1", Doubles().nccl);
  CHECK(Has(no_cuda, "/nowhere/libcuda.so.1") && Has(no_cuda, "TFDDL_CUDA_LIBRARY"));
  const std::string no_nccl = WhyNot(Doubles().cuda, "/nowhere/libnccl.so.2");
  CHECK(Has(no_nccl, "/nowhere/libnccl.so.2") && Has(no_nccl, "TFDDL_NCCL_LIBRARY"));
  CHECK(Has(no_nccl, "nvidia-nccl-cu12"));
}

void TestBroken() {
  const std::string path = "nccl_load_test.so.tmp";
  std::ofstream(path) << "no library";
  CHECK(Has(WhyNot(Doubles().cuda, "./" + path), path));
  std::remove(path.c_str());
  const std::string cuda = TFDDL_FAKE_DIR "/libtfddl_fake_cuda_broken.so";
  CHECK(Has(WhyNot(cuda, Doubles().nccl), cuda + " has no cuStreamWaitEvent"));
  const std::string nccl = TFDDL_FAKE_DIR "/libtfddl_fake_nccl_broken.so";
  CHECK(Has(WhyNot(Doubles().cuda, nccl), nccl + " is NCCL 2.27.7, but has no ncclAllReduce"));
  CHECK(Has(WhyNot(Doubles().cuda, Doubles().cuda), "does not tell its version"));
}

void TestTooOld() {
  tfddl_fake_set("nccl_version", 21712);
  const std::string error = WhyNot(Doubles().cuda, TFDDL_FAKE_DIR "/libtfddl_fake_nccl_old.so");
  CHECK(Has(error, "libtfddl_fake_nccl_old.so is NCCL 2.17.12, and tfddl needs 2.18 or later"));
  tfddl_fake_set("nccl_version", 2804);
  CHECK(Has(WhyNot(Doubles().cuda, Doubles().nccl), "NCCL 2.8.4"));
  tfddl_fake_reset();
}

void TestDefaults() {
  unsetenv("TFDDL_NCCL_LIBRARY");
  unsetenv("TFDDL_CUDA_LIBRARY");
  CHECK(DefaultGpuLibraries().nccl == "libnccl.so.2" && DefaultGpuLibraries().cuda == "libcuda.so.1");
  std::string error;
  SetNcclWheel(Doubles().nccl);
  CHECK(DefaultGpuLibraries().nccl == Doubles().nccl);
  CHECK(FindNccl(&error) == 22707 && error.empty());
  setenv("TFDDL_NCCL_LIBRARY", "/mine/libnccl.so.2", 1);
  setenv("TFDDL_CUDA_LIBRARY", "/mine/libcuda.so.1", 1);
  CHECK(DefaultGpuLibraries().nccl == "/mine/libnccl.so.2" &&
        DefaultGpuLibraries().cuda == "/mine/libcuda.so.1");
  CHECK(FindNccl(&error) == 0 && Has(error, "/mine/libnccl.so.2"));
}

// A plane opens no library before its first work.
void TestInert() {
  const auto plane = MakeNcclPlane({"/nowhere/libcuda.so.1", "/nowhere/libnccl.so.2"});
  const long before = tfddl_fake_calls("cuInit");
  const auto queue = plane->Join("all ranks");
  CHECK(tfddl_fake_calls("cuInit") == before);
}

// If one rank lacks a library, all ranks get its error.
void TestOneRankWithout() {
  GpuJob job(3, {}, {},
             {MakeNcclPlane(Doubles()), MakeNcclPlane({Doubles().cuda, "/nowhere/libnccl.so.2"}),
              MakeNcclPlane(Doubles())});
  std::vector<std::unique_ptr<GpuTensor<float>>> x;
  Outcomes outcomes(3);
  for (size_t rank = 0; rank < 3; ++rank) {
    job.Use(rank);
    x.push_back(std::make_unique<GpuTensor<float>>(Bring<float>(rank, 4)));
    Request request = GpuRequest("x", Kind::kAllreduce, DataType::kFloat32, outcomes.At(rank));
    request.buffers.push_back({x[rank]->get(), x[rank]->get(), 4});
    job.Submit(rank, std::move(request));
  }
  for (const Status& status : outcomes.Wait()) {
    CHECK(status.code() == Code::kFailedPrecondition);
    CHECK(Has(status.message(), "rank 1: NCCL did not open") && Has(status.message(), "/nowhere/"));
  }
  job.End();
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestGood();
  tfddl::TestMissing();
  tfddl::TestBroken();
  tfddl::TestTooOld();
  tfddl::TestDefaults();
  tfddl::TestInert();
  tfddl::TestOneRankWithout();
  std::puts("nccl_load: ok");
  return 0;
}
