// Strings in JSON.
#pragma once

#include <string>

namespace tfddl {

// `text` as a JSON string, with its quotes. Control characters become spaces; newlines stay with `lines`.
inline std::string Quote(const std::string& text, bool lines = false) {
  std::string quoted = "\"";
  for (char c : text) {
    if (lines && c == '\n') {
      quoted += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + '"';
}

}  // namespace tfddl
