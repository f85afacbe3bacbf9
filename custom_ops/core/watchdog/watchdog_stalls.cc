// What the watchdog makes of requests that wait: it asks all ranks what they wait for, and says so.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/wire.h"
#include "core/watchdog/watchdog.h"

namespace tfddl {
namespace {

constexpr int64_t kCertainMicros = 10000000;  // by then ranks that are stuck, one with a note, are for ever
constexpr int64_t kAnswerMicros = 1000000;    // a rank that has not answered by then is silent
constexpr size_t kWaitStateBytes = 1800;      // of a letter

void Print(const std::string& text) { std::fprintf(stderr, "tfddl: %s\n", text.c_str()); }

}  // namespace

int64_t Watchdog::StillMicros() const {
  int64_t moved_us = 0;
  for (const auto& [set, engine] : engines_) moved_us = std::max(moved_us, engine->moved_us());
  return NowMicros() - moved_us;
}

std::optional<Watchdog::Waited> Watchdog::Oldest(bool or_join) const {
  std::optional<Waited> oldest;
  for (const auto& [set, engine] : engines_) {
    const auto mine = engine->Oldest(or_join);
    if (mine && (!oldest || mine->second < oldest->submitted_us)) oldest = {mine->second, set, mine->first};
  }
  return oldest;
}

WaitState Watchdog::Mine() const {
  WaitState mine;
  mine.still_us = StillMicros();
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
    mine.last = "its last collective was '" + last->name.substr(0, 200) + "' (" + last->what + ") " +
                Seconds(NowMicros() - last->time_us) + " ago";
  } else {
    mine.last = "it has not called any collective yet";
  }
  std::lock_guard<std::mutex> lock(mutex_);
  mine.leaving = leaving_us_ != 0;
  return mine;
}

std::string Watchdog::Answer(const std::string& question) const {
  WireReader reader(question);
  WireWriter writer;
  writer.Int(reader.Int());
  const int set = static_cast<int>(reader.Int());
  const std::string key = reader.String();
  WaitState mine = Mine();
  // First in line, so that a list that is cut short still tells whether it is there.
  std::stable_partition(mine.waiting.begin(), mine.waiting.end(),
                        [&](auto& it) { return it.set == set && it.key == key; });
  writer.String(mine.Encode(kWaitStateBytes));
  return writer.bytes();
}

void Watchdog::Hear(int peer, const std::string& answer) {
  WireReader reader(answer);
  if (!inquiry_ || reader.Int() != inquiry_->number) return;
  inquiry_->answers[static_cast<size_t>(peer)] = WaitState::Decode(reader.String());
}

void Watchdog::LookForStalls() {
  const int64_t now = NowMicros();
  int64_t ask_leaving_us;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ask_leaving_us = ask_leaving_us_;
    if (now > ask_leaving_us) ask_leaving_us_ = 0;
  }
  if (ask_leaving_us != 0 && now > ask_leaving_us) return Ask(Cause::kShutdown, {now, 0, ""});
  const auto oldest = Oldest(false);  // a rank that has joined may wait for an epoch of the others
  if (oldest) {
    const double waited_s = static_cast<double>(now - oldest->submitted_us) * 1e-6;
    if (waited_s > options_.limit_s) return Ask(Cause::kLimit, *oldest);
    if (waited_s > options_.warning_s && !(warned_ == oldest)) {
      warned_ = oldest;
      return Ask(Cause::kSlow, *oldest);
    }
  }
  const auto waiting = Oldest(true);
  if (!waiting) return;
  // Of ranks that are stuck together, the lowest is the lowest of the set in which it waits.
  for (int rank = 0; rank < transport_->rank(); ++rank) {
    if (sets_.Includes(waiting->set, rank)) return;
  }
  if (StillMicros() <= still_us_ || now < next_comparison_us_) return;
  next_comparison_us_ = now + std::clamp<int64_t>(still_us_ / 4, kAnswerMicros / 4, kAnswerMicros);
  Ask(Cause::kDifferent, *waiting);
}

void Watchdog::Ask(Cause cause, const Waited& waited) {
  inquiry_ = Inquiry{cause, waited, ++inquiries_, NowMicros(), WaitStates(inboxes_.size())};
  WireWriter writer;
  writer.Int(inquiry_->number);
  writer.Int(waited.set);
  writer.String(waited.key.substr(0, kWaitStateBytes));
  SendToAll(Type::kQuestion, writer.bytes());
}

void Watchdog::ConcludeInquiry() {
  const auto me = static_cast<size_t>(transport_->rank());
  inquiry_->answers[me] = Mine();
  const auto& answers = inquiry_->answers;
  const bool complete =
      std::all_of(answers.begin(), answers.end(), [](auto& answer) { return answer.has_value(); });
  if (!complete && NowMicros() - inquiry_->begun_us < kAnswerMicros) return;
  Inquiry inquiry = std::move(*inquiry_);
  inquiry_.reset();
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    auto& answer = inquiry.answers[rank];
    if (!answer && peers_[rank].left) answer.emplace().last = "it has left the job";
  }
  if (inquiry.cause == Cause::kShutdown) return ReportShutdown(inquiry);
  if (!inquiry.answers[me]->Has(inquiry.waited.key, inquiry.waited.set)) return;  // it came through meanwhile
  if (inquiry.cause == Cause::kDifferent) return ReportDifferent(inquiry);
  ReportStall(inquiry);
}

void Watchdog::ReportDifferent(const Inquiry& inquiry) {
  const auto stuck = Stuck(inquiry.answers, transport_->rank(), still_us_, sets_);
  if (stuck.empty() || stuck[0] != transport_->rank()) return;
  std::string who = stuck.size() == peers_.size() ? "the ranks" : "ranks";
  for (size_t i = 0; i < stuck.size() && stuck.size() < peers_.size(); ++i) {
    who += (i ? ", " : " ") + std::to_string(stuck[i]);
  }
  const std::string report =
      who + " wait for different collectives, none of which can run: " + Describe(inquiry.answers, sets_) +
      ".";
  const bool certain = Stuck(inquiry.answers, transport_->rank(), kCertainMicros, sets_) == stuck;
  const bool noted = HasNote(inquiry.answers, stuck);
  if (certain && noted) return FailAll("Stopped: " + report);
  if (different_ == inquiry.waited) return;
  different_ = inquiry.waited;
  Print(report + " Ranks must run the same collectives, the same number of times. The job " +
        (noted ? "is stopped after " + Seconds(kCertainMicros) + " without progress."
               : "goes on waiting, in case another thread submits what is missing, until TFDDL_STALL_LIMIT=" +
                     std::to_string(static_cast<int64_t>(options_.limit_s)) + " seconds."));
}

void Watchdog::ReportStall(const Inquiry& inquiry) {
  const auto& [submitted_us, set, key] = inquiry.waited;
  std::string missing = DescribeMissing(inquiry.answers, key, set, sets_);
  if (missing.empty()) missing = "all ranks have submitted it, the transfer itself does not advance";
  const std::string report = Me() + " has waited " + Seconds(NowMicros() - submitted_us) + " for " +
                             DescribeKey(key, set, sets_) + "; " + missing +
                             ". All ranks: " + Describe(inquiry.answers, sets_) + ".";
  if (inquiry.cause == Cause::kLimit) {
    FailAll("Stalled: " + report +
            " The limit is TFDDL_STALL_LIMIT=" + std::to_string(static_cast<int64_t>(options_.limit_s)) +
            " seconds. Ranks must run the same collectives; set a higher limit where one is only slow.");
    return;
  }
  for (int rank = 0; rank < transport_->rank(); ++rank) {  // the lowest rank that waits for it speaks for all
    const auto& answer = inquiry.answers[static_cast<size_t>(rank)];
    if (answer && answer->Has(key, set)) return;
  }
  Print(report + " Ranks must run the same collectives; the job goes on waiting.");
}

void Watchdog::ReportShutdown(const Inquiry& inquiry) {
  const std::string report = Describe(inquiry.answers, sets_);
  std::lock_guard<std::mutex> lock(mutex_);
  shutdown_report_ = report;
}

}  // namespace tfddl
