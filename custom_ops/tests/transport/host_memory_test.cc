// The limits of control groups, of both versions.
#include "transport/host_memory.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/check.h"

namespace tfddl {
namespace {

namespace fs = std::filesystem;

struct Root {
  Root() { fs::create_directories(path); }
  ~Root() { fs::remove_all(path); }
  void Write(const std::string& file, const std::string& text) const {
    fs::create_directories(fs::path(path + file).parent_path());
    std::ofstream(path + file) << text << "\n";
  }
  size_t Memory() const { return HostMemory(path); }
  const std::string path = fs::temp_directory_path() / ("tfddl_host_memory_" + std::to_string(getpid()));
};

void TestVersion2() {
  const Root root;
  const size_t machine = root.Memory();
  CHECK(machine > (1 << 20));
  root.Write("/proc/self/cgroup", "0::/slurm/job/step");
  CHECK(root.Memory() == machine);
  root.Write("/sys/fs/cgroup/slurm/job/step/memory.max", "max");
  CHECK(root.Memory() == machine);
  root.Write("/sys/fs/cgroup/slurm/job/memory.max", "65536");
  CHECK(root.Memory() == 65536);
  root.Write("/sys/fs/cgroup/slurm/job/step/memory.max", "4096");
  CHECK(root.Memory() == 4096);
  root.Write("/proc/self/cgroup", "0::/");  // in a container
  root.Write("/sys/fs/cgroup/memory.max", "8192");
  CHECK(root.Memory() == 8192);
}

void TestVersion1() {
  const Root root;
  root.Write("/proc/self/cgroup", "12:cpu,cpuacct:/a\n4:memory:/docker/1a2b\n1:name=systemd:/a");
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "12288");
  CHECK(root.Memory() == 12288);
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");  // none
  CHECK(root.Memory() > (1 << 20));
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestVersion2();
  tfddl::TestVersion1();
  std::puts("host memory: ok");
  return 0;
}
