// The transport of the engine: shared memory inside a host, MPI between hosts.
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "transport/host.h"
#include "transport/host_memory.h"
#include "transport/mpi.h"
#include "transport/mpi_check.h"
#include "transport/shm.h"

namespace tfddl {
namespace {

constexpr size_t kTextBytes = 512;

// The members of a communicator that can share memory, according to MPI.
class LocalGroup {
 public:
  explicit LocalGroup(MPI_Comm all) {
    int rank = 0, size = 0;
    CheckMpi(MPI_Comm_rank(all, &rank), "MPI_Comm_rank");
    CheckMpi(MPI_Comm_size(all, &size), "MPI_Comm_size");
    CheckMpi(MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local_),
             "MPI_Comm_split_type");
    CheckMpi(MPI_Comm_rank(local_, &this->rank), "MPI_Comm_rank");
    CheckMpi(MPI_Comm_size(local_, &this->size), "MPI_Comm_size");
    std::vector<int> members(static_cast<size_t>(this->size));
    CheckMpi(MPI_Allgather(&rank, 1, MPI_INT, members.data(), 1, MPI_INT, local_), "MPI_Allgather");
    local_ranks.assign(static_cast<size_t>(size), -1);
    for (int local = 0; local < this->size; ++local) {
      local_ranks[static_cast<size_t>(members[static_cast<size_t>(local)])] = local;
    }
  }
  ~LocalGroup() { MPI_Comm_free(&local_); }
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  std::vector<std::string> Gather(const std::string& mine) const {
    std::string text = mine.substr(0, kTextBytes - 1);
    text.resize(kTextBytes, '\0');
    std::vector<char> all(kTextBytes * static_cast<size_t>(size));
    CheckMpi(MPI_Allgather(text.data(), kTextBytes, MPI_CHAR, all.data(), kTextBytes, MPI_CHAR, local_),
             "MPI_Allgather");
    std::vector<std::string> texts;
    for (size_t member = 0; member < static_cast<size_t>(size); ++member) {
      texts.emplace_back(all.data() + member * kTextBytes);
    }
    return texts;
  }

  int rank = 0;
  int size = 1;
  std::vector<int> local_ranks;  // for each member of the whole communicator: its rank here, or -1

 private:
  MPI_Comm local_ = MPI_COMM_NULL;
};

// For each member the lowest rank of its host. Empty if any rank turns hierarchical allreduce off.
std::vector<int> HostNumbers(MPI_Comm all, const LocalGroup& local) {
  const bool wish = ReadSwitch("TFDDL_HIERARCHICAL_ALLREDUCE").value_or(true);
  const auto first = std::find(local.local_ranks.begin(), local.local_ranks.end(), 0);
  const int mine = wish ? static_cast<int>(first - local.local_ranks.begin()) : -1;
  std::vector<int> hosts(local.local_ranks.size());
  CheckMpi(MPI_Allgather(&mine, 1, MPI_INT, hosts.data(), 1, MPI_INT, all), "MPI_Allgather");
  return std::count(hosts.begin(), hosts.end(), -1) == 0 ? hosts : std::vector<int>();
}

bool MpiOnly() {
  const char* value = std::getenv("TFDDL_TRANSPORT");
  if (!value || !*value || std::strcmp(value, "auto") == 0) return false;
  if (std::strcmp(value, "mpi") == 0) return true;
  throw std::runtime_error("TFDDL_TRANSPORT must be auto or mpi: set one of them. Received: '" +
                           std::string(value) + "'");
}

// The memory that each member may use.
size_t LeastMemory(const LocalGroup& local) {
  size_t least = SIZE_MAX;
  for (const std::string& memory : local.Gather(std::to_string(HostMemory()))) {
    least = std::min<size_t>(least, std::stoull(memory));
  }
  return least;
}

// Null if any member asks for MPI or cannot share memory.
std::unique_ptr<Transport> ShareHost(const LocalGroup& local, bool mpi_only) {
  for (const std::string& wish : local.Gather(mpi_only ? "mpi" : "")) {
    if (!wish.empty()) return nullptr;
  }
  const auto geometry = ShmGeometry::For(local.size);
  const auto gather = [&](const std::string& mine) { return local.Gather(mine); };
  std::string why;
  auto segments = ShareSegments(ShmSegmentBytes(geometry, local.size), gather, {}, &why);
  if (!segments.empty()) {
    const size_t bytes = ArenaBytes(LeastMemory(local), local.size);
    auto arenas = ShareArenas(static_cast<size_t>(local.rank), bytes, gather, {});
    return MakeShmTransport(local.rank, std::move(segments), geometry, std::move(arenas));
  }
  if (local.rank == 0) {
    std::fprintf(stderr,
                 "tfddl: the %d ranks of this host use MPI, not shared memory, which is slower; run tfddl "
                 "doctor to see what to change: %s\n",
                 local.size, why.c_str());
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<Transport> MakeDataTransport(const void* communicator) {
  const bool mpi_only = MpiOnly();
  const MPI_Comm all = *static_cast<const MPI_Comm*>(communicator);
  auto transport = MakeMpiTransport(communicator);
  const LocalGroup local(all);
  auto hosts = HostNumbers(all, local);
  auto shm = local.size > 1 ? ShareHost(local, mpi_only) : nullptr;
  if (shm && local.size == transport->size()) return shm;
  if (shm) transport = MakeHostTransport(std::move(shm), std::move(transport), local.local_ranks);
  transport->set_hosts(std::move(hosts));
  return transport;
}

}  // namespace tfddl
