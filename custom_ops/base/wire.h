// Serialises strings and integers for the records that engines exchange. All members run the same binary on
// the same kind of machine, so integers keep their native byte order.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace tfddl {

class WireWriter {
 public:
  void Int(int64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void String(const std::string& text) {
    Int(static_cast<int64_t>(text.size()));
    bytes_ += text;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class WireReader {
 public:
  explicit WireReader(const std::string& bytes) : bytes_(bytes) {}
  bool done() const { return next_ == bytes_.size(); }
  int64_t Int() {
    int64_t value;
    std::memcpy(&value, Take(sizeof value), sizeof value);
    return value;
  }
  std::string String() {
    const auto size = static_cast<size_t>(Int());
    return std::string(Take(size), size);
  }

 private:
  const char* Take(size_t size) {
    if (size > bytes_.size() - next_)
      throw std::runtime_error("tfddl: internal error: a record from a peer is cut short");
    const char* start = bytes_.data() + next_;
    next_ += size;
    return start;
  }

  const std::string& bytes_;
  size_t next_ = 0;
};

}  // namespace tfddl
