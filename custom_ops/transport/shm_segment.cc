#include "transport/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>
#include <utility>

#include "base/host_name.h"

namespace tfddl {
namespace {

constexpr size_t kPage = 4096;

class Error : public std::runtime_error {
 public:
  Error(const std::string& action, int error) : std::runtime_error(action + ": " + std::strerror(error)) {}
};

class File {
 public:
  explicit File(int descriptor = -1) : descriptor_(descriptor) {}
  File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// A name that no other job uses, not even in another PID namespace.
std::string RandomName() {
  std::random_device device;
  char text[17];
  std::snprintf(text, sizeof text, "%08x%08x", device(), device());
  return text;
}

ShmSegment Map(const File& file, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) throw Error("mmap of " + std::to_string(bytes) + " bytes", errno);
  return ShmSegment(static_cast<char*>(data), [bytes](char* memory) { munmap(memory, bytes); });
}

// A way to create a segment and to open a peer's.
class Way {
 public:
  virtual ~Way() = default;
  // Returns the address by which peers open the segment. A sparse segment has no memory yet.
  virtual std::string Create(size_t bytes, bool sparse, File* file) = 0;
  virtual File Open(const std::string& address) = 0;
};

class MemfdWay : public Way {
 public:
  std::string Create(size_t bytes, bool /*sparse*/, File* file) override {
    const std::string name = "tfddl-" + RandomName();
    *file = File(memfd_create(name.c_str(), MFD_CLOEXEC));
    if (file->get() < 0) throw Error("memfd_create", errno);
    if (ftruncate(file->get(), static_cast<off_t>(bytes)) != 0) {
      throw Error("memfd of " + std::to_string(bytes) + " bytes", errno);
    }
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file->get()) + " " + name;
  }

  // In another PID namespace the path may lead to any file. So this reads the link first, and opens the file
  // only if the name matches.
  File Open(const std::string& address) override {
    const size_t space = address.find(' ');
    const std::string path = address.substr(0, space);
    char target[256] = "";
    if (readlink(path.c_str(), target, sizeof target - 1) < 0) throw Error(path, errno);
    if (std::string(target).find(address.substr(space + 1)) == std::string::npos) {
      throw std::runtime_error(path +
                               " is not the peer's memory: the ranks do not share a process namespace; start "
                               "them in one container");
    }
    File file(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (file.get() < 0) throw Error(path, errno);
    return file;
  }
};

class FileWay : public Way {
 public:
  explicit FileWay(std::string directory) : directory_(std::move(directory)) {}
  ~FileWay() override {
    if (!path_.empty()) unlink(path_.c_str());
  }

  std::string Create(size_t bytes, bool sparse, File* file) override {
    const std::string path = directory_ + "/tfddl-" + HostName() + "-" + RandomName();
    *file = File(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (file->get() < 0) throw Error(path, errno);
    path_ = path;
    // ftruncate would succeed on a full file system, and the first write would end in SIGBUS.
    const auto length = static_cast<off_t>(bytes);
    const int error = !sparse                               ? posix_fallocate(file->get(), 0, length)
                      : ftruncate(file->get(), length) == 0 ? 0
                                                            : errno;
    if (error != 0) throw Error(path + " of " + std::to_string(bytes) + " bytes", error);
    return path;
  }

  File Open(const std::string& address) override {
    File file(open(address.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (file.get() < 0) throw Error(address, errno);
    return file;
  }

 private:
  std::string directory_;
  std::string path_;
};

// Describes the first failure only.
bool AllSucceeded(const std::vector<std::string>& failures, std::string* why) {
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    if (failures[rank].empty()) continue;
    if (!why->empty()) *why += "; ";
    *why += "local rank " + std::to_string(rank) + ": " + failures[rank];
    return false;
  }
  return true;
}

// Empty if any member fails. `way` may be null: then this member fails.
std::vector<ShmSegment> Share(Way* way, size_t bytes, bool sparse, const ShmGather& gather, File* mine,
                              std::string* why) {
  std::string address, failure;
  try {
    if (!way) throw std::runtime_error("no memfd");
    address = way->Create(bytes, sparse, mine);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const std::vector<std::string> addresses = gather(address);
  std::vector<ShmSegment> segments;
  try {
    for (size_t peer = 0; failure.empty() && peer < addresses.size(); ++peer) {
      if (addresses[peer].empty()) break;  // the peer has failed and says why
      segments.push_back(Map(way->Open(addresses[peer]), bytes));
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  if (!AllSucceeded(gather(failure), why)) segments.clear();
  return segments;
}

std::vector<ShmSegment> ShareEitherWay(size_t bytes, bool sparse, const ShmGather& gather,
                                       const ShmOptions& options, File* mine, std::string* why) {
  MemfdWay memfd;
  auto segments = Share(options.memfd ? &memfd : nullptr, bytes, sparse, gather, mine, why);
  if (!segments.empty()) return segments;
  *mine = File();
  FileWay file(options.directory);
  return Share(&file, bytes, sparse, gather, mine, why);
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22  // since Linux 5.14; older headers lack it
#define MADV_POPULATE_WRITE 23
#endif

// The free bytes of the file system of `file`; SIZE_MAX if there is no limit, as for a memfd.
size_t Room(const File& file) {
  struct statvfs system{};
  if (fstatvfs(file.get(), &system) != 0 || system.f_blocks == 0) return SIZE_MAX;
  return static_cast<size_t>(system.f_bavail) * system.f_frsize;
}

// Backs a range with memory. Writing to a range without memory could end in SIGBUS.
bool Commit(const File& file, char* memory, size_t begin, size_t end) {
  if (madvise(memory + begin, end - begin, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  return posix_fallocate(file.get(), static_cast<off_t>(begin), static_cast<off_t>(end - begin)) == 0;
}

}  // namespace

std::vector<ShmSegment> ShareSegments(size_t bytes, const ShmGather& gather, const ShmOptions& options,
                                      std::string* why) {
  File mine;
  auto segments = ShareEitherWay(bytes, false, gather, options, &mine, why);
  for (const ShmSegment& segment : segments) {
    madvise(segment.get(), bytes, MADV_DONTFORK);  // a child process must not keep the segment alive
  }
  return segments;
}

size_t MapUpTo(char* memory, size_t begin, size_t end) {
  if (end <= begin) return begin;
  end = (end + kPage - 1) / kPage * kPage;
  madvise(memory + begin, end - begin, MADV_POPULATE_READ);  // enough for writing; older kernels ignore it
  return end;
}

size_t ArenaBytes(size_t memory, int size) {
  // Holds the gradients of two steps of a large model: outputs take at most half
  // (tensorflow/shared_output.cc).
  constexpr size_t kMost = size_t{4} << 30;
  return std::min(memory / 4 / static_cast<size_t>(size) / kPage * kPage, kMost);
}

ShmArenas ShareArenas(size_t rank, size_t bytes, const ShmGather& gather, const ShmOptions& options) {
  auto file = std::make_shared<File>();
  std::string why;
  ShmArenas arenas;
  arenas.all = ShareEitherWay(bytes, true, gather, options, file.get(), &why);
  if (arenas.all.empty()) return arenas;
  for (size_t owner = 0; owner < arenas.all.size(); ++owner) {
    char* memory = arenas.all[owner].get();
    madvise(memory, bytes, MADV_HUGEPAGE);
    // Our own arena holds tensors, which a child process may read.
    if (owner != rank) madvise(memory, bytes, MADV_DONTFORK);
  }
  char* memory = arenas.all[rank].get();
  // Leaves half of the free space to other users: MPI writes to its own segments without a check. All members
  // may commit at the same time.
  const size_t members = arenas.all.size(), keep = Room(*file) / 2;
  arenas.mine = std::make_shared<Arena>(arenas.all[rank], bytes, [=](size_t begin, size_t end) {
    return Room(*file) >= keep + members * (end - begin) && Commit(*file, memory, begin, end);
  });
  return arenas;
}

}  // namespace tfddl
