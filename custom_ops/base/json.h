// Text inside JSON.
#pragma once

#include <string>

namespace tfddl {

// With its quotes. Control characters, which no name has, become spaces.
inline std::string Quote(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + '"';
}

}  // namespace tfddl
