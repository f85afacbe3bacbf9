// Opaque handles: numbers that are never used twice, so that the use of an ended handle is found.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace fake {

template <class T>
class Handles {
 public:
  explicit Handles(uintptr_t first) : next_(first) {}

  void* Add(std::shared_ptr<T> object) {
    std::lock_guard<std::mutex> lock(mutex_);
    void* handle = reinterpret_cast<void*>(next_ += 16);
    objects_[handle] = std::move(object);
    return handle;
  }

  std::shared_ptr<T> Find(const void* handle) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  std::shared_ptr<T> Remove(const void* handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  mutable std::mutex mutex_;
  uintptr_t next_;
  std::map<const void*, std::shared_ptr<T>> objects_;
};

}  // namespace fake
