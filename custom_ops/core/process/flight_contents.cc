#include "core/process/flight_contents.h"

#include <vector>

#include "base/json.h"
#include "core/process/process.h"
#include "core/trace/flight_record.h"

namespace tfddl {
namespace {

constexpr double kPeersWriteSeconds = 2;

std::string Joined(const std::vector<std::string>& parts) {
  std::string text = "[";
  for (const std::string& part : parts) text += (text.size() > 1 ? ", " : "") + part;
  return text + "]";
}

std::string Number(int64_t value, int64_t none) { return value == none ? "null" : std::to_string(value); }

std::string SetJson(int set, const ProcessSets::Entry& entry) {
  std::vector<std::string> ranks;
  for (int rank : entry.ranks) ranks.push_back(std::to_string(rank));
  return "{\"id\": " + std::to_string(set) + ", \"ranks\": " + Joined(ranks) +
         ", \"member\": " + (entry.engine ? "true" : "false") + "}";
}

std::string OperationJson(int set, const Operation& operation) {
  return "{\"process_set\": " + std::to_string(set) + ", \"number\": " + std::to_string(operation.number) +
         ", \"name\": " + Quote(operation.name) + ", \"signature\": " + Quote(operation.signature) +
         ", \"bytes\": " + std::to_string(operation.bytes) + ", \"ticket\": " + Number(operation.ticket, -1) +
         ", \"submitted_us\": " + std::to_string(operation.submitted_us) +
         ", \"started_us\": " + Number(operation.started_us, 0) +
         ", \"ended_us\": " + Number(operation.ended_us, 0) +
         ", \"failed\": " + (operation.failed ? "true" : "false") + "}";
}

std::string WaitingJson(int set, const LiveRequest& request) {
  return "{\"process_set\": " + std::to_string(set) + ", \"name\": " + Quote(request.key) +
         ", \"waited_us\": " + std::to_string(request.waited_us) + "}";
}

}  // namespace

std::string FlightContents() {
  std::vector<std::string> sets, operations, waiting;
  for (const auto& [set, entry] : CurrentSets().entries) {
    sets.push_back(SetJson(set, entry));
    if (!entry.engine) continue;
    for (const Operation& operation : entry.engine->recorder().Operations()) {
      operations.push_back(OperationJson(set, operation));
    }
    for (const LiveRequest& request : entry.engine->Waiting()) waiting.push_back(WaitingJson(set, request));
  }
  return "\"process_sets\": " + Joined(sets) + ", \"operations\": " + Joined(operations) +
         ", \"waiting\": " + Joined(waiting);
}

void RecordFailure(const std::string& reason) {
  if (FlightRecord::OfProcess().WriteFailure(reason)) CollectRecords(reason, kPeersWriteSeconds);
}

}  // namespace tfddl
