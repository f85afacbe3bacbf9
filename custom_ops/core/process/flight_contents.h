// What the engines of this process put into its flight record.
#pragma once

#include <string>

namespace tfddl {

// Fields of a JSON object: "process_sets", "operations" and "waiting".
std::string FlightContents();

// This rank is about to end the job, and the user wants records of such ends: writes its own, asks the other
// ranks for theirs, and waits for these, 2 s at most.
void RecordFailure(const std::string& reason);

}  // namespace tfddl
