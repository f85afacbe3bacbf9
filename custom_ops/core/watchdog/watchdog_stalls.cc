// Requests that wait long: the watchdog asks all ranks what they wait for, and reports it.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/wire.h"
#include "core/watchdog/watchdog.h"

namespace tfddl {
namespace {

// If ranks are stuck for so long, one of them with a note, the job is stopped.
constexpr int64_t kFinalMicros = 10000000;
constexpr int64_t kAnswerMicros = 1000000;  // a rank that takes longer to answer counts as silent
constexpr char kSeeLines[] =
    " To see the lines of the program: kill -USR1 PID (of tfddlrun), then tfddl analyze tfddl-dump.";
constexpr size_t kWaitStateBytes = 1800;  // of a message

// Whether a rank waits for anything but the end of a join.
bool WaitsForMore(const WaitStates& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) {
    return rank && std::any_of(rank->waiting.begin(), rank->waiting.end(),
                               [](const LiveRequest& request) { return !request.joined; });
  });
}

void Print(const std::string& text) { std::fprintf(stderr, "tfddl: %s\n", text.c_str()); }

}  // namespace

int64_t Watchdog::MicrosSince(int64_t time_us) const {
  int64_t passed_us = NowMicros() - time_us;
  for (const Suspension& each : suspensions_) {
    if (each.end_us > time_us) passed_us -= std::min(each.length_us, each.end_us - time_us);
  }
  return passed_us;
}

int64_t Watchdog::IdleMicros() const {
  int64_t moved_us = 0;
  for (const auto& [set, engine] : engines_) moved_us = std::max(moved_us, engine->moved_us());
  return MicrosSince(moved_us);
}

std::optional<Watchdog::OldestRequest> Watchdog::Oldest(bool or_join) const {
  std::optional<OldestRequest> oldest;
  for (const auto& [set, engine] : engines_) {
    const auto mine = engine->Oldest(or_join);
    if (mine && (!oldest || mine->second < oldest->submitted_us)) oldest = {mine->second, set, mine->first};
  }
  return oldest;
}

WaitState Watchdog::MyWaitState() const {
  WaitState mine;
  mine.idle_us = IdleMicros();
  std::optional<Event> last;
  for (const auto& [set, engine] : engines_) {
    for (LiveRequest& request : engine->Waiting()) {
      request.set = set;
      mine.waiting.push_back(std::move(request));
    }
    const auto event = engine->recorder().Last();
    if (event && (!last || event->time_us > last->time_us)) last = event;
  }
  std::stable_sort(mine.waiting.begin(), mine.waiting.end(),
                   [](auto& a, auto& b) { return a.waited_us > b.waited_us; });
  if (last) {
    mine.last = "its last collective was '" + last->name.substr(0, 200) + "' (" + last->type + ") " +
                Seconds(NowMicros() - last->time_us) + " ago";
  } else {
    mine.last = "it has not called any collective yet";
  }
  std::lock_guard<std::mutex> lock(mutex_);
  mine.leaving = leaving_us_ != 0;
  return mine;
}

std::string Watchdog::Answer(const std::string& query) const {
  WireReader reader(query);
  WireWriter writer;
  writer.Int(reader.Int());
  const int set = static_cast<int>(reader.Int());
  const std::string key = reader.String();
  WaitState mine = MyWaitState();
  // The request of the query comes first: a list that is cut short still shows whether it is there.
  std::stable_partition(mine.waiting.begin(), mine.waiting.end(),
                        [&](auto& it) { return it.set == set && it.key == key; });
  writer.String(mine.Encode(kWaitStateBytes));
  return writer.bytes();
}

void Watchdog::ReceiveAnswer(int peer, const std::string& answer) {
  WireReader reader(answer);
  if (!query_ || reader.Int() != query_->number) return;
  query_->answers[static_cast<size_t>(peer)] = WaitState::Decode(reader.String());
}

void Watchdog::CheckProgress() {
  const int64_t now = NowMicros();
  int64_t query_leaving_us;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    query_leaving_us = query_leaving_us_;
    if (now > query_leaving_us) query_leaving_us_ = 0;
  }
  if (query_leaving_us != 0 && now > query_leaving_us) return StartQuery(Cause::kShutdown, {now, 0, ""});
  const auto oldest = Oldest(false);
  const auto waiting = oldest ? oldest : Oldest(true);
  if (!waiting) return;
  // A rank that has joined may wait as long as an epoch, if the others run collectives meanwhile.
  const int64_t submitted_us = MicrosSince(waiting->submitted_us);
  const int64_t waited_us = oldest ? submitted_us : std::min(submitted_us, IdleMicros());
  const double waited_s = static_cast<double>(waited_us) * 1e-6;
  if (waited_s > options_.limit_s) return StartQuery(Cause::kLimit, *waiting);
  if (waited_s > options_.warning_s && !(warned_ == waiting)) {
    warned_ = waiting;
    return StartQuery(Cause::kSlow, *waiting);
  }
  // If several ranks are stuck together, only the lowest one reports: the lowest rank of its set.
  for (int rank = 0; rank < transport_->rank(); ++rank) {
    if (sets_.Includes(waiting->set, rank)) return;
  }
  if (IdleMicros() <= idle_limit_us_ || now < next_comparison_us_) return;
  next_comparison_us_ = now + std::clamp<int64_t>(idle_limit_us_ / 4, kAnswerMicros / 4, kAnswerMicros);
  StartQuery(Cause::kDifferent, *waiting);
}

void Watchdog::StartQuery(Cause cause, const OldestRequest& request) {
  query_ = Query{cause, request, ++queries_, NowMicros(), WaitStates(incoming_.size())};
  WireWriter writer;
  writer.Int(query_->number);
  writer.Int(request.set);
  writer.String(request.key.substr(0, kWaitStateBytes));
  SendToAll(Type::kQuery, writer.bytes());
}

void Watchdog::FinishQuery() {
  const auto me = static_cast<size_t>(transport_->rank());
  query_->answers[me] = MyWaitState();
  const auto& answers = query_->answers;
  const bool complete =
      std::all_of(answers.begin(), answers.end(), [](auto& answer) { return answer.has_value(); });
  if (!complete && NowMicros() - query_->begun_us < kAnswerMicros) return;
  Query query = std::move(*query_);
  query_.reset();
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    auto& answer = query.answers[rank];
    if (!answer && peers_[rank].left) answer.emplace().last = "it has left the job";
  }
  if (query.cause == Cause::kShutdown) return ReportShutdown(query);
  if (!query.answers[me]->Has(query.request.key, query.request.set)) return;  // it is done meanwhile
  if (query.cause == Cause::kDifferent) return ReportDifferent(query);
  ReportStall(query);
}

void Watchdog::ReportDifferent(const Query& query) {
  const auto stuck = Stuck(query.answers, transport_->rank(), idle_limit_us_, sets_);
  if (stuck.empty() || stuck[0] != transport_->rank()) return;
  std::string who = stuck.size() == peers_.size() ? "the ranks" : "ranks";
  for (size_t i = 0; i < stuck.size() && stuck.size() < peers_.size(); ++i) {
    who += (i ? ", " : " ") + std::to_string(stuck[i]);
  }
  const std::string report =
      who + " wait for different collectives, none of which can run: " + Describe(query.answers, sets_) + ".";
  const bool final_state = Stuck(query.answers, transport_->rank(), kFinalMicros, sets_) == stuck;
  const bool noted = HasNote(query.answers, stuck);
  if (final_state && noted)
    return StallAll("Stopped: " + report +
                    " Run the same collectives the same number of times on all ranks.");
  if (different_ == query.request) return;
  different_ = query.request;
  Print(report + " Run the same collectives the same number of times on all ranks. The job " +
        (noted ? "is stopped after " + Seconds(kFinalMicros) + " without progress."
               : "goes on waiting, in case another thread submits what is missing, until TFDDL_STALL_LIMIT=" +
                     std::to_string(static_cast<int64_t>(options_.limit_s)) + " seconds." + kSeeLines));
}

void Watchdog::ReportStall(const Query& query) {
  const auto& [submitted_us, set, key] = query.request;
  // A rank that waits for a collective knows more to report than one that has joined.
  if (key == kJoinKey && WaitsForMore(query.answers)) return;
  std::string missing = DescribeMissing(query.answers, key, set, sets_);
  if (missing.empty()) missing = "all ranks have submitted it, the transfer itself does not advance";
  const std::string report = Me() + " has waited " + Seconds(MicrosSince(submitted_us)) + " for " +
                             DescribeKey(key, set, sets_) + "; " + missing +
                             ". All ranks: " + Describe(query.answers, sets_) + ".";
  if (query.cause == Cause::kLimit) {
    StallAll("Stalled: " + report +
             " The limit is TFDDL_STALL_LIMIT=" + std::to_string(static_cast<int64_t>(options_.limit_s)) +
             " seconds. Run the same collectives on all ranks; set a higher limit if a rank is only slow.");
    return;
  }
  for (int rank = 0; rank < transport_->rank();
       ++rank) {  // the lowest rank that waits for the request reports
    const auto& answer = query.answers[static_cast<size_t>(rank)];
    if (answer && answer->Has(key, set)) return;
  }
  Print(report + " Run the same collectives on all ranks; the job goes on waiting." + kSeeLines);
}

void Watchdog::ReportShutdown(const Query& query) {
  const std::string report = Describe(query.answers, sets_);
  std::lock_guard<std::mutex> lock(mutex_);
  shutdown_report_ = report;
}

}  // namespace tfddl
