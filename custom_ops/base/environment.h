// Switches in the environment.
#pragma once

#include <optional>

namespace tfddl {

// The value of a variable that is 0 or 1; nullopt where it is not set, or empty. Raises: std::runtime_error
// for another value.
std::optional<bool> ReadSwitch(const char* variable);

}  // namespace tfddl
