// One text of every member on every member: what ranks tell each other before a collective depends on it.
#pragma once

#include <string>
#include <vector>

#include "core/engine/engine.h"

namespace tfddl {

// All members call it with one name. Waits for all of them; the watchdog names who does not come. Returns:
// the texts, by rank. Raises: std::runtime_error when the job fails or ends meanwhile.
std::vector<std::string> GatherTexts(Engine* engine, const std::string& name, const std::string& mine);

}  // namespace tfddl
