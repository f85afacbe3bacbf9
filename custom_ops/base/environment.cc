#include "base/environment.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace tfddl {

std::optional<bool> ReadSwitch(const char* variable) {
  const char* value = std::getenv(variable);
  const std::string wish = value ? value : "";
  if (wish.empty()) return std::nullopt;
  if (wish == "0" || wish == "1") return wish == "1";
  throw std::runtime_error(std::string(variable) + " must be 0 or 1: set one of them. Received: '" + wish +
                           "'");
}

}  // namespace tfddl
