// Gathers one text of each member on all members.
#pragma once

#include <string>
#include <vector>

#include "core/engine/engine.h"

namespace tfddl {

// All members call it with the same name. Waits for all of them; the watchdog names the missing ranks.
// Returns the texts, by rank. Raises std::runtime_error when the job fails or ends meanwhile.
std::vector<std::string> GatherTexts(Engine* engine, const std::string& name, const std::string& mine);

}  // namespace tfddl
