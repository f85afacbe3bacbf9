#include "tests/double/nccl/nccl_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>

namespace fake {
namespace {

struct Address {
  uint32_t magic;
  int32_t process;
  int32_t descriptor;
  uint64_t nonce;
};
constexpr uint32_t kMagic = 0x7fdd1fa6;
static_assert(sizeof(Address) <= sizeof(ncclUniqueId), "the address is the unique id");

std::mutex mutex;
std::map<uint64_t, std::weak_ptr<Segment>>& Mapped() {
  static auto* mapped = new std::map<uint64_t, std::weak_ptr<Segment>>;
  return *mapped;
}
std::set<uint64_t>& Open() {  // made here, descriptor still open
  static auto* open = new std::set<uint64_t>;
  return *open;
}

Address AddressIn(const ncclUniqueId& id) {
  Address address;
  std::memcpy(&address, id.internal, sizeof address);
  return address;
}

Segment* Map(int descriptor) {
  void* memory = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Segment*>(memory);
}

void Unmap(Segment* segment) { munmap(segment, sizeof(Segment)); }

}  // namespace

bool MakeSegment(ncclUniqueId* id) {
  const int descriptor = memfd_create("tfddl_fake_nccl", MFD_CLOEXEC);
  if (descriptor < 0) return false;
  Segment* segment = ftruncate(descriptor, sizeof(Segment)) ? nullptr : Map(descriptor);
  if (!segment) {
    close(descriptor);
    return false;
  }
  std::random_device random;
  const uint64_t nonce = (uint64_t{random()} << 32 | random()) | 1;
  segment->nonce = nonce;
  Unmap(segment);
  const Address address{kMagic, getpid(), descriptor, nonce};
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, &address, sizeof address);
  std::lock_guard<std::mutex> lock(mutex);
  Open().insert(nonce);
  return true;
}

std::shared_ptr<Segment> MapSegment(const ncclUniqueId& id) {
  const Address address = AddressIn(id);
  if (address.magic != kMagic) return nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<Segment>& mapped = Mapped()[address.nonce];
  if (auto segment = mapped.lock()) return segment;
  const std::string path =
      "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.descriptor);
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  Segment* segment = Map(descriptor);
  close(descriptor);
  if (!segment) return nullptr;
  if (segment->nonce != address.nonce) {  // another file has this descriptor now
    Unmap(segment);
    return nullptr;
  }
  std::shared_ptr<Segment> shared(segment, Unmap);
  mapped = shared;
  return shared;
}

void SegmentMapped(const ncclUniqueId& id) {
  const Address address = AddressIn(id);
  std::lock_guard<std::mutex> lock(mutex);
  if (address.process == getpid() && Open().erase(address.nonce)) close(address.descriptor);
}

}  // namespace fake
